#include "grace/runtime/footprint.h"

#include <gtest/gtest.h>

#include "grace/kernels/kernels.h"
#include "grace/runtime/kv_cache.h"
#include "grace/runtime/packing.h"
#include "grace/runtime/test_plans.h"

namespace grace {
namespace {

std::int64_t bytes_of(const std::vector<float>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(float));
}

// What is held once everything is loaded and packed.
class Held {
 public:
  Held(const ModelConfig& config, const Checkpoint& checkpoint, kernels::Numbers numbers)
      : config_(config), checkpoint_(checkpoint), arithmetic_{{}, numbers} {
    arithmetic_.instructions = kernels::usable_instructions().front();
  }

  std::int64_t dense() {
    const DenseWeights dense = load_dense(config_, checkpoint_).value();
    std::int64_t bytes = bytes_of(dense.final_norm);
    bytes += packed(dense.lm_head.empty() ? dense.embedding : dense.lm_head);
    for (const LayerWeights& layer : dense.layers) {
      for (const MatrixView* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.q_down, &layer.kv_down})
        bytes += packed(*matrix);
      if (!layer.kv_up.empty()) bytes += unfolded(layer.kv_up);
      if (!layer.router.empty())
        bytes += static_cast<std::int64_t>(
            kernels::pack(layer.router, {arithmetic_.instructions, kernels::Numbers::kF32}, pool_)
                .panels.size());
      bytes += packed(layer.shared) + packed(layer.dense);
      bytes += layer.shared_switch.cols * std::int64_t{sizeof(float)};
      for (const auto* values : {&layer.input_norm, &layer.post_attention_norm, &layer.q_norm, &layer.k_norm,
                                 &layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.o_bias,
                                 &layer.q_down_norm, &layer.kv_down_norm, &layer.router_bias})
        bytes += bytes_of(*values);
    }
    return bytes;
  }
  std::int64_t experts(const Plan& plan, DeviceId device) {
    std::int64_t bytes = 0;
    for (std::size_t m = 0; m < plan.layers.size(); ++m) {
      const auto hosted = plan.layers[m].experts_on(device);
      const auto experts =
          load_experts(config_, checkpoint_, MoeOrdinal(static_cast<std::int32_t>(m)), hosted).value();
      for (const ExpertWeights& expert : experts) bytes += packed(expert.ffn);
    }
    return bytes;
  }

 private:
  // Each head's part of it: keys, keys transposed, values.
  std::int64_t unfolded(const MatrixView& kv_up) {
    std::int64_t bytes = 0;
    const int key = config_.head_dim - config_.rotary_dim;
    for (const bool transposed : {false, true}) {
      MatrixView part = kv_up;
      part.rows = transposed ? kv_up.cols : key;
      part.cols = transposed ? key : kv_up.cols;
      part.transposed = transposed;
      bytes += packed(part);
    }
    MatrixView values = kv_up;
    values.rows = config_.value_head_dim;
    return (bytes + packed(values)) * config_.num_heads;
  }
  std::int64_t packed(const FfnWeights& ffn) {
    if (ffn.gate.empty()) return 0;
    const auto both = kernels::pack_expert(ffn.gate, ffn.up, ffn.down, arithmetic_, pool_);
    return static_cast<std::int64_t>(both.gate_up.panels.size() + both.down.panels.size());
  }
  std::int64_t packed(const MatrixView& matrix) {
    if (matrix.empty()) return 0;
    return static_cast<std::int64_t>(kernels::pack(matrix, arithmetic_, pool_).panels.size());
  }

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  kernels::Arithmetic arithmetic_;
  ThreadPool pool_{1};
};

