#include "grace/model/weight_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace grace {
namespace {

std::string spelled(std::string_view pattern, int layer, int expert = 0) {
  return fmt::format(fmt::runtime(pattern), fmt::arg("layer", layer), fmt::arg("expert", expert));
}

WeightSource whole_matrix(std::string tensor, int rows, int cols) {
  return {std::move(tensor), {}, {rows, cols}, 0, cols, false, rows, cols};
}

// Collects the slots of one model.
class Slots {
 public:
  Slots(const ModelConfig& config, const WeightNames& names) : config_(config), names_(names) {}

  void add(std::string tensor, int rows, int cols, MatrixView& matrix) {
    slots_.push_back({whole_matrix(std::move(tensor), rows, cols), &matrix, nullptr});
  }
  void add(std::string tensor, int size, std::vector<float>& values) {
    slots_.push_back({{std::move(tensor), {}, {size}, 0, size, false, 1, size}, nullptr, &values});
  }
  void add_layer(int layer, LayerWeights& weights) {
    add(spelled(names_.input_norm, layer), config_.hidden_size, weights.input_norm);
    if (config_.attention == AttentionKind::kGrouped)
      add_grouped(layer, weights);
    else
      add_latent(layer, weights);
    add(spelled(names_.post_attention_norm, layer), config_.hidden_size, weights.post_attention_norm);
    if (config_.is_moe(layer))
      add_moe(layer, weights);
    else
      add_ffn({names_.dense_gate, names_.dense_up, names_.dense_down}, layer, config_.dense_ffn_size,
              weights.dense);
  }
  std::vector<DenseSlot> take() { return std::move(slots_); }

 private:
  void add_output(int layer, LayerWeights& weights) {
    const int hidden = config_.hidden_size;
    add(spelled(names_.o, layer), hidden, config_.num_heads * config_.value_head_dim, weights.o);
    if (config_.output_bias) add(spelled(names_.o_bias, layer), hidden, weights.o_bias);
  }
  void add_grouped(int layer, LayerWeights& weights) {
    const int hidden = config_.hidden_size;
    const int heads = config_.num_heads * config_.head_dim, kv = config_.num_kv_heads * config_.head_dim;
    add(spelled(names_.q, layer), heads, hidden, weights.q);
    add(spelled(names_.k, layer), kv, hidden, weights.k);
    add(spelled(names_.v, layer), kv, hidden, weights.v);
    if (config_.qkv_bias) {
      add(spelled(names_.q_bias, layer), heads, weights.q_bias);
      add(spelled(names_.k_bias, layer), kv, weights.k_bias);
      add(spelled(names_.v_bias, layer), kv, weights.v_bias);
    }
    if (config_.qk_norm != QkNorm::kNone) {
      const bool whole = config_.qk_norm == QkNorm::kWhole;
      add(spelled(names_.q_norm, layer), whole ? heads : config_.head_dim, weights.q_norm);
      add(spelled(names_.k_norm, layer), whole ? kv : config_.head_dim, weights.k_norm);
    }
    add_output(layer, weights);
  }
  void add_latent(int layer, LayerWeights& weights) {
    const int hidden = config_.hidden_size, rank = config_.kv_rank;
    const int heads = config_.num_heads * config_.head_dim;
    if (config_.query_rank > 0) {
      add(spelled(names_.q_down, layer), config_.query_rank, hidden, weights.q_down);
      add(spelled(names_.q_down_norm, layer), config_.query_rank, weights.q_down_norm);
      add(spelled(names_.q_up, layer), heads, config_.query_rank, weights.q);
    } else {
      add(spelled(names_.q, layer), heads, hidden, weights.q);
    }
    add(spelled(names_.kv_down, layer), rank + config_.rotary_dim, hidden, weights.kv_down);
    add(spelled(names_.kv_down_norm, layer), rank, weights.kv_down_norm);
    const int of_head = config_.head_dim - config_.rotary_dim + config_.value_head_dim;
    add(spelled(names_.kv_up, layer), config_.num_heads * of_head, rank, weights.kv_up);
    add_output(layer, weights);
  }
  void add_moe(int layer, LayerWeights& weights) {
    add(spelled(names_.router, layer), config_.num_experts, config_.hidden_size, weights.router);
    if (!names_.router_alias.empty()) slots_.back().source.alias = spelled(names_.router_alias, layer);
    if (config_.choice.corrected)
      add(spelled(names_.router_bias, layer), config_.num_experts, weights.router_bias);
    if (config_.shared_ffn_size == 0) return;
    add_ffn({names_.shared_gate, names_.shared_up, names_.shared_down}, layer, config_.shared_ffn_size,
            weights.shared);
    if (config_.shared_switched)
      add(spelled(names_.shared_switch, layer), 1, config_.hidden_size, weights.shared_switch);
  }
  // Patterns of gate, up and down.
  void add_ffn(const std::array<std::string_view, 3>& patterns, int layer, int ffn, FfnWeights& weights) {
    add(spelled(patterns[0], layer), ffn, config_.hidden_size, weights.gate);
    add(spelled(patterns[1], layer), ffn, config_.hidden_size, weights.up);
    add(spelled(patterns[2], layer), config_.hidden_size, ffn, weights.down);
  }

