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
std::int64_t packed_bytes_of(Matrix& matrix) { return bytes_of(pack_and_free(matrix).panels); }

// What is held once everything is loaded and packed.
std::int64_t held_dense(const ModelConfig& config, const Checkpoint& checkpoint) {
  DenseWeights dense = load_dense(config, checkpoint).value();
  std::int64_t bytes = bytes_of(dense.embedding.values) + bytes_of(dense.final_norm);
  Matrix head = dense.lm_head.values.empty() ? dense.embedding : dense.lm_head;
  bytes += packed_bytes_of(head);
  for (LayerWeights& layer : dense.layers) {
    for (Matrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.router})
      bytes += packed_bytes_of(*matrix);
    for (const auto* norm : {&layer.input_norm, &layer.post_attention_norm, &layer.q_norm, &layer.k_norm})
      bytes += bytes_of(*norm);
  }
  return bytes;
}

std::int64_t held_experts(const ModelConfig& config, const Checkpoint& checkpoint, const Plan& plan,
                          DeviceId device) {
  std::int64_t bytes = 0;
  for (std::size_t m = 0; m < plan.layers.size(); ++m) {
    const auto hosted = plan.layers[m].experts_on(device);
    auto experts = load_experts(config, checkpoint, MoeOrdinal(static_cast<std::int32_t>(m)), hosted).value();
    for (ExpertWeights& expert : experts)
      for (Matrix* matrix : {&expert.gate, &expert.up, &expert.down}) bytes += packed_bytes_of(*matrix);
  }
  return bytes;
}

// No size of the tiny model is a multiple of a panel's.
TEST(AFootprint, IsWhatARankHolds) {
  const TinyModel model(TinyShape{.hidden = 40, .layers = 3, .ffn = 20});
  const ModelConfig config = read_model_config(model.folder()).value();
  const Checkpoint checkpoint = Checkpoint::open(model.folder()).value();
  const Cluster cluster = cluster_of("1+3");
  for (const Plan& plan : {vanilla(model, cluster), shuffled(model, cluster, 5)})
    for (int d = 0; d < cluster.num_devices(); ++d) {
      SCOPED_TRACE("device " + std::to_string(d));
      const Footprint footprint = footprint_of(config, plan, DeviceId(d));
      EXPECT_EQ(footprint.experts, held_experts(config, checkpoint, plan, DeviceId(d)));
      EXPECT_EQ(footprint.dense, held_dense(config, checkpoint));
      EXPECT_EQ(footprint.cache, 0);
    }
}

TEST(AFootprint, CountsTheCacheOfTheTokensThatAreServed) {
  const TinyModel model(TinyShape{});
  const ModelConfig config = read_model_config(model.folder()).value();
  KvCache cache(config.num_layers, config.num_kv_heads * config.head_dim);
  cache.reset(2);
  std::int64_t held = 0;
  for (int sequence = 0; sequence < 2; ++sequence)
    for (int layer = 0; layer < config.num_layers; ++layer) {
      const std::vector<float> rows(static_cast<std::size_t>(5 * config.num_kv_heads * config.head_dim));
      cache.append(layer, sequence, rows, rows);
      held += static_cast<std::int64_t>(
          (cache.keys(layer, sequence).size() + cache.values(layer, sequence).size()) * sizeof(float));
    }
  const Plan plan = vanilla(model, cluster_of("1x1"));
  EXPECT_EQ(footprint_of(config, plan, DeviceId(0), 10).cache, held);
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
