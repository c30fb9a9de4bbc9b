#include "grace/interop/import/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "grace/base/check.h"
#include "grace/base/limits.h"

namespace grace {
namespace {

constexpr std::size_t kMaxWarnings = 40;  // a wrong source makes every layer wrong
constexpr int kMaxPerToken = 1024;

// The number that an engine meant where it kept ids in 16 bits.
std::string wrapped(std::int64_t id) {
  if (id >= -1 || id < std::numeric_limits<std::int16_t>::min()) return "";
  return fmt::format(" ({} in 16 bits?)", id + (1 << 16));
}

}  // namespace

Status ImportSession::begin_tokens(int num_experts, int experts_per_token, std::vector<int> decoder_layers) {
  GRACE_CHECK(!writer_ && !profile_, "tokens begin once");
  if (options_.num_experts > 0 && num_experts > 0 && options_.num_experts != num_experts)
    return invalid_input(
        fmt::format("--num-experts: {}, but {} says {}", options_.num_experts, source_, num_experts));
  const int experts = num_experts > 0 ? num_experts : options_.num_experts;
  if (experts < 0 || experts > kMaxExperts)
    return invalid_input(fmt::format("{}: {} experts are outside [1, {}]", source_, experts, kMaxExperts));
  const int most = std::min(kMaxPerToken, experts > 0 ? experts : kMaxExperts);
  if (experts_per_token < 1 || experts_per_token > most)
    return invalid_input(
        fmt::format("{}: {} experts a token are outside [1, {}]", source_, experts_per_token, most));
  if (decoder_layers.empty()) return invalid_input(fmt::format("{}: there is no MoE layer", source_));
  for (std::size_t i = 0; i < decoder_layers.size(); ++i) {
    const int lowest = i == 0 ? 0 : decoder_layers[i - 1] + 1;
    if (decoder_layers[i] < lowest || decoder_layers[i] > kMaxDecoderLayer)
      return invalid_input(fmt::format("{}: MoE layer {} is decoder layer {}, outside [{}, {}]", source_, i,
                                       decoder_layers[i], lowest, kMaxDecoderLayer));
  }
  known_experts_ = experts > 0;
  bound_ = known_experts_ ? experts : kMaxExperts;
  last_row_.assign(static_cast<std::size_t>(bound_), -1);
  layer_sums_.assign(decoder_layers.size(), 0);
  decoder_layers_ = decoder_layers;
  summary_.experts_per_token = experts_per_token;
  const std::string model = options_.model.empty() ? source_ : options_.model;
  writer_ = GRACE_TRY(TraceWriter::create(
      out_, {model, source_, known_experts_ ? experts : 0, experts_per_token, std::move(decoder_layers)}));
  return {};
}

Status ImportSession::begin_sequence() {
  GRACE_CHECK(writer_.has_value(), "tokens have begun");
  pending_sequence_ = true;
  return {};
}

Error ImportSession::row_error(std::int64_t id, std::string_view what, const TokenPlace& place,
                               std::int64_t token, std::size_t layer) const {
  const std::string line = place.line_of_layer.empty() ? "" : fmt::format(":{}", place.line_of_layer[layer]);
  return invalid_input(fmt::format("{}{}: token {}, layer {}: expert {} {}", place.place, line,
                                   place.first_token + token, decoder_layers_[layer], id, what));
}

Status ImportSession::check_row(std::span<const std::int32_t> row, const TokenPlace& place,
                                std::int64_t token, std::size_t layer) {
  ++row_;
  std::int64_t routed = 0;
  for (const std::int32_t id : row) {
    if (id == kNotRecorded) continue;
    if (id < 0 || id >= bound_)
      return row_error(id, fmt::format("is outside [0, {}){}", bound_, wrapped(id)), place, token, layer);
    std::int64_t& last = last_row_[static_cast<std::size_t>(id)];
    if (last == row_) return row_error(id, "is chosen twice", place, token, layer);
    last = row_;
    largest_ = std::max(largest_, static_cast<int>(id));
    ++routed;
  }
  layer_sums_[layer] += routed;
  return {};
}

Status ImportSession::add_tokens(std::span<const std::int32_t> ids, Phase phase, const TokenPlace& place) {
  GRACE_CHECK(writer_.has_value(), "tokens have begun");
  const auto width = static_cast<std::size_t>(summary_.experts_per_token);
  const std::size_t per_token = decoder_layers_.size() * width;
  GRACE_CHECK(ids.size() % per_token == 0, "whole tokens");
  ids_.clear();
  for (std::size_t at = 0, token = 0; at < ids.size(); at += per_token, ++token) {
    const std::span<const std::int32_t> choices = ids.subspan(at, per_token);
    const auto absent = std::ranges::count(choices, kNotRecorded);
    if (absent == std::ssize(choices)) {
      ++summary_.tokens_left_out;
      continue;
    }
    summary_.not_routed += absent;
    for (std::size_t layer = 0; layer < decoder_layers_.size(); ++layer)
      GRACE_TRY(
          check_row(choices.subspan(layer * width, width), place, static_cast<std::int64_t>(token), layer));
    for (const std::int32_t id : choices)
      ids_.push_back(static_cast<std::uint16_t>(id));  // -1 becomes kNotRouted
  }
  static_assert(static_cast<std::uint16_t>(kNotRecorded) == kNotRouted);
  if (ids_.empty()) return {};
  if (std::exchange(pending_sequence_, false)) writer_->begin_sequence();
  return writer_->add_tokens(ids_, phase);
}

Status ImportSession::set_loads(LoadProfile profile) {
  GRACE_CHECK(!writer_ && !profile_, "loads come once, and alone");
  if (options_.num_experts > 0 && profile.num_experts != options_.num_experts)
    return invalid_input(fmt::format("--num-experts: {}, but {} counts {}", options_.num_experts, source_,
                                     profile.num_experts));
  profile.model = !options_.model.empty() ? options_.model : profile.model.empty() ? source_ : profile.model;
  if (profile.source.empty()) profile.source = source_;
  if (options_.experts_per_token > 0) profile.experts_per_token = options_.experts_per_token;
  for (const std::string& found : violations(profile))
    return invalid_input(fmt::format("{}: {}", source_, found));
  for (std::size_t layer = 0; layer < profile.loads.size(); ++layer) {
    for (std::size_t expert = 0; expert < profile.loads[layer].size(); ++expert) {
      std::int64_t& load = profile.loads[layer][expert];
      if (load % options_.same_tokens != 0)
        return invalid_input(
            fmt::format("--same-tokens: layer {}, expert {}: {} assignments do not divide by {}",
                        profile.decoder_layers[layer], expert, load, options_.same_tokens));
      load /= options_.same_tokens;
    }
  }
  decoder_layers_ = profile.decoder_layers;
  profile_ = std::move(profile);
  return {};
}

void ImportSession::warn(std::string line) {
  std::vector<std::string>& lines = summary_.warnings;
  if (lines.size() < kMaxWarnings && std::ranges::find(lines, line) == lines.end())
    lines.push_back(std::move(line));
}

Status ImportSession::read_bytes(std::int64_t bytes) {
  done_bytes_ = std::min(done_bytes_ + bytes, total_bytes_);
  if (options_.progress && !options_.progress(done_bytes_, total_bytes_))
    return io_error("stopped; nothing was written");
  return {};
}

// In every layer each token makes the same number of choices: where a recorder counted otherwise, say so.
void ImportSession::warn_of_sums(std::span<const std::int64_t> sums) {
  std::vector<std::int64_t> sorted(sums.begin(), sums.end());
  std::erase(sorted, 0);
  if (sorted.empty()) return;
  std::ranges::sort(sorted);
  const std::int64_t usual = sorted[(sorted.size() - 1) / 2];
  for (std::size_t layer = 0; layer < sums.size(); ++layer) {
    const std::int64_t sum = sums[layer];
    if (sum == usual) continue;
    if (sum == 0) {
      warn(
          fmt::format("layer {} has no assignment, other MoE layers have {}", decoder_layers_[layer], usual));
    } else if (sum % usual == 0) {
      warn(fmt::format(
          "layer {} has {} assignments, {} times the {} of other layers: were several layers or ranks "
          "counted into it?",
          decoder_layers_[layer], sum, sum / usual, usual));
    } else {
      warn(fmt::format(
          "layer {} has {} assignments, other layers have {}: were tokens dropped or padded there?",
          decoder_layers_[layer], sum, usual));
    }
  }
}

Status ImportSession::finish_tokens() {
  if (largest_ < 0) return invalid_input(fmt::format("{}: no token chose an expert", source_));
  summary_.has_tokens = true;
  summary_.num_experts = known_experts_ ? bound_ : largest_ + 1;
  summary_.moe_layers = static_cast<int>(decoder_layers_.size());
  summary_.tokens = writer_->num_tokens();
  summary_.sequences = writer_->num_sequences();
  summary_.assignments = std::accumulate(layer_sums_.begin(), layer_sums_.end(), std::int64_t{0});
  if (!known_experts_)
    warn(fmt::format(
        "the number of experts is not in the source: taken as the largest id + 1, {}; --num-experts says it",
        summary_.num_experts));
  if (summary_.experts_per_token > summary_.num_experts)
    return invalid_input(fmt::format("{}: {} experts a token, but only ids below {}: say --num-experts",
                                     source_, summary_.experts_per_token, summary_.num_experts));
  if (summary_.tokens_left_out > 0)
    warn(fmt::format("{} tokens chose nothing (padding, or answered from a cache) and are left out",
                     summary_.tokens_left_out));
  if (summary_.not_routed > 0)
    warn(fmt::format("{} choices are marked as not routed", summary_.not_routed));
  else
    warn_of_sums(layer_sums_);
  return writer_->finish(summary_.num_experts);
}

Status ImportSession::finish_loads() {
  const LoadProfile& profile = *profile_;
  summary_.num_experts = profile.num_experts;
  summary_.experts_per_token = profile.experts_per_token;
  summary_.moe_layers = profile.num_moe_layers();
  std::vector<std::int64_t> sums;
  for (const std::vector<std::int64_t>& loads : profile.loads) {
    sums.push_back(std::accumulate(loads.begin(), loads.end(), std::int64_t{0}));
    if (profile.experts_per_token > 0 && sums.back() % profile.experts_per_token != 0)
      warn(fmt::format("layer {} has {} assignments, no multiple of {} a token: padding or dropped tokens?",
                       profile.decoder_layers[sums.size() - 1], sums.back(), profile.experts_per_token));
  }
  summary_.assignments = std::accumulate(sums.begin(), sums.end(), std::int64_t{0});
  if (summary_.assignments == 0) warn("all counts are zero: nothing was recorded");
  warn_of_sums(sums);
  return write_load_profile(out_, profile);
}

Result<ImportSummary> ImportSession::finish() {
  if (!writer_ && !profile_) return invalid_input(fmt::format("{}: nothing was recorded in it", source_));
  GRACE_TRY(writer_ ? finish_tokens() : finish_loads());
  return std::move(summary_);
}

}  // namespace grace