  const ModelConfig& config_;
  const WeightNames& names_;
  std::vector<DenseSlot> slots_;
};

// How a layer's fused experts lie in the file: as documented, or each matrix transposed.
Result<bool> fused_is_transposed(const ModelConfig& config, const Checkpoint& checkpoint,
                                 const std::string& gate_up, const std::string& down) {
  const std::int64_t experts = config.num_experts;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t ffn = config.expert_ffn_size;
  const std::vector<std::int64_t> shape = GRACE_TRY(checkpoint.find(gate_up)).shape;
  const bool square = 2 * ffn == hidden;  // then only down can tell; otherwise gate_up does
  const bool transposed = square ? GRACE_TRY(checkpoint.find(down)).shape == std::vector{experts, ffn, hidden}
                                 : shape == std::vector{experts, hidden, 2 * ffn};
  if (transposed && ffn == hidden) {
    return unsupported(fmt::format("{}: tensor {} is [{}], which does not tell how {} lies: it is square",
                                   checkpoint.folder().string(), gate_up, fmt::join(shape, ", "), down));
  }
  return transposed;
}

ExpertSources fused_sources(const ModelConfig& config, const std::string& gate_up, const std::string& down,
                            ExpertId expert, bool transposed) {
  const int hidden = config.hidden_size;
  const int ffn = config.expert_ffn_size;
  const std::int64_t block = std::int64_t{ffn} * hidden;
  const std::int64_t begin = expert.value * block;
  if (transposed) {
    const std::vector<std::int64_t> wide = {config.num_experts, hidden, 2 * std::int64_t{ffn}};
    return {WeightSource{gate_up, {}, wide, 2 * begin, 2 * std::int64_t{ffn}, true, ffn, hidden},
            WeightSource{gate_up, {}, wide, 2 * begin + ffn, 2 * std::int64_t{ffn}, true, ffn, hidden},
            WeightSource{down, {}, {config.num_experts, ffn, hidden}, begin, hidden, true, hidden, ffn}};
  }
  const std::vector<std::int64_t> tall = {config.num_experts, 2 * std::int64_t{ffn}, hidden};
  return {WeightSource{gate_up, {}, tall, 2 * begin, hidden, false, ffn, hidden},
          WeightSource{gate_up, {}, tall, 2 * begin + block, hidden, false, ffn, hidden},
          WeightSource{down, {}, {config.num_experts, hidden, ffn}, begin, ffn, false, hidden, ffn}};
}

// Where `name` is missing: whether it is there in the parts that GPTQ, AWQ and the like make of it.
Status expect_not_quantised(const Checkpoint& checkpoint, const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return {};
  for (const char* part : {".qweight", ".weight_packed"}) {
    const std::string found = name.substr(0, name.size() - kWeight.size()) + part;
    if (checkpoint.has(found))
      return unsupported(
          fmt::format("{}: tensor {} is there as {}: quantised weights are not supported, only BF16, "
                      "F16 and F32 are",
                      checkpoint.folder().string(), name, found));
  }
  return {};
}

}  // namespace

std::vector<DenseSlot> dense_slots(const ModelConfig& config, const WeightNames& names,
                                   DenseWeights& weights) {
  Slots slots(config, names);
  slots.add(std::string(names.embedding), config.vocab_size, config.hidden_size, weights.embedding);
  weights.layers.resize(static_cast<std::size_t>(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    slots.add_layer(layer, weights.layers[static_cast<std::size_t>(layer)]);
  }
  slots.add(std::string(names.final_norm), config.hidden_size, weights.final_norm);
  return slots.take();
}

DenseSlot lm_head_slot(const ModelConfig& config, const WeightNames& names, DenseWeights& weights) {
  return {whole_matrix(std::string(names.lm_head), config.vocab_size, config.hidden_size), &weights.lm_head,
          nullptr};
}

Result<ExpertSources> expert_sources(const ModelConfig& config, const WeightNames& names,
                                     const Checkpoint& checkpoint, int decoder_layer, ExpertId expert) {
  const int hidden = config.hidden_size;
  const int ffn = config.expert_ffn_size;
  ExpertSources single = {whole_matrix(spelled(names.gate, decoder_layer, expert.value), ffn, hidden),
                          whole_matrix(spelled(names.up, decoder_layer, expert.value), ffn, hidden),
                          whole_matrix(spelled(names.down, decoder_layer, expert.value), hidden, ffn)};
  if (names.fused_gate_up.empty() || checkpoint.has(single[0].tensor)) return single;
  const std::string gate_up = spelled(names.fused_gate_up, decoder_layer);
  const std::string down = spelled(names.fused_down, decoder_layer);
  if (!checkpoint.has(gate_up) && !checkpoint.has(down)) return single;
  const bool transposed = GRACE_TRY(fused_is_transposed(config, checkpoint, gate_up, down));
  return fused_sources(config, gate_up, down, expert, transposed);
}

Result<TensorView> find_source(const Checkpoint& checkpoint, const WeightSource& source) {
  const bool aliased =
      !source.alias.empty() && !checkpoint.has(source.tensor) && checkpoint.has(source.alias);
  const std::string& name = aliased ? source.alias : source.tensor;
  if (!checkpoint.has(name)) GRACE_TRY(expect_not_quantised(checkpoint, name));
  TensorView tensor = GRACE_TRY(checkpoint.find(name));
  if (tensor.shape != source.shape) {
    return invalid_input(fmt::format("{}: tensor {} is [{}], expected [{}]", checkpoint.folder().string(),
                                     name, fmt::join(tensor.shape, ", "), fmt::join(source.shape, ", ")));
  }
  if (tensor.dtype != Dtype::kBf16 && tensor.dtype != Dtype::kF16 && tensor.dtype != Dtype::kF32) {
    return unsupported(fmt::format("{}: tensor {} is {}, not one of BF16, F16, F32",
                                   checkpoint.folder().string(), name, name_of(tensor.dtype)));
  }
  return tensor;
}

}  // namespace grace
