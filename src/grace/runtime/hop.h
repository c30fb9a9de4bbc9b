// One exchange of hidden vectors among a group of ranks, and the way back of their results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/comm/channel.h"
#include "grace/runtime/context.h"
#include "grace/runtime/messages.h"

namespace grace {

// Used layer after layer: clear, add, send; when they have arrived, answer; when the answers are home,
// result. Messages between ranks that share memory are read where they were written. Thread-compatible;
// buffers are kept.
class Hop {
 public:
  // group: ascending ranks, this one among them. The context must outlive it. Collective, as Transport::open.
  Hop(const RankContext& context, std::vector<int> group);
  const std::vector<int>& group() const { return there_->group(); }
  // This rank's place in the group.
  std::size_t own() const { return there_->own(); }

  void clear();
  // Queues a vector for the rank at `position`; which one of those it is. REQUIRES: position is not own().
  std::size_t add(std::size_t position, const Parcel& parcel);
  // Sends what was added, and adds the bytes to `sent`. Errors here and below: the transport's; peer_lost for
  // what another rank sends that cannot be.
  Status send(LevelBytes& sent);
  // Whether the others' vectors are here; moves what can be moved, and waits only if it should.
  Result<bool> arrived(bool wait);
  // What came, by ascending position. Stays until the next clear(). REQUIRES: arrived().
  const ParcelList& parcels() const { return parcels_; }

  // Rows of results that go back for a parcel: one for each assignment where results are exact, else one.
  std::size_t rows_of(const Parcel& parcel) const {
    return context_.combine == Combine::kExact ? parcel.assignments.size() : 1;
  }
  // Returns the results of all parcels(), in their order. results: [rows, H].
  Status answer(std::span<const float> results, LevelBytes& sent);
  // Whether all answers are here, as arrived().
  Result<bool> answered(bool wait);
  // [rows, H] what came back for a vector that was added. Stays until the next answer(). REQUIRES:
  // answered().
  const float* result(std::size_t position, std::size_t number) const;

 private:
  Status pad_messages();
  void put_rows(std::span<const float> rows, MessageBuffer& message) const;
  void put_zeros(std::size_t rows, MessageBuffer& message) const;
  Status begin(Channel& channel, std::span<const std::int64_t> header_bytes, LevelBytes& sent);
  Status read();
  Status read_answers();

  const RankContext& context_;
  WireFormat format_;
  std::size_t hidden_;
  std::unique_ptr<Channel> there_, back_;
  std::vector<std::int64_t> header_bytes_;           // [group]
  std::vector<std::vector<std::size_t>> first_row_;  // [group][added + 1] of each vector's results
  std::size_t padded_to_ = 0;                        // vectors of each message
  bool was_read_ = false, were_answers_read_ = false;
  ParcelList parcels_;
  std::vector<std::size_t> parcels_begin_;   // [group + 1] in parcels_, by where it came from
  std::vector<std::int64_t> sent_before_;    // [ranks] to each, before the present exchange
  std::vector<std::vector<float>> widened_;  // [group] the answers, where they travelled as bf16
};

}  // namespace grace
