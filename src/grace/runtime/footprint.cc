#include "grace/runtime/footprint.h"

#include <fmt/format.h>

#include "grace/kernels/kernels.h"
#include "grace/model/weight_plan.h"

namespace grace {
namespace {

constexpr std::int64_t kBytesPerValue = sizeof(float);

// Of kernels::pack: panels of whole width.
std::int64_t packed_bytes(std::int64_t out, std::int64_t in) {
  return (out + kernels::kPanel - 1) / kernels::kPanel * kernels::kPanel * in * kBytesPerValue;
}

std::int64_t dense_bytes(const ModelConfig& config) {
  const auto architecture = find_architecture(config.architecture, config.name);
  if (!architecture.ok()) return 0;
  DenseWeights nowhere;
  std::int64_t bytes = packed_bytes(config.vocab_size, config.hidden_size);  // the head, tied or not
  for (const DenseSlot& slot : dense_slots(config, architecture.value()->names, nowhere)) {
    const std::int64_t rows = slot.source.rows, cols = slot.source.cols;
    const bool packed = slot.matrix != nullptr && slot.matrix != &nowhere.embedding;
    bytes += packed ? packed_bytes(rows, cols) : rows * cols * kBytesPerValue;
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
                       std::int64_t cached_tokens) {
  const std::int64_t hidden = config.hidden_size, ffn = config.expert_ffn_size;
  const std::int64_t of_expert = 2 * packed_bytes(ffn, hidden) + packed_bytes(hidden, ffn);
  Footprint footprint;
  for (const LayerPlan& layer : plan.layers)
    footprint.experts += static_cast<std::int64_t>(layer.experts_on(device).size()) * of_expert;
  footprint.dense = dense_bytes(config);
  footprint.cache = cached_tokens * config.num_layers * 2 * std::int64_t{config.num_kv_heads} *
                    config.head_dim * kBytesPerValue;
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
