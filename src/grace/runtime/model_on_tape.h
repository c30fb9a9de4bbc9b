// A model's forward pass on a tape: the same operations as the engine's, rounded where it rounds. The slow
// twin of the whole, one sequence at a time, its experts chosen by the caller.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/runtime/attention_block.h"
#include "grace/runtime/rounding_tape.h"
#include "grace/runtime/tape_attention.h"

namespace grace {

// A checkpoint's weights as f32, read once for many tapes. Immutable once made.
class ModelOfTapes {
 public:
  explicit ModelOfTapes(const std::filesystem::path& folder)
      : config(read_model_config(folder).value()),
        checkpoint_(Checkpoint::open(folder).value()),
        dense_(load_dense(config, checkpoint_).value()) {
    embedding_ = values_of(dense_.embedding);
    lm_head_ = values_of(dense_.lm_head.empty() ? dense_.embedding : dense_.lm_head);
    std::vector<ExpertId> all;
    for (int e = 0; e < config.num_experts; ++e) all.push_back(ExpertId{e});
    MoeOrdinal ordinal{0};
    for (int l = 0; l < config.num_layers; ++l) {
      LayerWeights& weights = dense_.layers[static_cast<std::size_t>(l)];
      Layer& layer = layers_.emplace_back();
      layer.norm = weights.input_norm;
      layer.ffn_norm = weights.post_attention_norm;
      take_attention(weights, layer);
      if (!config.is_moe(l)) {
        layer.dense = ffn_of(weights.dense);
        continue;
      }
      layer.router = values_of(weights.router);
      const auto experts = load_experts(config, checkpoint_, ordinal, all).value();
      for (const ExpertWeights& expert : experts) layer.experts.push_back(ffn_of(expert.ffn));
      if (config.shared_ffn_size > 0) layer.shared = ffn_of(weights.shared);
      if (!weights.shared_switch.empty()) layer.shared_switch = values_of(weights.shared_switch);
      ++ordinal.value;
    }
  }

  const ModelConfig config;

  // Logits [T] -> [V]. experts: [T, M, K]. bf16: of products; alone: each token is a step of its own.
  std::vector<TapeRange> run(RoundingTape& tape, std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> experts, bool bf16, bool alone) const {
    std::vector<std::int32_t> positions(tokens.size());
    for (std::size_t t = 0; t < tokens.size(); ++t) positions[t] = static_cast<std::int32_t>(t);
    kernels::Rotations turns;
    kernels::turn_to(positions, rotary_of(config), turns);
    const TapeOperations run{tape, bf16};
    std::vector<TapeRange> h;
    for (const std::int32_t token : tokens) h.push_back(run.constants(embedding_.row(token)));
    std::size_t moe = 0;
    for (const Layer& layer : layers_) {
      if (config.attention == AttentionKind::kLatent)
        add_latent_attention(run, config, layer.attention, layer.norm, turns, alone, h);
      else
        add_grouped_attention(run, config, layer.attention, layer.norm, turns, h);
      const auto top = static_cast<std::size_t>(config.experts_per_token);
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        const TapeRange x = run.norm(h[t], layer.ffn_norm, config.rms_norm_eps);
        if (layer.dense)
          h[t] = run.add(h[t], run.ffn(run.rounded(x), *layer.dense));
        else
          h[t] = add_experts(run, layer, x, experts.subspan((t * config.moe_layers.size() + moe) * top, top),
                             h[t]);
      }
      moe += layer.dense ? 0 : 1;
    }
    for (TapeRange& row : h) {
      const TapeRange x = run.norm(row, dense_.final_norm, config.rms_norm_eps);
      row = run.product(run.rounded(x), lm_head_);
    }
    return h;
  }

 private:
  struct Layer {
    std::vector<float> norm, ffn_norm;
    TapeAttention attention;
    std::optional<TapeFfn> dense, shared;
    TapeMatrix router, shared_switch;
    std::vector<TapeFfn> experts;
  };

  static TapeMatrix values_of(const MatrixView& view) {
    MatrixView stored = view;
    stored.transposed = false;
    if (view.transposed) std::swap(stored.rows, stored.cols);
    TapeMatrix matrix(stored.rows, stored.cols);
    for (int row = 0; row < stored.rows; ++row) read_row(stored, row, matrix.row(row));
    return view.transposed ? matrix.transposed() : matrix;
  }
  static TapeFfn ffn_of(const FfnWeights& ffn) {
    return {values_of(ffn.gate), values_of(ffn.up), values_of(ffn.down)};
  }
  void take_attention(const LayerWeights& weights, Layer& layer) const {
    TapeAttention& to = layer.attention;
    to.o = values_of(weights.o);
    to.q = values_of(weights.q);
    if (config.attention == AttentionKind::kGrouped) {
      to.k = values_of(weights.k);
      to.v = values_of(weights.v);
      to.q_bias = weights.q_bias;
      to.k_bias = weights.k_bias;
      to.v_bias = weights.v_bias;
      to.o_bias = weights.o_bias;
      to.q_norm = weights.q_norm;
      to.k_norm = weights.k_norm;
      return;
    }
    if (!weights.q_down.empty()) to.q_down = values_of(weights.q_down);
    to.kv_down = values_of(weights.kv_down);
    to.q_norm = weights.q_down_norm;
    to.k_norm = weights.kv_down_norm;
    const TapeMatrix up = values_of(weights.kv_up);
    const int key = config.head_dim - config.rotary_dim, value = config.value_head_dim;
    for (int head = 0; head < config.num_heads; ++head) {
      to.keys.push_back(up.rows_of(head * (key + value), key));
      to.absorb.push_back(to.keys.back().transposed());
      to.values.push_back(up.rows_of(head * (key + value) + key, value));
    }
  }

  // h + the experts' weighed sum + what is shared.
  TapeRange add_experts(const TapeOperations& run, const Layer& layer, TapeRange x,
                        std::span<const std::int32_t> experts, TapeRange h) const {
    const std::vector<RoundingTape::Id> weights = run.weights(run.product(x, layer.router), config, experts);
    const TapeRange rounded = run.rounded(x);
    std::vector<TapeRange> said;
    for (const std::int32_t expert : experts)
      said.push_back(run.ffn(rounded, layer.experts[static_cast<std::size_t>(expert)]));
    h = run.add_weighed(h, weights, said);
    if (!layer.shared) return h;
    TapeRange shared = run.ffn(rounded, *layer.shared);
    if (!layer.shared_switch.empty()) shared = run.switched(x, layer.shared_switch, shared);
    return run.add(h, shared);
  }

  Checkpoint checkpoint_;
  DenseWeights dense_;
  TapeMatrix embedding_, lm_head_;
  std::deque<Layer> layers_;
};

}  // namespace grace
