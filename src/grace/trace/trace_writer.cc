#include "grace/trace/trace_writer.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "grace/base/check.h"
#include "grace/base/limits.h"
#include "grace/files/json_file.h"

namespace grace {
namespace {

constexpr int kMaxExpertsOfU8 = 255;  // 255 itself stands for "not routed"
constexpr std::uint8_t kNotRoutedU8 = 255;
constexpr std::int64_t kMaxBytes =
    std::numeric_limits<std::int64_t>::max() / 4;  // of one tensor, so that sums fit

std::string_view name_of_phase(Phase phase) {
  return phase == Phase::kPrefill ? "prefill" : phase == Phase::kDecode ? "decode" : "mixed";
}

}  // namespace

TraceWriter::TraceWriter(AtomicFile file, TraceHead head)
    : file_(std::move(file)),
      head_(std::move(head)),
      narrow_(head_.num_experts > 0 && head_.num_experts <= kMaxExpertsOfU8) {}

Result<TraceWriter> TraceWriter::create(const std::filesystem::path& path, TraceHead head) {
  GRACE_CHECK(head.num_experts >= 0 && head.num_experts <= kMaxExperts, "experts a trace can have");
  GRACE_CHECK(head.experts_per_token >= 1 && !head.decoder_layers.empty(), "a token chooses");
  TraceWriter writer(GRACE_TRY(AtomicFile::create(path)), std::move(head));
  // The longest header there can be; the one that is written is filled up with spaces.
  constexpr std::int64_t kLongest = kMaxBytes / 16;
  const std::string longest = writer.header_of(kMaxExperts, Phase::kMixed, kLongest, kLongest);
  writer.reserved_ = static_cast<std::int64_t>((sizeof(std::uint64_t) + longest.size() + 7) / 8 * 8);
  GRACE_TRY(
      writer.file_.write(std::vector<std::byte>(static_cast<std::size_t>(writer.reserved_), std::byte{' '})));
  return writer;
}

std::string TraceWriter::header_of(int num_experts, Phase phase, std::int64_t num_sequences,
                                   std::int64_t num_tokens) const {
  const auto layers = static_cast<std::int64_t>(head_.decoder_layers.size());
  const std::int64_t width = narrow_ ? 1 : 2;
  std::int64_t offset = 0;
  Json header = Json::object();
  header["__metadata__"] = {{"format_version", "1"},
                            {"model", head_.model},
                            {"source", head_.source},
                            {"num_experts", std::to_string(num_experts)},
                            {"experts_per_token", std::to_string(head_.experts_per_token)},
                            {"decoder_layers", Json(head_.decoder_layers).dump()},
                            {"phase", std::string(name_of_phase(phase))}};
  const auto add = [&](const char* name, const char* dtype, const std::vector<std::int64_t>& shape,
                       std::int64_t bytes) {
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  // Saturated where only the length of the digits matters.
  std::int64_t bytes = 0;
  const bool over = __builtin_mul_overflow(num_tokens, layers * head_.experts_per_token * width, &bytes);
  if (over || bytes > kMaxBytes) bytes = kMaxBytes;
  add("topk_ids", narrow_ ? "U8" : "U16", {num_tokens, layers, head_.experts_per_token}, bytes);
  add("sequence_offsets", "I64", {num_sequences + 1}, 8 * (num_sequences + 1));
  if (phase == Phase::kMixed) add("prompt_lengths", "I64", {num_sequences}, 8 * num_sequences);
  return header.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void TraceWriter::begin_sequence() {
  offsets_.push_back(num_tokens_);
  prompt_lengths_.push_back(0);
}

Status TraceWriter::add_tokens(std::span<const std::uint16_t> ids, Phase phase) {
  const std::size_t per_token =
      head_.decoder_layers.size() * static_cast<std::size_t>(head_.experts_per_token);
  GRACE_CHECK(ids.size() % per_token == 0 && !offsets_.empty(), "whole tokens of a sequence");
  const auto count = static_cast<std::int64_t>(ids.size() / per_token);
  if (phase == Phase::kPrefill) {
    GRACE_CHECK(num_tokens_ - offsets_.back() == prompt_lengths_.back(), "a sequence's prompt comes first");
    prompt_lengths_.back() += count;
    num_prompt_tokens_ += count;
  }
  num_tokens_ += count;
  if (!narrow_) return file_.write(std::as_bytes(ids));
  narrowed_.resize(ids.size());
  std::ranges::transform(ids, narrowed_.begin(), [](std::uint16_t id) {
    return id == kNotRouted ? kNotRoutedU8 : static_cast<std::uint8_t>(id);
  });
  return file_.write(std::as_bytes(std::span(narrowed_)));
}

Status TraceWriter::finish(int num_experts) {
  GRACE_CHECK(num_experts >= 1 && (head_.num_experts == 0 || head_.num_experts == num_experts),
              "the head's experts");
  const Phase phase = num_prompt_tokens_ == num_tokens_ ? Phase::kPrefill
                      : num_prompt_tokens_ == 0         ? Phase::kDecode
                                                        : Phase::kMixed;
  const std::int64_t sequences = num_sequences();
  std::vector<std::int64_t> offsets = offsets_;
  offsets.push_back(num_tokens_);
  GRACE_TRY(file_.write(std::as_bytes(std::span(offsets))));
  if (phase == Phase::kMixed) GRACE_TRY(file_.write(std::as_bytes(std::span(prompt_lengths_))));
  std::string header = header_of(num_experts, phase, sequences, num_tokens_);
  const auto room = static_cast<std::size_t>(reserved_) - sizeof(std::uint64_t);
  GRACE_CHECK(header.size() <= room, "the header fits into what was reserved");
  header.resize(room, ' ');
  const std::uint64_t length = room;
  GRACE_TRY(file_.write_at(0, std::as_bytes(std::span(&length, 1))));
  GRACE_TRY(file_.write_at(sizeof(length), std::as_bytes(std::span(header.data(), header.size()))));
  return file_.commit();
}

}  // namespace grace
