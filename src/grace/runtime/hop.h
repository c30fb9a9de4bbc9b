// One exchange of hidden vectors among a group of ranks, and the way back of their results.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/runtime/context.h"
#include "grace/runtime/messages.h"

namespace grace {

// The bytes and the waits of one direction, from the transport's own count.
struct HopCost {
  LevelBytes bytes;
  double wait_s = 0;
};

// Used layer after layer: clear, add, there, back, result. `there` and `back` are collective among the group.
// Thread-compatible; buffers are kept.
class Hop {
 public:
  // group: ascending ranks, this one among them. The context must outlive it.
  Hop(const RankContext& context, std::vector<int> group);

  const std::vector<int>& group() const { return group_; }
  // This rank's place in the group.
  std::size_t own() const { return own_; }

  void clear();
  // Queues a vector for the rank at `position`; which one of those it is. REQUIRES: position is not own(),
  // parcel.x stays until there().
  std::size_t add(std::size_t position, const Parcel& parcel);
  // Sends what was added and receives the others'. Errors: the transport's; peer_lost for what cannot be
  // read.
  Status there(HopCost& cost);
  // What came, by ascending position. Stays until the next there().
  const ParcelList& arrived() const { return arrived_; }
  // Rows of results that go back for a parcel: one for each assignment where results are exact, else one.
  std::size_t rows_of(const Parcel& parcel) const {
    return context_.combine == Combine::kExact ? parcel.assignments.size() : 1;
  }
  // Returns the results of all arrived parcels, in their order. results: [rows, H]. Errors: the transport's;
  // peer_lost where another rank returns something else than was asked.
  Status back(std::span<const float> results, HopCost& cost);
  // [rows, H] what came back for a vector that was added. Stays until the next back().
  const float* result(std::size_t position, std::size_t number) const;

 private:
  Status pad_messages();
  std::span<const float> pad_results(std::span<const float> results, std::vector<std::size_t>& offsets);
  Status exchange(std::span<const std::byte> send, std::span<const std::size_t> offsets,
                  std::span<const std::int64_t> header_bytes, std::vector<std::byte>& received,
                  std::vector<std::size_t>& received_offsets, HopCost& cost) const;

  const RankContext& context_;
  std::vector<int> group_;
  std::size_t own_ = 0;
  WireFormat format_;
  std::size_t hidden_;
  std::vector<std::vector<std::byte>> message_;      // [group]
  std::vector<std::int64_t> header_bytes_;           // [group]
  std::vector<std::vector<std::size_t>> first_row_;  // [group][added + 1] of each vector's results
  std::size_t padded_to_ = 0;                        // vectors of each message
  std::vector<float> padded_results_;
  std::vector<std::byte> send_, received_, returned_;
  std::vector<std::size_t> received_offsets_, returned_offsets_;
  ParcelList arrived_;
  std::vector<std::size_t> arrived_begin_;  // [group + 1] in arrived_, by where it came from
};

}  // namespace grace
