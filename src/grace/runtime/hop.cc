#include "grace/runtime/hop.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "grace/base/check.h"
#include "grace/runtime/stopwatch.h"

namespace grace {

Hop::Hop(const RankContext& context, std::vector<int> group)
    : context_(context),
      group_(std::move(group)),
      format_{context.config.hidden_size, context.config.num_experts, context.combine,
              context.dispatch == Dispatch::kPadded, context.dispatch == Dispatch::kAllGather},
      hidden_(static_cast<std::size_t>(context.config.hidden_size)) {
  const auto own = std::ranges::find(group_, context.transport.rank());
  GRACE_CHECK(own != group_.end(), "a rank is in its own group");
  own_ = static_cast<std::size_t>(own - group_.begin());
  message_.resize(group_.size());
  first_row_.resize(group_.size());
  clear();
}

void Hop::clear() {
  for (auto& message : message_) message.clear();
  for (auto& rows : first_row_) rows.assign(1, 0);
  header_bytes_.assign(group_.size(), 0);
}

std::size_t Hop::add(std::size_t position, const Parcel& parcel) {
  GRACE_CHECK(position != own_, "nothing travels to the own rank");
  std::vector<std::byte>& message = message_[position];
  const std::size_t before = message.size();
  append_parcel(format_, parcel, message);
  header_bytes_[position] += static_cast<std::int64_t>(message.size() - before - hidden_ * sizeof(float));
  std::vector<std::size_t>& first_row = first_row_[position];
  first_row.push_back(first_row.back() + rows_of(parcel));
  return first_row.size() - 2;
}

Status Hop::there(HopCost& cost) {
  arrived_.clear();
  arrived_begin_.assign(1, 0);
  if (group_.size() == 1) {
    arrived_begin_.push_back(0);
    return {};
  }
  if (format_.padding) GRACE_TRY(pad_messages());
  send_.clear();
  std::vector<std::size_t> offsets{0};
  for (const std::vector<std::byte>& message : message_) {
    send_.insert(send_.end(), message.begin(), message.end());
    offsets.push_back(send_.size());
  }
  GRACE_TRY(exchange(send_, offsets, header_bytes_, received_, received_offsets_, cost));
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const auto message = std::span<const std::byte>(received_).subspan(
        received_offsets_[i], received_offsets_[i + 1] - received_offsets_[i]);
    Status read = read_parcels(format_, message, group_[i], arrived_);
    if (!read.ok()) {
      context_.transport.abort(read.error().message);
      return read;
    }
    arrived_begin_.push_back(arrived_.size());
  }
  return {};
}

// Every message to another rank as long as the longest of all ranks.
Status Hop::pad_messages() {
  std::uint64_t longest = 0;
  for (const auto& rows : first_row_) longest = std::max(longest, std::uint64_t{rows.size() - 1});
  const auto all = GRACE_TRY(context_.transport.all_gather(std::as_bytes(std::span(&longest, 1))));
  for (const std::vector<std::byte>& theirs : all) {
    std::uint64_t length = 0;
    GRACE_CHECK(theirs.size() == sizeof length, "every rank tells one length");
    std::memcpy(&length, theirs.data(), sizeof length);
    longest = std::max(longest, length);
  }
  padded_to_ = longest;
  const std::vector<float> nothing(hidden_, 0.0F);
  const WireAssignment nobody;
  for (std::size_t i = 0; i < group_.size(); ++i) {
    if (i == own_) continue;
    const std::size_t before = message_[i].size();
    const std::size_t missing = padded_to_ - (first_row_[i].size() - 1);
    for (std::size_t n = 0; n < missing; ++n)
      append_parcel(format_, {-1, std::span(&nobody, 1), nothing.data()}, message_[i]);
    header_bytes_[i] +=
        static_cast<std::int64_t>(message_[i].size() - before - missing * hidden_ * sizeof(float));
  }
  return {};
}

// Likewise the answers; offsets, in and out, are those of the results.
std::span<const float> Hop::pad_results(std::span<const float> results, std::vector<std::size_t>& offsets) {
  padded_results_.clear();
  std::vector<std::size_t> padded{0};
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const std::size_t first = offsets[i] / sizeof(float), last = offsets[i + 1] / sizeof(float);
    padded_results_.insert(padded_results_.end(), results.begin() + static_cast<std::ptrdiff_t>(first),
                           results.begin() + static_cast<std::ptrdiff_t>(last));
    if (i != own_) padded_results_.resize(padded.back() / sizeof(float) + padded_to_ * hidden_, 0.0F);
    padded.push_back(padded_results_.size() * sizeof(float));
  }
  offsets = padded;
  return padded_results_;
}

Status Hop::back(std::span<const float> results, HopCost& cost) {
  if (group_.size() == 1) return {};
  std::vector<std::size_t> offsets{0};
  std::size_t parcel = 0, rows = 0;
  for (std::size_t i = 0; i < group_.size(); ++i) {
    for (; parcel < arrived_begin_[i + 1]; ++parcel) rows += rows_of(arrived_[parcel]);
    offsets.push_back(rows * hidden_ * sizeof(float));
  }
  GRACE_CHECK(results.size() == rows * hidden_, "a result for each vector that arrived");
  if (format_.padding) results = pad_results(results, offsets);
  const std::vector<std::int64_t> no_headers(group_.size(), 0);
  GRACE_TRY(exchange(std::as_bytes(results), offsets, no_headers, returned_, returned_offsets_, cost));
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const std::size_t bytes = returned_offsets_[i + 1] - returned_offsets_[i];
    const std::size_t asked = i == own_ ? 0 : format_.padding ? padded_to_ : first_row_[i].back();
    if (bytes == asked * hidden_ * sizeof(float)) continue;
    const std::string what = "rank " + std::to_string(group_[i]) + " returns " + std::to_string(bytes) +
                             " bytes for " + std::to_string(asked) + " vectors";
    return lost(context_, what);
  }
  return {};
}

const float* Hop::result(std::size_t position, std::size_t number) const {
  return reinterpret_cast<const float*>(returned_.data() + returned_offsets_[position]) +
         first_row_[position][number] * hidden_;
}

// header_bytes: [group], the part that is no payload.
Status Hop::exchange(std::span<const std::byte> send, std::span<const std::size_t> offsets,
                     std::span<const std::int64_t> header_bytes, std::vector<std::byte>& received,
                     std::vector<std::size_t>& received_offsets, HopCost& cost) const {
  Transport& transport = context_.transport;
  const std::vector<std::int64_t> before = transport.bytes_sent_to();
  {
    const Stopwatch wait(cost.wait_s);
    GRACE_TRY(transport.all_to_all_among(group_, send, offsets, received, received_offsets));
  }
  const NodeId own_node = context_.cluster.node_of(context_.device());
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const auto rank = static_cast<std::size_t>(group_[i]);
    const std::int64_t sent = transport.bytes_sent_to()[rank] - before[rank];
    GRACE_CHECK(sent == static_cast<std::int64_t>(offsets[i + 1] - offsets[i]),
                "the transport counts other bytes than it was handed");
    const bool same_node = context_.cluster.node_of(DeviceId{group_[i]}) == own_node;
    (same_node ? cost.bytes.intra_node_payload : cost.bytes.cross_node_payload) += sent - header_bytes[i];
    (same_node ? cost.bytes.intra_node_header : cost.bytes.cross_node_header) += header_bytes[i];
  }
  return {};
}

}  // namespace grace
