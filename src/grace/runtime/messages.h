// The dispatch's messages: hidden vectors and who wants them (docs/formats/messages.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/comm/channel.h"
#include "grace/cost/cost.h"

namespace grace {

// One (token, expert) on its way.
struct WireAssignment {
  std::uint16_t expert = 0;
  std::uint16_t local = 0;  // index of the device that serves it, inside its node
  float weight = 0;         // the gate's; travels where results are reduced, else it is 0 on arrival
};

// One hidden vector and its assignments, by ascending expert. Views.
struct Parcel {
  std::int32_t row = 0;  // the token's, on the rank that it started from
  std::span<const WireAssignment> assignments;
  const float* x = nullptr;  // [H]
};

// What every message of a hop keeps to.
struct WireFormat {
  int hidden_size = 0;
  int num_experts = 0;
  Combine combine = Combine::kExact;
  Wire wire = Wire::kF32;
  bool padding = false;   // rows of -1 only fill a message up; they are skipped
  bool unwanted = false;  // vectors that nobody wants travel too
};

// REQUIRES: the parcel has an assignment, or the format lets unwanted vectors travel.
void append_parcel(const WireFormat& format, const Parcel& parcel, MessageBuffer& message);

// The parcels of many messages, in the order in which they were read. x points into the messages, or, where
// values travel as bf16, into the list.
class ParcelList {
 public:
  std::size_t size() const { return entries_.size(); }
  Parcel operator[](std::size_t i) const {
    const Entry& entry = entries_[i];
    const float* x = entry.x != nullptr ? entry.x : values_.data() + entry.value;
    return {entry.row, std::span(assignments_).subspan(entry.first, entry.count), x};
  }
  void clear();
  void add(const Parcel& parcel);
  // The same with a vector of bf16 values, [size], in place of parcel.x.
  void add(const Parcel& parcel, const std::byte* bf16, std::size_t size);

 private:
  struct Entry {
    std::int32_t row;
    std::size_t first, count;
    const float* x;
    std::size_t value;
  };
  std::vector<Entry> entries_;
  std::vector<WireAssignment> assignments_;
  std::vector<float> values_;
};

// Reads the message of rank `source` and appends its parcels. Errors: peer_lost, with the byte, for a message
// that is cut short, has a negative row, no experts where some must be, more than there are, experts that do
// not ascend, or one outside [0, num_experts). REQUIRES: message is aligned to 4 bytes.
Status read_parcels(const WireFormat& format, std::span<const std::byte> message, int source,
                    ParcelList& parcels);

}  // namespace grace
