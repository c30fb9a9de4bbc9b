#include "grace/runtime/engine.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "grace/base/check.h"
#include "grace/kernels/kernels.h"
#include "grace/runtime/agreement.h"
#include "grace/runtime/attention_block.h"
#include "grace/runtime/context.h"
#include "grace/runtime/dense_ffn.h"
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
  void release(int sequence) override { memory_.cache.release(sequence); }
  Status step(const StepInput& input, bool all_logits, std::vector<float>& logits) override;
  std::span<const LayerCounters> counters() const override { return counters_; }
  void clear_counters() override { counters_.assign(counters_.size(), {}); }
  std::vector<Span> take_spans() override { return spans_.take(); }
  Trace take_trace() override;

 private:
  // One of moe and dense.
  struct Layer {
    std::unique_ptr<AttentionBlock> attention;
    std::optional<MoeLayer> moe;
    std::optional<DenseFfn> dense;
  };

  CpuEngine(ModelConfig config, Checkpoint checkpoint, const Cluster& cluster, Transport& transport,
            ThreadPool& pool, const EngineOptions& options)
      : config_(std::move(config)),
        checkpoint_(std::move(checkpoint)),
        cluster_(cluster),
        spans_(options.record_spans),
        context_{config_,          cluster_,           transport,    pool,
                 options.dispatch, options.combine,    options.wire, options.overlap,
                 options.aligned,  options.arithmetic, spans_},
        runner_(context_, options),
        rotary_(rotary_of(config_)),
        memory_{
            KvCache(config_.num_layers, cache_row_of(config_).keys, cache_row_of(config_).values,
                    options.arithmetic.numbers == kernels::Numbers::kF32 ? Element::kF32 : Element::kBf16)},
        counters_(config_.moe_layers.size()),
        choose_(options.choose),
        record_trace_(options.record_trace) {}
  Status load_weights(const Plan& plan);
  std::vector<std::int32_t> check_input(const StepInput& input) const;
  Choices chosen_for(MoeOrdinal layer, const StepInput& input, std::span<const std::int32_t> positions) const;
  void compute_logits(const StepInput& input, bool all_logits, std::span<const float> h,
                      std::vector<float>& logits) const;

  ModelConfig config_;
  Checkpoint checkpoint_;
  Cluster cluster_;
  SpanLog spans_;
  RankContext context_;
  StepRunner runner_;
  MatrixView embedding_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  kernels::PackedMatrix lm_head_;
  kernels::RotaryTable rotary_;
  kernels::Rotations turns_;
  AttentionMemory memory_;
  std::vector<LayerCounters> counters_;
  decltype(EngineOptions::choose) choose_;
  bool record_trace_;
  TraceRecorder recorder_;
};

Result<std::unique_ptr<CpuEngine>> CpuEngine::load(const std::filesystem::path& folder, const Plan& plan,
                                                   const Cluster& cluster, Transport& transport,
                                                   ThreadPool& pool, const EngineOptions& options) {
  ModelConfig config = GRACE_TRY(read_model_config(folder));
  Status status = check_together(config, plan, cluster, transport);
  if (!status.ok()) return std::move(status).error();
  Checkpoint checkpoint = GRACE_TRY(Checkpoint::open(folder));
  std::unique_ptr<CpuEngine> engine(
      new CpuEngine(std::move(config), std::move(checkpoint), cluster, transport, pool, options));
  status = engine->load_weights(plan);
  if (!status.ok()) return std::move(status).error();
  return engine;
}

