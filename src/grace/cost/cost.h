// One routed batch on a cluster -> vectors and loads: what the exchange will carry, counted without running
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/cluster/cluster.h"

namespace grace {

// flat sends a token to each of its experts, per_device to each of their devices, two_stage to each node and
// from there to its devices; padded is flat with every message as long as the longest (as Tutel and DeepSpeed
// with a capacity that drops nothing); allgather sends every token to everyone (as vLLM's default).
enum class Dispatch { kFlat, kPerDevice, kTwoStage, kPadded, kAllGather };
Result<Dispatch> parse_dispatch(std::string_view name);  // by name_of; errors: invalid_input naming them
std::string_view name_of(Dispatch dispatch);

// How results come home. exact: one vector for each (token, expert), added up at home by ascending expert:
// the same bits for every plan. reduced: whoever has several of a token's results weighs them and adds them
// up first, and sends one vector.
enum class Combine { kExact, kReduced };
Result<Combine> parse_combine(std::string_view name);  // by name_of; errors: invalid_input naming them
std::string_view name_of(Combine combine);

// What a vector's values travel as. bf16 rounds each to the nearest bfloat16, ties to even: by at most 2^-8
// of itself.
enum class Wire { kF32, kBf16 };
Result<Wire> parse_wire(std::string_view name);  // by name_of; errors: invalid_input naming them
std::string_view name_of(Wire wire);
constexpr std::int64_t bytes_per_value(Wire wire) { return wire == Wire::kF32 ? 4 : 2; }

// What one layer's dispatch carries from device to device, [D, D] by sender and receiver; what a device keeps
// for itself is not in it. A vector stands for one token and is followed by its assignments: flat sends one
// for each (token, expert), per_device one for each (token, device). two_stage sends one for each (token,
// node) to that node's entry (Cluster::entry_of), with the assignments of the whole node, and the entry, in
// its own node the source itself, one for each other (token, device).
struct HopCounts {
  std::vector<std::int64_t> vectors;
  std::vector<std::int64_t> assignments;
  std::vector<std::int64_t> load;  // [D] assignments that each device computes
};

// Counts one layer, batch after batch. Thread-compatible.
class HopCounter {
 public:
  // REQUIRES: violations(cluster) is empty. The cluster must outlive it.
  HopCounter(const Cluster& cluster, Dispatch dispatch);
  // device_of_choice: [T, K], kNoDevice.value where nothing was chosen.
  void add(DeviceId source, std::span<const std::int32_t> device_of_choice, int experts_per_token);
  // Of what was added since clear(), as one exchange; padding is by its longest message.
  HopCounts counts() const;
  void clear();

 private:
  void add_token(DeviceId source, std::span<const std::int32_t> devices);
  void carry(std::size_t from, std::size_t to, std::int64_t vectors, std::int64_t assignments);

  const Cluster& cluster_;
  Dispatch dispatch_;
  HopCounts counts_;
  std::vector<std::int64_t> of_device_;  // [D] the token's assignments there, zero between tokens
  std::vector<std::int32_t> used_;       // the token's devices
};

// Bytes by link level, payload and header apart.
struct LevelBytes {
  std::int64_t intra_node_payload = 0;  // between devices of one node
  std::int64_t cross_node_payload = 0;
  std::int64_t intra_node_header = 0;
  std::int64_t cross_node_header = 0;
  LevelBytes& operator+=(const LevelBytes& other);
  bool operator==(const LevelBytes&) const = default;
};

// The wire's sizes; the runtime lays its messages out by the same constants.
inline constexpr std::int64_t kBytesPerVectorHeader = 8;      // i32 token row, i32 number of experts
inline constexpr std::int64_t kBytesPerAssignmentHeader = 4;  // u16 expert, u16 local index of its device
inline constexpr std::int64_t kBytesPerGateWeight = 4;  // f32, of each assignment where results are reduced
struct LayerTraffic {
  LevelBytes dispatch;
  LevelBytes combine;
  std::vector<std::int64_t> load;  // [D] assignments each device computes
};
// What travels from s to d != s (an empty message has no bytes at all):
//   dispatch s -> d: per vector kBytesPerVectorHeader, and bytes_per_vector of payload; per assignment
//   kBytesPerAssignmentHeader, and with reduced results kBytesPerGateWeight. combine d -> s: bytes_per_vector
//   of payload per assignment, or with reduced results per vector, and no header: the sender knows the order
//   it asked in.
LayerTraffic traffic_of(const HopCounts& counts, const Cluster& cluster, Combine combine,
                        std::int64_t bytes_per_vector);

// max/mean and standard deviation (over all of them: divided by D) of loads; 1 and 0 for no load at all
// (never NaN).
double max_over_mean(std::span<const std::int64_t> load);
double standard_deviation(std::span<const std::int64_t> load);

}  // namespace grace
