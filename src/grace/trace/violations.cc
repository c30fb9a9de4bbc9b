// What makes a trace sound: the one oracle of tests, readers and `grace check`.
#include <cmath>
#include <string_view>

#include "grace/base/findings.h"
#include "grace/base/limits.h"
#include "grace/trace/trace.h"

namespace grace {
namespace {

constexpr std::size_t kMaxLines = 20;  // a wrong reader makes every token wrong
constexpr float kLargestF16 = 65'504;

void check_head(const Trace& trace, Findings& found) {
  if (trace.num_experts < 1 || trace.num_experts > kMaxExperts)
    found.add("num_experts {} is outside [1, {}]", trace.num_experts, kMaxExperts);
  if (trace.experts_per_token < 1 || trace.experts_per_token > trace.num_experts)
    found.add("experts_per_token {} is outside [1, {}]", trace.experts_per_token, trace.num_experts);
  if (trace.decoder_layers.empty()) found.add("decoder_layers is empty");
  for (std::size_t i = 0; i < trace.decoder_layers.size(); ++i) {
    const int lowest = i == 0 ? 0 : trace.decoder_layers[i - 1] + 1;
    if (trace.decoder_layers[i] < lowest || trace.decoder_layers[i] > kMaxDecoderLayer) {
      found.add("decoder_layers[{}] is {}, outside [{}, {}]", i, trace.decoder_layers[i], lowest,
                kMaxDecoderLayer);
      return;
    }
  }
}

void check_sequences(const Trace& trace, Findings& found) {
  const std::vector<std::int64_t>& offsets = trace.sequence_offsets;
  if (offsets.empty() || offsets.front() != 0) {
    found.add("sequence_offsets does not begin with 0");
    return;
  }
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      found.add("sequence_offsets[{}] is {}, below the {} before it", i, offsets[i], offsets[i - 1]);
      return;
    }
  }
  const std::size_t num_sequences = offsets.size() - 1;
  if (trace.prompt_lengths.empty()) {
    if (trace.phase == Phase::kMixed && num_sequences > 0)
      found.add("phase is mixed, but there are no prompt_lengths");
    return;
  }
  if (trace.prompt_lengths.size() != num_sequences) {
    found.add("{} prompt_lengths, but {} sequences", trace.prompt_lengths.size(), num_sequences);
    return;
  }
  for (std::size_t s = 0; s < num_sequences; ++s) {
    const std::int64_t length = offsets[s + 1] - offsets[s];
    if (trace.prompt_lengths[s] < 0 || trace.prompt_lengths[s] > length)
      found.add("prompt_lengths[{}] is {}, outside [0, {}]", s, trace.prompt_lengths[s], length);
  }
}

void check_size(std::size_t has, std::size_t num_tokens, std::size_t per_token, std::string_view name,
                Findings& found) {
  // Divided, because the product of a hostile file may overflow.
  if (has % per_token != 0 || has / per_token != num_tokens)
    found.add("{} has {} values, {} tokens have {} each", name, has, num_tokens, per_token);
}

// The K choices of each token in each layer: in range, none twice.
void check_choices(const Trace& trace, Findings& found) {
  const int num_layers = trace.num_moe_layers();
  std::vector<std::int64_t> last_row(static_cast<std::size_t>(trace.num_experts),
                                     -1);  // [E] where an expert was last chosen
  for (std::int64_t token = 0; token < trace.num_tokens(); ++token) {
    for (int layer = 0; layer < num_layers; ++layer) {
      if (found.full()) return;
      const std::int64_t row = token * num_layers + layer;
      for (const std::uint16_t expert : trace.choices(token, MoeOrdinal(layer))) {
        if (expert == kNotRouted) continue;
        if (expert >= trace.num_experts) {
          found.add("token {}, layer {}: expert {} is outside [0, {})", token, layer, expert,
                    trace.num_experts);
        } else if (last_row[expert] == row) {
          found.add("token {}, layer {}: expert {} is chosen twice", token, layer, expert);
        } else {
          last_row[expert] = row;
        }
      }
    }
  }
}

void check_weights(const Trace& trace, std::size_t per_token, Findings& found) {
  const auto width = static_cast<std::size_t>(trace.experts_per_token);
  for (std::size_t i = 0; i < trace.topk_weights.size() && !found.full(); ++i) {
    const float weight = trace.topk_weights[i];
    if (!(std::abs(weight) <= kLargestF16))
      found.add("token {}, layer {}: weight {} is outside [-{}, {}]", i / per_token, i % per_token / width,
                weight, kLargestF16, kLargestF16);
  }
}

}  // namespace

std::vector<std::string> violations(const Trace& trace) {
  Findings found(kMaxLines);
  check_head(trace, found);
  check_sequences(trace, found);
  if (!found.empty()) return found.take();
  const auto num_tokens = static_cast<std::size_t>(trace.num_tokens());
  const std::size_t per_token =
      trace.decoder_layers.size() * static_cast<std::size_t>(trace.experts_per_token);
  check_size(trace.topk_ids.size(), num_tokens, per_token, "topk_ids", found);
  if (!trace.topk_weights.empty())
    check_size(trace.topk_weights.size(), num_tokens, per_token, "topk_weights", found);
  if (!trace.token_ids.empty()) check_size(trace.token_ids.size(), num_tokens, 1, "token_ids", found);
  if (!found.empty()) return found.take();
  check_choices(trace, found);
  check_weights(trace, per_token, found);
  for (std::size_t i = 0; i < trace.token_ids.size() && !found.full(); ++i)
    if (trace.token_ids[i] < 0) found.add("token {}: token id {} is negative", i, trace.token_ids[i]);
  return found.take();
}

}  // namespace grace
