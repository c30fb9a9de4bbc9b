#include "grace/runtime/hop.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "grace/base/check.h"
#include "grace/runtime/wire_values.h"

namespace grace {

Hop::Hop(const RankContext& context, std::vector<int> group)
    : context_(context),
      format_{context.config.hidden_size,
              context.config.num_experts,
              context.combine,
              context.wire,
              context.dispatch == Dispatch::kPadded,
              context.dispatch == Dispatch::kAllGather},
      hidden_(static_cast<std::size_t>(context.config.hidden_size)),
      there_(context.transport.open(group, Reading::kInPlace)),
      back_(context.transport.open(group, Reading::kInPlace)),
      first_row_(group.size()),
      widened_(group.size()) {
  clear();
}

void Hop::clear() {
  for (std::size_t i = 0; i < group().size(); ++i) there_->outgoing(i).clear();
  for (auto& rows : first_row_) rows.assign(1, 0);
  header_bytes_.assign(group().size(), 0);
}

std::size_t Hop::add(std::size_t position, const Parcel& parcel) {
  GRACE_CHECK(position != own(), "nothing travels to the own rank");
  MessageBuffer& message = there_->outgoing(position);
  const std::size_t before = message.size();
  append_parcel(format_, parcel, message);
  header_bytes_[position] += static_cast<std::int64_t>(message.size() - before) -
                             context_.config.hidden_size * bytes_per_value(format_.wire);
  std::vector<std::size_t>& first_row = first_row_[position];
  first_row.push_back(first_row.back() + rows_of(parcel));
  return first_row.size() - 2;
}

Status Hop::send(LevelBytes& sent) {
  if (format_.padding) GRACE_TRY(pad_messages());
  was_read_ = false;
  return begin(*there_, header_bytes_, sent);
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
  for (std::size_t i = 0; i < group().size(); ++i) {
    if (i == own()) continue;
    MessageBuffer& message = there_->outgoing(i);
    const std::size_t before = message.size();
    const std::size_t missing = padded_to_ - (first_row_[i].size() - 1);
    for (std::size_t n = 0; n < missing; ++n)
      append_parcel(format_, {-1, std::span(&nobody, 1), nothing.data()}, message);
    header_bytes_[i] += static_cast<std::int64_t>(message.size() - before) -
                        static_cast<std::int64_t>(missing * hidden_) * bytes_per_value(format_.wire);
  }
  return {};
}

Result<bool> Hop::arrived(bool wait) {
  if (was_read_) return true;
  if (wait) GRACE_TRY(there_->finish());
  if (!wait && !GRACE_TRY(there_->poll())) return false;
  was_read_ = true;
  GRACE_TRY(read());
  return true;
}

Status Hop::read() {
  parcels_.clear();
  parcels_begin_.assign(1, 0);
  for (std::size_t i = 0; i < group().size(); ++i) {
    const Status status = read_parcels(format_, there_->received(i), group()[i], parcels_);
    if (!status.ok()) return lost(context_, status.error().message);
    parcels_begin_.push_back(parcels_.size());
  }
  return {};
}

Status Hop::answer(std::span<const float> results, LevelBytes& sent) {
  std::size_t parcel = 0, row = 0;
  for (std::size_t i = 0; i < group().size(); ++i) {
    MessageBuffer& message = back_->outgoing(i);
    message.clear();
    const std::size_t first = row;
    for (; parcel < parcels_begin_[i + 1]; ++parcel) row += rows_of(parcels_[parcel]);
    GRACE_CHECK(row * hidden_ <= results.size(), "a result for each vector that arrived");
    put_rows(results.subspan(first * hidden_, (row - first) * hidden_), message);
    if (!format_.padding || i == own()) continue;
    put_zeros(padded_to_ - (row - first), message);
  }
  GRACE_CHECK(results.size() == row * hidden_, "a result for each vector that arrived");
  were_answers_read_ = false;
  return begin(*back_, {}, sent);
}

void Hop::put_rows(std::span<const float> rows, MessageBuffer& message) const {
  if (rows.empty()) return;
  const std::size_t bytes = rows.size() * static_cast<std::size_t>(bytes_per_value(format_.wire));
  put_values(format_.wire, rows, message.append(bytes));
}

void Hop::put_zeros(std::size_t rows, MessageBuffer& message) const {
  const std::size_t bytes = rows * hidden_ * static_cast<std::size_t>(bytes_per_value(format_.wire));
  if (bytes > 0) std::memset(message.append(bytes), 0, bytes);  // of f32 and of bf16
}

Result<bool> Hop::answered(bool wait) {
  if (were_answers_read_) return true;
  if (wait) GRACE_TRY(back_->finish());
  if (!wait && !GRACE_TRY(back_->poll())) return false;
  were_answers_read_ = true;
  GRACE_TRY(read_answers());
  return true;
}

Status Hop::read_answers() {
  const auto value_bytes = static_cast<std::size_t>(bytes_per_value(format_.wire));
  for (std::size_t i = 0; i < group().size(); ++i) {
    const std::span<const std::byte> bytes = back_->received(i);
    const std::size_t asked = i == own() ? 0 : format_.padding ? padded_to_ : first_row_[i].back();
    if (bytes.size() != asked * hidden_ * value_bytes)
      return lost(context_, "rank " + std::to_string(group()[i]) + " returns " +
                                std::to_string(bytes.size()) + " bytes for " + std::to_string(asked) +
                                " vectors");
    if (format_.wire == Wire::kF32) continue;
    widened_[i].resize(asked * hidden_);
    take_values(format_.wire, bytes.data(), widened_[i]);
  }
  return {};
}

const float* Hop::result(std::size_t position, std::size_t number) const {
  const float* rows = format_.wire == Wire::kF32
                          ? reinterpret_cast<const float*>(back_->received(position).data())
                          : widened_[position].data();
  return rows + first_row_[position][number] * hidden_;
}

// header_bytes: [group], the part that is no payload; none where all is.
Status Hop::begin(Channel& channel, std::span<const std::int64_t> header_bytes, LevelBytes& sent) {
  Transport& transport = context_.transport;
  sent_before_ = transport.bytes_sent_to();
  GRACE_TRY(channel.begin());
  const NodeId own_node = context_.cluster.node_of(context_.device());
  for (std::size_t i = 0; i < group().size(); ++i) {
    const auto rank = static_cast<std::size_t>(group()[i]);
    const std::int64_t bytes = transport.bytes_sent_to()[rank] - sent_before_[rank];
    GRACE_CHECK(bytes == static_cast<std::int64_t>(channel.outgoing(i).size()),
                "the transport counts other bytes than it was handed");
    const bool same_node = context_.cluster.node_of(DeviceId{group()[i]}) == own_node;
    const std::int64_t header = header_bytes.empty() ? 0 : header_bytes[i];
    (same_node ? sent.intra_node_payload : sent.cross_node_payload) += bytes - header;
    (same_node ? sent.intra_node_header : sent.cross_node_header) += header;
  }
  return {};
}

}  // namespace grace