Status CpuEngine::load_weights(const Plan& plan) {
  DenseWeights dense = GRACE_TRY(load_dense(config_, checkpoint_));
  lm_head_ = pack_weight(context_, checkpoint_, dense.lm_head.empty() ? dense.embedding : dense.lm_head);
  embedding_ = dense.embedding;
  final_norm_ = std::move(dense.final_norm);
  MoeOrdinal ordinal{0};
  for (int l = 0; l < config_.num_layers; ++l) {
    LayerWeights& weights = dense.layers[static_cast<std::size_t>(l)];
    Layer& layer = layers_.emplace_back();
    layer.attention = make_attention(context_, checkpoint_, weights);
    if (!config_.is_moe(l)) {
      layer.dense.emplace(context_, checkpoint_, weights);
      continue;
    }
    const std::vector<ExpertId> hosted = plan.layers[ordinal.idx()].experts_on(context_.device());
    const std::vector<ExpertWeights> experts = GRACE_TRY(load_experts(config_, checkpoint_, ordinal, hosted));
    layer.moe = GRACE_TRY(MoeLayer::make(context_, checkpoint_, plan, ordinal, weights, experts));
    ++ordinal.value;
  }
  return {};
}

void CpuEngine::reset(int num_sequences) {
  memory_.cache.reset(num_sequences);
  recorder_.reset(num_sequences);
  for (Layer& layer : layers_)
    if (layer.moe) layer.moe->reset(context_);
}

// The positions of the new tokens, after checking that they can be run.
std::vector<std::int32_t> CpuEngine::check_input(const StepInput& input) const {
  GRACE_CHECK(input.num_new.size() == input.sequences.size(), "num_new is not [sequences]");
  std::vector<char> seen(static_cast<std::size_t>(memory_.cache.num_sequences()), 0);
  std::vector<std::int32_t> positions;
  for (std::size_t s = 0; s < input.sequences.size(); ++s) {
    const int sequence = input.sequences[s];
    GRACE_CHECK(sequence >= 0 && sequence < memory_.cache.num_sequences(),
                "a sequence outside those of reset()");
    GRACE_CHECK(std::exchange(seen[static_cast<std::size_t>(sequence)], 1) == 0,
                "a sequence twice in one step");
    GRACE_CHECK(input.num_new[s] >= 1, "a sequence without new tokens");
    const int length = memory_.cache.length(sequence);
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
  for (std::size_t t = 0; t < input.token_ids.size(); ++t)
    read_row(embedding_, input.token_ids[t], std::span(h).subspan(t * hidden, hidden));
  kernels::turn_to(positions, rotary_, turns_);
  const BatchRows rows{input.sequences, input.num_new, turns_};
  std::vector<Choices> choices(config_.moe_layers.size());
  MoeOrdinal ordinal{0};
  GRACE_TRY(runner_.begin(input.token_ids.size()));
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    spans_.set_layer(layer.moe ? ordinal.value : kDenseLayer);
    const double begin = now_s();
    layer.attention->run(context_, static_cast<int>(l), rows, memory_, h);
    const double attended = now_s();
    spans_.add(Activity::kAttention, begin, attended);
    if (!layer.moe) {
      layer.dense->run(context_, memory_, h);
      spans_.add(Activity::kDense, attended, now_s());
      continue;
    }
    Choices& chosen = choices[ordinal.idx()];
    if (choose_) chosen = chosen_for(ordinal, input, positions);
    GRACE_TRY(layer.moe->run(context_, runner_, h, counters_[ordinal.idx()], chosen));
    if (!record_trace_) chosen = {};
    ++ordinal.value;
  }
  for (std::size_t s = 0; s < input.sequences.size(); ++s)
    memory_.cache.advance(input.sequences[s], input.num_new[s]);
  if (record_trace_) recorder_.record(config_, input, choices);
  compute_logits(input, all_logits, h, logits);
  return {};
}

Choices CpuEngine::chosen_for(MoeOrdinal layer, const StepInput& input,
                              std::span<const std::int32_t> positions) const {
  const auto top = static_cast<std::size_t>(config_.experts_per_token);
  Choices choices;
  choices.experts.resize(positions.size() * top);
  std::size_t token = 0;
  for (std::size_t s = 0; s < input.sequences.size(); ++s)
    for (int i = 0; i < input.num_new[s]; ++i, ++token)
      choose_(layer, input.sequences[s], positions[token],
              std::span(choices.experts).subspan(token * top, top));
  return choices;
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
  kernels::rms_norm(x, final_norm_, config_.rms_norm_eps, x, context_.pool);
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
    case Activity::kDense:
      return "dense";
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
