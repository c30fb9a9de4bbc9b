#include "grace/runtime/footprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "grace/kernels/kernels.h"
#include "grace/model/weight_plan.h"
#include "grace/runtime/attention_block.h"

namespace grace {
namespace {

// Adds up what the blocks of a model hold, as they hold it.
class Holdings {
 public:
  explicit Holdings(const WeightForm& form)
      : storage_(kernels::storage_of(form.element, form.numbers)),
        exact_(kernels::storage_of(form.element, kernels::Numbers::kF32)) {}

  void add_matrix(int out, int in) {
    bytes_ += static_cast<std::int64_t>(kernels::packed_bytes(out, in, storage_));
  }
  void add_router(int out, int in) {
    bytes_ += static_cast<std::int64_t>(kernels::packed_bytes(out, in, exact_));
  }
  void add_ffn(int hidden, int ffn) {
    bytes_ += static_cast<std::int64_t>(kernels::packed_expert_bytes(hidden, ffn, storage_));
  }
  void add_values(std::int64_t count) { bytes_ += count * std::int64_t{sizeof(float)}; }
  std::int64_t bytes() const { return bytes_; }

 private:
  kernels::Storage storage_, exact_;
  std::int64_t bytes_ = 0;
};

void add_attention(const ModelConfig& config, Holdings& held) {
  const int hidden = config.hidden_size, queries = config.num_heads * config.head_dim;
  held.add_matrix(hidden, config.num_heads * config.value_head_dim);
  if (config.attention == AttentionKind::kGrouped) {
    held.add_matrix(queries, hidden);
    for (int i = 0; i < 2; ++i) held.add_matrix(config.num_kv_heads * config.head_dim, hidden);
    return;
  }
  held.add_matrix(queries, config.query_rank > 0 ? config.query_rank : hidden);
  if (config.query_rank > 0) held.add_matrix(config.query_rank, hidden);
  held.add_matrix(config.kv_rank + config.rotary_dim, hidden);
  for (int head = 0; head < config.num_heads; ++head) {
    const int key = config.head_dim - config.rotary_dim;
    held.add_matrix(key, config.kv_rank);
    held.add_matrix(config.kv_rank, key);
    held.add_matrix(config.value_head_dim, config.kv_rank);
  }
}

std::int64_t dense_bytes(const ModelConfig& config, const WeightForm& form) {
  const auto architecture = find_architecture(config.architecture, config.name);
  if (!architecture.ok()) return 0;
  Holdings held(form);
  held.add_matrix(config.vocab_size,
                  config.hidden_size);  // the head, tied or not; the embedding stays in the file
  for (int layer = 0; layer < config.num_layers; ++layer) {
    add_attention(config, held);
    if (!config.is_moe(layer)) {
      held.add_ffn(config.hidden_size, config.dense_ffn_size);
      continue;
    }
    held.add_router(config.num_experts, config.hidden_size);
    if (config.shared_ffn_size > 0) held.add_ffn(config.hidden_size, config.shared_ffn_size);
    if (config.shared_switched) held.add_values(config.hidden_size);
  }
  DenseWeights nowhere;
  for (const DenseSlot& slot : dense_slots(config, architecture.value()->names, nowhere))
    if (slot.values != nullptr) held.add_values(slot.source.cols);
  return held.bytes();
}

struct Unit {
  const char* name;
  double bytes;
};
Unit unit_of(double bytes) {
  constexpr double kKib = 1024;
  if (bytes >= kKib * kKib * kKib) return {"GiB", kKib * kKib * kKib};
  if (bytes >= kKib * kKib) return {"MiB", kKib * kKib};
  return {"KiB", kKib};
}

}  // namespace

Footprint footprint_of(const ModelConfig& config, const Plan& plan, DeviceId device,
                       std::int64_t cached_tokens, const WeightForm& form) {
  const auto of_expert = static_cast<std::int64_t>(kernels::packed_expert_bytes(
      config.hidden_size, config.expert_ffn_size, kernels::storage_of(form.element, form.numbers)));
  Footprint footprint;
  for (const LayerPlan& layer : plan.layers)
    footprint.experts += static_cast<std::int64_t>(layer.experts_on(device).size()) * of_expert;
  footprint.dense = dense_bytes(config, form);
  const CacheRow row = cache_row_of(config);
  const std::int64_t of_value = form.numbers == kernels::Numbers::kF32 ? 4 : 2;
  footprint.cache = cached_tokens * config.num_layers * (row.keys + row.values) * of_value;
  return footprint;
}

WeightForm form_of(const ModelConfig& config, const Checkpoint& checkpoint, kernels::Numbers numbers) {
  const ExpertId first{0};
  const auto experts = load_experts(config, checkpoint, MoeOrdinal(0), std::span(&first, 1));
  return {experts.ok() ? experts.value()[0].ffn.gate.element : Element::kF32, numbers};
}

std::string words_of(const Footprint& footprint) {
  const Unit unit = unit_of(static_cast<double>(footprint.total()));
  const auto in_unit = [&](std::int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / unit.bytes);
  };
  return fmt::format("{} {} (experts {}, dense {}{})", in_unit(footprint.total()), unit.name,
                     in_unit(footprint.experts), in_unit(footprint.dense),
                     footprint.cache > 0 ? ", cache " + in_unit(footprint.cache) : "");
}

std::string words_of_bytes(double bytes) {
  const Unit unit = unit_of(bytes);
  return fmt::format("{:.1f} {}", bytes / unit.bytes, unit.name);
}

}  // namespace grace
