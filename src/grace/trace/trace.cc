#include "grace/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/base/check.h"
#include "grace/base/hash.h"
#include "grace/base/rng.h"

namespace grace {
namespace {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from, std::int64_t begin, std::int64_t end) {
  if (!from.empty()) to.insert(to.end(), from.begin() + begin, from.begin() + end);
}

}  // namespace

std::span<const std::uint16_t> Trace::choices(std::int64_t token, MoeOrdinal layer) const {
  const auto row = static_cast<std::size_t>(token) * decoder_layers.size() + layer.idx();
  const auto width = static_cast<std::size_t>(experts_per_token);
  return std::span(topk_ids).subspan(row * width, width);
}

std::span<const float> Trace::weights(std::int64_t token, MoeOrdinal layer) const {
  if (topk_weights.empty()) return {};
  const auto row = static_cast<std::size_t>(token) * decoder_layers.size() + layer.idx();
  const auto width = static_cast<std::size_t>(experts_per_token);
  return std::span(topk_weights).subspan(row * width, width);
}

std::int64_t Trace::prompt_length(int sequence) const {
  const auto s = static_cast<std::size_t>(sequence);
  if (!prompt_lengths.empty()) return prompt_lengths[s];
  return phase == Phase::kPrefill ? sequence_offsets[s + 1] - sequence_offsets[s] : 0;
}

Trace select_sequences(const Trace& trace, std::span<const int> sequences) {
  Trace part;
  part.model = trace.model;
  part.source = trace.source;
  part.num_experts = trace.num_experts;
  part.experts_per_token = trace.experts_per_token;
  part.decoder_layers = trace.decoder_layers;
  part.phase = trace.phase;
  part.sequence_offsets = {0};
  const std::int64_t per_token = std::int64_t{trace.num_moe_layers()} * trace.experts_per_token;
  for (const int sequence : sequences) {
    GRACE_CHECK(sequence >= 0 && sequence < trace.num_sequences(), "no such sequence");
    const auto s = static_cast<std::size_t>(sequence);
    const std::int64_t begin = trace.sequence_offsets[s];
    const std::int64_t end = trace.sequence_offsets[s + 1];
    append(part.topk_ids, trace.topk_ids, begin * per_token, end * per_token);
    append(part.topk_weights, trace.topk_weights, begin * per_token, end * per_token);
    append(part.token_ids, trace.token_ids, begin, end);
    append(part.prompt_lengths, trace.prompt_lengths, sequence, sequence + 1);
    part.sequence_offsets.push_back(part.sequence_offsets.back() + end - begin);
  }
  return part;
}

Trace first_layers(const Trace& trace, int count) {
  GRACE_CHECK(count >= 1 && count <= trace.num_moe_layers(), "the trace has these layers");
  Trace part = trace;
  part.decoder_layers.resize(static_cast<std::size_t>(count));
  part.topk_ids.clear();
  part.topk_weights.clear();
  const std::int64_t per_token = std::int64_t{trace.num_moe_layers()} * trace.experts_per_token;
  const std::int64_t kept = std::int64_t{count} * trace.experts_per_token;
  for (std::int64_t token = 0; token < trace.num_tokens(); ++token) {
    append(part.topk_ids, trace.topk_ids, token * per_token, token * per_token + kept);
    append(part.topk_weights, trace.topk_weights, token * per_token, token * per_token + kept);
  }
  return part;
}

Result<Trace> join_traces(std::span<const Trace> traces) {
  if (traces.empty()) return invalid_input("traces: there is none to join");
  Trace joined = traces.front();
  const auto weights = [](const Trace& trace) { return trace.topk_weights.size() == trace.topk_ids.size(); };
  const auto tokens = [](const Trace& trace) {
    return std::cmp_equal(trace.token_ids.size(), trace.num_tokens());
  };
  joined.topk_ids.clear();
  joined.topk_weights.clear();
  joined.token_ids.clear();
  joined.prompt_lengths.clear();
  joined.sequence_offsets = {0};
  for (const Trace& trace : traces) {
    if (trace.num_experts != joined.num_experts || trace.experts_per_token != joined.experts_per_token ||
        trace.decoder_layers != joined.decoder_layers)
      return invalid_input("trace " + trace.source + ": " + std::to_string(trace.num_experts) + " experts, " +
                           std::to_string(trace.experts_per_token) + " per token, " +
                           std::to_string(trace.num_moe_layers()) + " MoE layers; the first trace, of " +
                           traces.front().source + ", has another shape");
    if (&trace != &traces.front()) joined.source += " + " + trace.source;
    if (trace.phase != joined.phase) joined.phase = Phase::kMixed;
    const std::int64_t base = joined.num_tokens();
    for (int s = 0; s < trace.num_sequences(); ++s) {
      joined.sequence_offsets.push_back(base + trace.sequence_offsets[static_cast<std::size_t>(s) + 1]);
      joined.prompt_lengths.push_back(trace.prompt_length(s));
    }
    joined.topk_ids.insert(joined.topk_ids.end(), trace.topk_ids.begin(), trace.topk_ids.end());
    if (std::ranges::all_of(traces, weights))
      joined.topk_weights.insert(joined.topk_weights.end(), trace.topk_weights.begin(),
                                 trace.topk_weights.end());
    if (std::ranges::all_of(traces, tokens))
      joined.token_ids.insert(joined.token_ids.end(), trace.token_ids.begin(), trace.token_ids.end());
  }
  return joined;
}

std::vector<std::vector<int>> split_sequences(int num_sequences, std::span<const double> shares,
                                              std::uint64_t seed) {
  GRACE_CHECK(num_sequences >= 0 && !shares.empty(), "something to split, and something to split it into");
  std::vector<int> order(static_cast<std::size_t>(num_sequences));
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  rng.shuffle(std::span(order));
  std::vector<std::vector<int>> parts;
  double share = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    GRACE_CHECK(shares[i] >= 0, "a share is not negative");
    share += shares[i];
    // The last part takes what is left, so that rounding loses no sequence.
    const auto until =
        i + 1 == shares.size()
            ? order.size()
            : std::min(order.size(), static_cast<std::size_t>(std::llround(share * num_sequences)));
    std::vector<int>& part = parts.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                                order.begin() + static_cast<std::ptrdiff_t>(until));
    std::ranges::sort(part);
    begin = until;
  }
  GRACE_CHECK(std::abs(share - 1) < 1e-6, "shares add up to 1");
  return parts;
}

std::string hash_of(const Trace& trace) {
  Fnv1a hash;
  hash.add_int(static_cast<std::uint64_t>(trace.num_tokens()));
  hash.add_int(static_cast<std::uint64_t>(trace.num_moe_layers()));
  hash.add_int(static_cast<std::uint64_t>(trace.experts_per_token));
  hash.add_int(static_cast<std::uint64_t>(trace.num_experts));
  for (const std::uint16_t id : trace.topk_ids) hash.add_int(id, 2);
  return hash.text();
}

}  // namespace grace
