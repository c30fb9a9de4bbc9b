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
                 options.aligned,  options.arithmetic, spans_,       nullptr},
        runner_(context_, options),
        rotary_(rotary_of(config_)),
        memory_{KvCache(config_.num_layers, cache_row_of(config_).keys, cache_row_of(config_).values,
                        options.arithmetic.numbers == kernels::Numbers::kF32 ? Element::kF32 : Element::kBf16,
                        config_.attention == AttentionKind::kLatent ? 1 : config_.num_kv_heads)},
        counters_(config_.moe_layers.size()),
        choose_(options.choose),
        record_trace_(options.record_trace) {}
  Status load_weights(const Plan& plan);
  void take_input(const StepInput& input);
  Status run_layers(std::span<float> h);
  void choose_for(MoeOrdinal layer, Choices& choices) const;
  void compute_logits(const StepInput& input, bool all_logits, std::span<const float> h,
                      std::vector<float>& logits);

  ModelConfig config_;
  Checkpoint checkpoint_;
  Cluster cluster_;
  SpanLog spans_;
  std::optional<PackedCache> cache_;
  RankContext context_;
  StepRunner runner_;
  MatrixView embedding_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  kernels::PackedMatrix lm_head_;
  kernels::RotaryTable rotary_;
  kernels::Rotations turns_;
  // Of the present step.
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> positions_;
  std::vector<char> seen_;  // [slots] by this step's input
  Scratch h_, last_;
  std::vector<Choices> choices_;  // [M]; of the last layer alone where no trace is recorded
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
  if (!options.packed_cache.empty()) {
    engine->cache_ = GRACE_TRY(PackedCache::open(options.packed_cache, engine->checkpoint_));
    engine->context_.cache = &*engine->cache_;
  }
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
  return cache_ ? cache_->status() : Status();
}

void CpuEngine::reset(int num_sequences) {
  memory_.cache.reset(num_sequences);
  recorder_.reset(num_sequences);
  for (Layer& layer : layers_)
    if (layer.moe) layer.moe->reset(context_);
}

// What of the input its layers need, after checking that it can be run.
void CpuEngine::take_input(const StepInput& input) {
  GRACE_CHECK(input.num_new.size() == input.sequences.size(), "num_new is not [sequences]");
  seen_.assign(static_cast<std::size_t>(memory_.cache.num_sequences()), 0);
  positions_.clear();
  sequences_.clear();
  for (std::size_t s = 0; s < input.sequences.size(); ++s) {
    const int sequence = input.sequences[s];
    GRACE_CHECK(sequence >= 0 && sequence < memory_.cache.num_sequences(),
                "a sequence outside those of reset()");
    GRACE_CHECK(std::exchange(seen_[static_cast<std::size_t>(sequence)], 1) == 0,
                "a sequence twice in one step");
    GRACE_CHECK(input.num_new[s] >= 1, "a sequence without new tokens");
    const int length = memory_.cache.length(sequence);
    GRACE_CHECK(length + input.num_new[s] <= config_.max_positions, "more positions than the model has");
    sequences_.push_back({sequence, positions_.size(), static_cast<std::size_t>(input.num_new[s])});
    for (int i = 0; i < input.num_new[s]; ++i) positions_.push_back(length + i);
  }
  GRACE_CHECK(positions_.size() == input.token_ids.size(), "token_ids are not as many as num_new says");
  for (const std::int32_t id : input.token_ids)
    GRACE_CHECK(id >= 0 && id < config_.vocab_size, "a token id outside the vocabulary");
  kernels::turn_to(positions_, rotary_, turns_);
}

Status CpuEngine::step(const StepInput& input, bool all_logits, std::vector<float>& logits) {
  take_input(input);
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const std::span<float> h = h_.take(input.token_ids.size() * hidden);
  for (std::size_t t = 0; t < input.token_ids.size(); ++t)
    read_row(embedding_, input.token_ids[t], h.subspan(t * hidden, hidden));
  GRACE_TRY(runner_.begin(input.token_ids.size()));
  GRACE_TRY(run_layers(h));
  for (const SequenceRows& rows : sequences_)
    memory_.cache.advance(rows.sequence, static_cast<int>(rows.count));
  if (record_trace_) recorder_.record(config_, input, choices_);
  compute_logits(input, all_logits, h, logits);
  return {};
}

Status CpuEngine::run_layers(std::span<float> h) {
  const BatchRows rows{sequences_, turns_};
  choices_.resize(record_trace_ ? config_.moe_layers.size() : 1);
  MoeOrdinal ordinal{0};
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
    Choices& choices = choices_[record_trace_ ? ordinal.idx() : 0];
    choices.experts.clear();
    if (choose_) choose_for(ordinal, choices);
    GRACE_TRY(layer.moe->run(context_, runner_, h, counters_[ordinal.idx()], choices));
    ++ordinal.value;
  }
  return {};
}

void CpuEngine::choose_for(MoeOrdinal layer, Choices& choices) const {
  const auto top = static_cast<std::size_t>(config_.experts_per_token);
  choices.experts.resize(positions_.size() * top);
  for (const SequenceRows& rows : sequences_)
    for (std::size_t t = rows.first; t < rows.first + rows.count; ++t)
      choose_(layer, rows.sequence, positions_[t], std::span(choices.experts).subspan(t * top, top));
}

void CpuEngine::compute_logits(const StepInput& input, bool all_logits, std::span<const float> h,
                               std::vector<float>& logits) {
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const std::span<float> x = last_.take((all_logits ? input.token_ids.size() : sequences_.size()) * hidden);
  if (all_logits) {
    std::ranges::copy(h, x.begin());
  } else {
    for (std::size_t s = 0; s < sequences_.size(); ++s)
      std::copy_n(h.data() + (sequences_[s].first + sequences_[s].count - 1) * hidden, hidden,
                  x.data() + s * hidden);
  }
  kernels::rms_norm(x, final_norm_, config_.rms_norm_eps, x, context_.pool);
  logits.resize(x.size() / hidden * static_cast<std::size_t>(config_.vocab_size));
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
