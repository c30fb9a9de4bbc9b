// One routed batch on a cluster -> vectors and loads: what the exchange will carry, counted without running it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/cluster/cluster.h"

namespace grace {

enum class Dispatch { kFlat, kPerDevice, kTwoStage };
Result<Dispatch> parse_dispatch(std::string_view name);  // "flat", "per_device", "two_stage"; errors: invalid_input naming them
std::string_view name_of(Dispatch dispatch);

// What one source device sends in one layer of one batch; counts by destination device, its own included (no bytes travel there).
// Dispatch carries `vectors`: flat one per (token, expert), per_device one per (token, device). Each assignment also carries a header entry. In exact mode the
// combine returns one vector per assignment.
struct SendCounts {
  std::vector<std::int64_t> vectors;      // [D]
  std::vector<std::int64_t> assignments;  // [D]
};

// device_of_choice: [T, K], kNoDevice.value where nothing was chosen.
// REQUIRES: dispatch is not two_stage, whose vectors do not go straight to their device (evaluate.h counts them).
SendCounts count_sends(std::span<const std::int32_t> device_of_choice, int experts_per_token, Dispatch dispatch, int num_devices);

// Bytes by link level, payload and header apart.
struct LevelBytes {
  std::int64_t intra_node_payload = 0;  // between devices of one node
  std::int64_t cross_node_payload = 0;
  std::int64_t intra_node_header = 0;
  std::int64_t cross_node_header = 0;
  LevelBytes& operator+=(const LevelBytes& other);
  bool operator==(const LevelBytes&) const = default;
};

// The wire's sizes; the runtime lays its messages out by the same constants. Vectors travel as f32 in exact mode.
inline constexpr std::int64_t kBytesPerVectorHeader = 8;      // i32 token row, i32 number of experts
inline constexpr std::int64_t kBytesPerAssignmentHeader = 4;  // i32 expert
struct LayerTraffic {
  LevelBytes dispatch;
  LevelBytes combine;
  std::vector<std::int64_t> load;  // [D] assignments each device computes
};
// sends: [D], one per source. What travels from source s to device d != s (its own assignments never do; an empty message has no bytes at all):
//   dispatch s -> d: per vector kBytesPerVectorHeader, and bytes_per_vector of payload; per assignment kBytesPerAssignmentHeader.
//   combine d -> s: per assignment bytes_per_vector of payload, and no header: the home knows the order it asked in.
LayerTraffic traffic_of(std::span<const SendCounts> sends, const Cluster& cluster, std::int64_t bytes_per_vector);

// max/mean and standard deviation (over all of them: divided by D) of loads; 1 and 0 for no load at all (never NaN).
double max_over_mean(std::span<const std::int64_t> load);
double standard_deviation(std::span<const std::int64_t> load);

}  // namespace grace
