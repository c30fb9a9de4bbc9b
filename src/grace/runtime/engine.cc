#include "grace/runtime/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "grace/base/check.h"
#include "grace/kernels/kernels.h"
#include "grace/runtime/agreement.h"
#include "grace/runtime/attention_block.h"
#include "grace/runtime/context.h"
#include "grace/runtime/kv_cache.h"
#include "grace/runtime/moe_layer.h"
#include "grace/runtime/packing.h"
#include "grace/runtime/step_runner.h"
#include "grace/runtime/trace_recorder.h"

namespace grace {
namespace {

class CpuEngine final : public Engine {
 public:
  // Loads this rank's share; what it returns is for this rank alone.
  static Result<std::unique_ptr<CpuEngine>> load(const std::filesystem::path& folder, const Plan& plan,
                                                 const Cluster& cluster, Transport& transport,
                                                 ThreadPool& pool, const EngineOptions& options);

  const ModelConfig& config() const override { return config_; }
  void reset(int num_sequences) override;
  void release(int sequence) override { cache_.release(sequence); }
  Status step(const StepInput& input, bool all_logits, std::vector<float>& logits) override;
  std::span<const LayerCounters> counters() const override { return counters_; }
  void clear_counters() override { counters_.assign(counters_.size(), {}); }
  std::vector<Span> take_spans() override { return spans_.take(); }
  Trace take_trace() override;

 private:
  struct Layer {
    AttentionBlock attention;
    MoeLayer moe;
  };

  CpuEngine(ModelConfig config, const Cluster& cluster, Transport& transport, ThreadPool& pool,
            const EngineOptions& options)
      : config_(std::move(config)),
        cluster_(cluster),
        spans_(options.record_spans),
        context_{config_,      cluster_,        transport,       pool,  options.dispatch, options.combine,
                 options.wire, options.overlap, options.aligned, spans_},
        runner_(context_, options),
        cache_(config_.num_layers, config_.num_kv_heads * config_.head_dim),
        counters_(config_.moe_layers.size()),
        record_trace_(options.record_trace) {}
  Status load_weights(const Checkpoint& checkpoint, const Plan& plan);
  std::vector<std::int32_t> check_input(const StepInput& input) const;
  void compute_logits(const StepInput& input, bool all_logits, std::span<const float> h,
                      std::vector<float>& logits) const;

