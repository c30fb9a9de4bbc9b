#include "grace/runtime/footprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "grace/kernels/kernels.h"
#include "grace/model/weight_plan.h"

namespace grace {
namespace {

std::int64_t packed_bytes(int out, int in, const WeightForm& form) {
  return static_cast<std::int64_t>(
      kernels::packed_bytes(out, in, kernels::storage_of(form.element, form.numbers)));
}

std::int64_t dense_bytes(const ModelConfig& config, const WeightForm& form) {
  const auto architecture = find_architecture(config.architecture, config.name);
  if (!architecture.ok()) return 0;
  DenseWeights nowhere;
  std::int64_t bytes = packed_bytes(config.vocab_size, config.hidden_size, form);  // the head, tied or not
  for (const DenseSlot& slot : dense_slots(config, architecture.value()->names, nowhere)) {
    if (slot.matrix == nullptr) {
      bytes += slot.source.cols * std::int64_t{sizeof(float)};
    } else if (slot.matrix != &nowhere.embedding) {  // which stays in the file
      const bool router = std::ranges::any_of(
          nowhere.layers, [&](const LayerWeights& layer) { return slot.matrix == &layer.router; });
      bytes += packed_bytes(slot.source.rows, slot.source.cols,
                            {form.element, router ? kernels::Numbers::kF32 : form.numbers});
    }
  }
  return bytes;
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
  const std::int64_t of_value = form.numbers == kernels::Numbers::kF32 ? 4 : 2;
  footprint.cache =
      cached_tokens * config.num_layers * 2 * std::int64_t{config.num_kv_heads} * config.head_dim * of_value;
  return footprint;
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
