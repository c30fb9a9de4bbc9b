#include "grace/runtime/messages.h"

#include <cstring>
#include <string>

#include "grace/base/check.h"
#include "grace/runtime/wire_values.h"

namespace grace {
namespace {

static_assert(kBytesPerVectorHeader == 2 * sizeof(std::int32_t) &&
                  kBytesPerAssignmentHeader == 2 * sizeof(std::uint16_t) &&
                  kBytesPerGateWeight == sizeof(float),
              "the layout below has these sizes");

template <typename T>
void put(std::byte*& to, T value) {
  std::memcpy(to, &value, sizeof value);
  to += sizeof value;
}

template <typename T>
T take(const std::byte*& from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  from += sizeof value;
  return value;
}

std::size_t assignment_bytes(const WireFormat& format) {
  return static_cast<std::size_t>(kBytesPerAssignmentHeader +
                                  (format.combine == Combine::kReduced ? kBytesPerGateWeight : 0));
}

std::size_t vector_bytes_of(const WireFormat& format) {
  return static_cast<std::size_t>(format.hidden_size * bytes_per_value(format.wire));
}

}  // namespace

void append_parcel(const WireFormat& format, const Parcel& parcel, MessageBuffer& message) {
  GRACE_CHECK(format.unwanted || !parcel.assignments.empty(), "a vector that nobody wants");
  std::byte* to =
      message.append(static_cast<std::size_t>(kBytesPerVectorHeader) +
                     parcel.assignments.size() * assignment_bytes(format) + vector_bytes_of(format));
  put(to, parcel.row);
  put(to, static_cast<std::int32_t>(parcel.assignments.size()));
  for (const WireAssignment& assignment : parcel.assignments) {
    put(to, assignment.expert);
    put(to, assignment.local);
  }
  if (format.combine == Combine::kReduced)
    for (const WireAssignment& assignment : parcel.assignments) put(to, assignment.weight);
  put_values(format.wire, {parcel.x, static_cast<std::size_t>(format.hidden_size)}, to);
}

void ParcelList::clear() {
  entries_.clear();
  assignments_.clear();
  values_.clear();
}

void ParcelList::add(const Parcel& parcel) {
  entries_.push_back({parcel.row, assignments_.size(), parcel.assignments.size(), parcel.x, 0});
  assignments_.insert(assignments_.end(), parcel.assignments.begin(), parcel.assignments.end());
}

void ParcelList::add(const Parcel& parcel, const std::byte* bf16, std::size_t size) {
  add({parcel.row, parcel.assignments, nullptr});
  entries_.back().value = values_.size();
  values_.resize(values_.size() + size);
  take_values(Wire::kBf16, bf16, {values_.data() + entries_.back().value, size});
}

Status read_parcels(const WireFormat& format, std::span<const std::byte> message, int source,
                    ParcelList& parcels) {
  GRACE_CHECK(reinterpret_cast<std::uintptr_t>(message.data()) % alignof(float) == 0,
              "a message that is not aligned");
  const auto fault = [&](std::size_t byte, const std::string& what) {
    return peer_lost("rank " + std::to_string(source) + ": byte " + std::to_string(byte) +
                     " of its dispatch message: " + what);
  };
  const std::size_t vector_bytes = vector_bytes_of(format);
  static thread_local std::vector<WireAssignment> assignments;  // of one parcel
  const std::byte* at = message.data();
  const std::byte* const end = at + message.size();
  while (at < end) {
    const auto start = static_cast<std::size_t>(at - message.data());
    if (end - at < kBytesPerVectorHeader) return fault(start, "a header that is cut short");
    const auto row = take<std::int32_t>(at);
    const auto count = take<std::int32_t>(at);
    const bool fills = format.padding && row == -1;
    if (row < 0 && !fills) return fault(start, "row " + std::to_string(row) + " is below 0");
    const int fewest = format.unwanted ? 0 : 1;
    if (count < fewest || count > format.num_experts)
      return fault(start, std::to_string(count) + " experts are outside [" + std::to_string(fewest) + ", " +
                              std::to_string(format.num_experts) + "]");
    const std::size_t rest = static_cast<std::size_t>(count) * assignment_bytes(format) + vector_bytes;
    const auto left = static_cast<std::size_t>(end - at);
    if (left < rest) return fault(start, std::to_string(left) + " bytes are left of " + std::to_string(rest));
    assignments.assign(static_cast<std::size_t>(count), {});
    int before = -1;
    for (WireAssignment& assignment : assignments) {
      const auto byte = static_cast<std::size_t>(at - message.data());
      assignment.expert = take<std::uint16_t>(at);
      assignment.local = take<std::uint16_t>(at);
      if (assignment.expert >= format.num_experts)
        return fault(byte, "expert " + std::to_string(assignment.expert) + " is outside [0, " +
                               std::to_string(format.num_experts) + ")");
      if (assignment.expert <= before)
        return fault(
            byte, "expert " + std::to_string(assignment.expert) + " after expert " + std::to_string(before));
      before = assignment.expert;
    }
    if (format.combine == Combine::kReduced)
      for (WireAssignment& assignment : assignments) assignment.weight = take<float>(at);
    if (!fills && format.wire == Wire::kF32)
      parcels.add({row, assignments, reinterpret_cast<const float*>(at)});
    else if (!fills)
      parcels.add({row, assignments, nullptr}, at, static_cast<std::size_t>(format.hidden_size));
    at += vector_bytes;
  }
  return {};
}

}  // namespace grace