  ModelConfig config_;
  Cluster cluster_;
  SpanLog spans_;
  RankContext context_;
  StepRunner runner_;
  Matrix embedding_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  kernels::PackedMatrix lm_head_;
  KvCache cache_;
  std::vector<LayerCounters> counters_;
  bool record_trace_;
  TraceRecorder recorder_;
};

Result<std::unique_ptr<CpuEngine>> CpuEngine::load(const std::filesystem::path& folder, const Plan& plan,
                                                   const Cluster& cluster, Transport& transport,
                                                   ThreadPool& pool, const EngineOptions& options) {
  ModelConfig config = GRACE_TRY(read_model_config(folder));
  Status status = check_together(config, plan, cluster, transport);
  if (!status.ok()) return std::move(status).error();
  const Checkpoint checkpoint = GRACE_TRY(Checkpoint::open(folder));
  std::unique_ptr<CpuEngine> engine(new CpuEngine(std::move(config), cluster, transport, pool, options));
  status = engine->load_weights(checkpoint, plan);
  if (!status.ok()) return std::move(status).error();
  return engine;
}

Status CpuEngine::load_weights(const Checkpoint& checkpoint, const Plan& plan) {
  DenseWeights dense = GRACE_TRY(load_dense(config_, checkpoint));
  const bool tied = dense.lm_head.values.empty();
  lm_head_ = tied ? kernels::pack(dense.embedding.values, dense.embedding.rows, dense.embedding.cols)
                  : pack_and_free(dense.lm_head);
  embedding_ = std::move(dense.embedding);
  final_norm_ = std::move(dense.final_norm);
  for (std::size_t l = 0; l < dense.layers.size(); ++l) {
    const MoeOrdinal ordinal{static_cast<std::int32_t>(l)};
    const std::vector<ExpertId> hosted = plan.layers[l].experts_on(context_.device());
    std::vector<ExpertWeights> experts = GRACE_TRY(load_experts(config_, checkpoint, ordinal, hosted));
    MoeLayer moe = GRACE_TRY(MoeLayer::make(context_, plan, ordinal, dense.layers[l], std::move(experts)));
    layers_.push_back({AttentionBlock(dense.layers[l]), std::move(moe)});
  }
  return {};
}

void CpuEngine::reset(int num_sequences) {
  cache_.reset(num_sequences);
  recorder_.reset(num_sequences);
  for (Layer& layer : layers_) layer.moe.reset(context_);
}

// The positions of the new tokens, after checking that they can be run.
std::vector<std::int32_t> CpuEngine::check_input(const StepInput& input) const {
  GRACE_CHECK(input.num_new.size() == input.sequences.size(), "num_new is not [sequences]");
  std::vector<char> seen(static_cast<std::size_t>(cache_.num_sequences()), 0);
  std::vector<std::int32_t> positions;
  for (std::size_t s = 0; s < input.sequences.size(); ++s) {
    const int sequence = input.sequences[s];
    GRACE_CHECK(sequence >= 0 && sequence < cache_.num_sequences(), "a sequence outside those of reset()");
    GRACE_CHECK(std::exchange(seen[static_cast<std::size_t>(sequence)], 1) == 0,
                "a sequence twice in one step");
    GRACE_CHECK(input.num_new[s] >= 1, "a sequence without new tokens");
    const int length = cache_.length(sequence);
    GRACE_CHECK(length + input.num_new[s] <= config_.max_positions, "more positions than the model has");
    for (int i = 0; i < input.num_new[s]; ++i) positions.push_back(length + i);
  }
  GRACE_CHECK(positions.size() == input.token_ids.size(), "token_ids are not as many as num_new says");
  for (const std::int32_t id : input.token_ids)
    GRACE_CHECK(id >= 0 && id < config_.vocab_size, "a token id outside the vocabulary");
  return positions;
}

Status CpuEngine::step(const StepInput& input, bool all_logits, std::vector<float>& logits) {
  const std::vector<std::int32_t> positions = check_input(input);
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  std::vector<float> h(input.token_ids.size() * hidden);
  for (std::size_t t = 0; t < input.token_ids.size(); ++t) {
    std::copy_n(embedding_.values.data() + static_cast<std::size_t>(input.token_ids[t]) * hidden, hidden,
                h.data() + t * hidden);
  }
  const BatchRows rows{input.sequences, input.num_new, positions};
  std::vector<Choices> choices(layers_.size());
  GRACE_TRY(runner_.begin(input.token_ids.size()));
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    spans_.set_layer(static_cast<int>(l));
    const double begin = now_s();
    layers_[l].attention.run(context_, static_cast<int>(l), rows, cache_, h);
    spans_.add(Activity::kAttention, begin, now_s());
    GRACE_TRY(layers_[l].moe.run(context_, runner_, h, counters_[l], choices[l]));
    if (!record_trace_) choices[l] = {};
  }
  for (std::size_t s = 0; s < input.sequences.size(); ++s)
    cache_.advance(input.sequences[s], input.num_new[s]);
  if (record_trace_) recorder_.record(config_, input, choices);
  compute_logits(input, all_logits, h, logits);
  return {};
}

void CpuEngine::compute_logits(const StepInput& input, bool all_logits, std::span<const float> h,
                               std::vector<float>& logits) const {
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  std::vector<float> x;
  if (all_logits) {
    x.assign(h.begin(), h.end());
  } else {
    std::size_t last = 0;
    for (const int count : input.num_new) {
      last += static_cast<std::size_t>(count);
      const auto row = h.subspan((last - 1) * hidden, hidden);
      x.insert(x.end(), row.begin(), row.end());
    }
  }
  kernels::rms_norm(x, final_norm_, config_.rms_norm_eps, x);
  logits.assign(x.size() / hidden * static_cast<std::size_t>(config_.vocab_size), 0.0F);
  kernels::matmul(x, lm_head_, logits, context_.pool);
}

Trace CpuEngine::take_trace() {
  GRACE_CHECK(record_trace_, "an engine that records no trace");
  return recorder_.take(config_);
}

}  // namespace

std::string_view name_of(Activity activity) {
  switch (activity) {
    case Activity::kAttention:
      return "attention";
    case Activity::kGate:
      return "gate";
    case Activity::kPack:
      return "pack";
    case Activity::kDispatch:
      return "dispatch";
    case Activity::kExperts:
      return "experts";
    case Activity::kCombine:
      return "combine";
    case Activity::kAdd:
      return "add";
  }
  return "unknown";
}

Status check_together(const ModelConfig& config, const Plan& plan, const Cluster& cluster,
                      const Transport& transport) {
  if (transport.size() != cluster.num_devices()) {
    return invalid_input("cluster " + cluster.name + ": it has " + std::to_string(cluster.num_devices()) +
                         " devices, but " + std::to_string(transport.size()) + " ranks run");
  }
  GRACE_TRY(check_fits(plan, config.num_experts, config.moe_layers, config.name));
  const std::vector<std::string> wrong = violations(plan, cluster);
  if (!wrong.empty()) return invalid_input("plan for cluster " + cluster.name + ": " + wrong.front());
  if (std::cmp_not_equal(config.moe_layers.size(), config.num_layers)) {
    return unsupported(config.name + ": " + std::to_string(config.moe_layers.size()) + " of " +
                       std::to_string(config.num_layers) +
                       " decoder layers are MoE, and dense feed-forward layers are not supported");
  }
  return {};
}

Result<std::unique_ptr<Engine>> Engine::make(const std::filesystem::path& folder, const Plan& plan,
                                             const Cluster& cluster, Transport& transport, ThreadPool& pool,
                                             const EngineOptions& options) {
  auto loaded = CpuEngine::load(folder, plan, cluster, transport, pool, options);
  Status mine;
  if (!loaded.ok()) mine = loaded.error();
  Status all = agree(transport, mine);
  if (!all.ok()) return std::move(all).error();
  return std::unique_ptr<Engine>(std::move(loaded).value());
}

}  // namespace grace