// No size of the tiny model is a multiple of a panel's.
TEST(AFootprint, IsWhatARankHolds) {
  const TinyModel model(TinyShape{.hidden = 40, .layers = 3, .ffn = 20});
  const ModelConfig config = read_model_config(model.folder()).value();
  const Checkpoint checkpoint = Checkpoint::open(model.folder()).value();
  const Cluster cluster = cluster_of("1+3");
  for (const kernels::Numbers numbers :
       {kernels::Numbers::kF32, kernels::Numbers::kBf16, kernels::Numbers::kInt8}) {
    Held held(config, checkpoint, numbers);
    for (const Plan& plan : {vanilla(model, cluster), shuffled(model, cluster, 5)})
      for (int d = 0; d < cluster.num_devices(); ++d) {
        SCOPED_TRACE("device " + std::to_string(d));
        const Footprint footprint = footprint_of(config, plan, DeviceId(d), 0, {Element::kF32, numbers});
        EXPECT_EQ(footprint.experts, held.experts(plan, DeviceId(d)));
        EXPECT_EQ(footprint.dense, held.dense());
        EXPECT_EQ(footprint.cache, 0);
      }
  }
}

TEST(AFootprint, IsWhatARankHoldsOfEveryArchitecture) {
  const Cluster cluster = cluster_of("1x2");
  for (const auto& folder :
       std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/tests/fixtures/architectures")) {
    SCOPED_TRACE(folder.path());
    const ModelConfig config = read_model_config(folder.path()).value();
    const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
    const Plan plan = vanilla_plan(config.name, config.num_experts, config.moe_layers, cluster);
    for (const kernels::Numbers numbers : {kernels::Numbers::kF32, kernels::Numbers::kInt8}) {
      Held held(config, checkpoint, numbers);
      const WeightForm form = form_of(config, checkpoint, numbers);
      EXPECT_EQ(form.element, Element::kBf16);
      const Footprint footprint = footprint_of(config, plan, DeviceId(1), 0, form);
      EXPECT_EQ(footprint.experts, held.experts(plan, DeviceId(1)));
      EXPECT_EQ(footprint.dense, held.dense());
    }
  }
}

TEST(AFootprint, OfALatentCacheIsOneVectorATokenAndLayer) {
  const std::filesystem::path folder = GRACE_SOURCE_DIR "/tests/fixtures/architectures/deepseek_v2";
  const ModelConfig config = read_model_config(folder).value();
  const Plan plan = vanilla_plan(config.name, config.num_experts, config.moe_layers, cluster_of("1x1"));
  const WeightForm form{Element::kBf16, kernels::Numbers::kBf16};
  EXPECT_EQ(footprint_of(config, plan, DeviceId(0), 10, form).cache,
            10 * 3 * (config.kv_rank + config.rotary_dim) * 2);
}

TEST(AFootprint, CountsTheCacheOfTheTokensThatAreServed) {
  const TinyModel model(TinyShape{});
  const ModelConfig config = read_model_config(model.folder()).value();
  const int row = config.num_kv_heads * config.head_dim;
  KvCache cache(config.num_layers, row, row, Element::kF32);
  const Plan plan = vanilla(model, cluster_of("1x1"));
  EXPECT_EQ(footprint_of(config, plan, DeviceId(0), 10).cache, 10 * cache.bytes_per_token());
}

TEST(AFootprint, OfAnUnknownArchitectureIsItsExperts) {
  const TinyModel model(TinyShape{});
  ModelConfig config = read_model_config(model.folder()).value();
  const Plan plan = vanilla(model, cluster_of("1x2"));
  const std::int64_t experts = footprint_of(config, plan, DeviceId(1)).experts;
  config.architecture = "replay";
  EXPECT_EQ(footprint_of(config, plan, DeviceId(1)).total(), experts);
}

TEST(AFootprint, IsToldInOneUnit) {
  constexpr std::int64_t kMib = 1 << 20;
  EXPECT_EQ(words_of({13'210 * kMib, 1'229 * kMib, 0}), "14.1 GiB (experts 12.9, dense 1.2)");
  EXPECT_EQ(words_of({3 * kMib, kMib / 2, kMib}), "4.5 MiB (experts 3.0, dense 0.5, cache 1.0)");
  EXPECT_EQ(words_of({}), "0.0 KiB (experts 0.0, dense 0.0)");
  EXPECT_EQ(words_of_bytes(8e9), "7.5 GiB");
}

}  // namespace
}  // namespace grace
