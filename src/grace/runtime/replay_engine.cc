#include "grace/runtime/replay_engine.h"

#include <algorithm>
#include <utility>

#include "grace/base/check.h"
#include "grace/base/rng.h"
#include "grace/kernels/kernels.h"
#include "grace/routing/partners.h"
#include "grace/runtime/agreement.h"
#include "grace/runtime/context.h"
#include "grace/runtime/moe_layer.h"
#include "grace/runtime/step_runner.h"

namespace grace {
namespace {

constexpr int kVocabulary = 256;
constexpr int kMaxPositions = 1 << 20;
// Streams of the seed.
enum Stream : std::uint64_t { kWeights = 1, kTokens = 2, kHead = 3 };

class ReplayEngine final : public Engine {
 public:
  ReplayEngine(const ReplaySource& source, const Cluster& cluster, Transport& transport, ThreadPool& pool,
               const EngineOptions& options)
      : source_(source),
        config_(config_of(source)),
        cluster_(cluster),
        spans_(options.record_spans),
        context_{config_,          cluster_,           transport,    pool,
                 options.dispatch, options.combine,    options.wire, options.overlap,
                 options.aligned,  options.arithmetic, spans_},
        runner_(context_, options),
        counters_(config_.moe_layers.size()) {}

  Status load(const Plan& plan) {
    GRACE_TRY(check_partners(plan, config_.experts_per_token));
    const std::uint64_t seed = Rng(source_.seed).fork(kWeights).next();
    for (int l = 0; l < config_.num_layers; ++l)
      layers_.push_back(GRACE_TRY(MoeLayer::make_random(context_, plan, MoeOrdinal(l), seed)));
    std::vector<float> head(static_cast<std::size_t>(kVocabulary) *
                            static_cast<std::size_t>(config_.hidden_size));
    fill(Rng(source_.seed).fork(kHead), head);
    head_ = kernels::pack(head, kVocabulary, config_.hidden_size);
    return {};
  }

  const ModelConfig& config() const override { return config_; }
  void reset(int num_sequences) override {
    length_.assign(static_cast<std::size_t>(num_sequences), 0);
    for (MoeLayer& layer : layers_) layer.reset(context_);
  }
  void release(int) override {}

  Status step(const StepInput& input, bool all_logits, std::vector<float>& logits) override {
    const std::vector<std::int64_t> rows = rows_of(input);
    const auto hidden = static_cast<std::size_t>(config_.hidden_size);
    std::vector<float> h(rows.size() * hidden);
    for (std::size_t t = 0; t < rows.size(); ++t)
      fill(Rng(source_.seed).fork(kTokens).fork(static_cast<std::uint64_t>(rows[t])),
           std::span(h).subspan(t * hidden, hidden));
    GRACE_TRY(runner_.begin(rows.size()));
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      spans_.set_layer(static_cast<int>(l));
      std::vector<float> x = h;
      GRACE_TRY(layers_[l].serve(context_, runner_, x, choices_of(rows, l), h, counters_[l]));
    }
    if (!all_logits) keep_last(input, h);
    logits.assign(h.size() / hidden * kVocabulary, 0.0F);
    kernels::matmul(h, head_, logits, context_.pool);
    return {};
  }

  std::span<const LayerCounters> counters() const override { return counters_; }
  void clear_counters() override { counters_.assign(counters_.size(), {}); }
  std::vector<Span> take_spans() override { return spans_.take(); }
  Trace take_trace() override { return {}; }

 private:
  static void fill(Rng rng, std::span<float> values) {
    for (float& value : values) value = static_cast<float>(2 * rng.uniform() - 1);
  }

  // The trace's row of each new token.
  std::vector<std::int64_t> rows_of(const StepInput& input) {
    const Trace& trace = source_.trace;
    std::vector<std::int64_t> rows;
    for (std::size_t s = 0; s < input.sequences.size(); ++s) {
      const auto slot = static_cast<std::size_t>(input.sequences[s]);
      GRACE_CHECK(slot < length_.size(), "a sequence outside those of reset()");
      const std::size_t prompt =
          slot * static_cast<std::size_t>(context_.transport.size()) + context_.device().idx();
      const std::size_t sequence = prompt % static_cast<std::size_t>(trace.num_sequences());
      const std::int64_t first = trace.sequence_offsets[sequence];
      const std::int64_t tokens = trace.sequence_offsets[sequence + 1] - first;
      for (int i = 0; i < input.num_new[s]; ++i) rows.push_back(first + length_[slot]++ % tokens);
    }
    return rows;
  }

  Choices choices_of(std::span<const std::int64_t> rows, std::size_t layer) const {
    Choices choices;
    for (const std::int64_t row : rows) {
      const auto chosen = source_.trace.choices(row, MoeOrdinal(static_cast<int>(layer)));
      for (const std::uint16_t expert : chosen)
        choices.experts.push_back(expert == kNotRouted ? kNotChosen : expert);
      hold_to_partners(layers_[layer].plan(), std::span(choices.experts).last(chosen.size()),
                       source_.trace.weights(row, MoeOrdinal(static_cast<int>(layer))));
    }
    choices.weights.assign(choices.experts.size(), 1.0F / static_cast<float>(config_.experts_per_token));
    return choices;
  }

  void keep_last(const StepInput& input, std::vector<float>& h) const {
    const auto hidden = static_cast<std::ptrdiff_t>(config_.hidden_size);
    std::vector<float> last;
    std::ptrdiff_t end = 0;
    for (const int count : input.num_new) {
      end += count;
      last.insert(last.end(), h.begin() + (end - 1) * hidden, h.begin() + end * hidden);
    }
    h = std::move(last);
  }

  const ReplaySource& source_;
  ModelConfig config_;
  Cluster cluster_;
  SpanLog spans_;
  RankContext context_;
  StepRunner runner_;
  std::vector<MoeLayer> layers_;
  kernels::PackedMatrix head_;
  std::vector<LayerCounters> counters_;
  std::vector<std::int64_t> length_;  // [slots]
};

}  // namespace

ModelConfig config_of(const ReplaySource& source) {
  ModelConfig config;
  config.architecture = "replay";
  config.name = source.trace.model;
  config.hidden_size = source.hidden;
  config.num_layers = source.trace.num_moe_layers();
  config.vocab_size = kVocabulary;
  config.num_experts = source.trace.num_experts;
  config.experts_per_token = source.trace.experts_per_token;
  config.expert_ffn_size = source.expert_ffn;
  config.max_positions = kMaxPositions;
  config.moe_layers = source.trace.decoder_layers;
  return config;
}

Result<std::unique_ptr<Engine>> make_replay_engine(const ReplaySource& source, const Plan& plan,
                                                   const Cluster& cluster, Transport& transport,
                                                   ThreadPool& pool, const EngineOptions& options) {
  GRACE_CHECK(source.hidden > 0 && source.expert_ffn > 0, "a shape has sizes");
  std::unique_ptr<ReplayEngine> engine;
  Status mine = source.trace.num_tokens() > 0
                    ? check_together(config_of(source), plan, cluster, transport)
                    : invalid_input("trace of " + source.trace.model + ": it has no tokens to replay");
  if (mine.ok()) {
    engine = std::make_unique<ReplayEngine>(source, cluster, transport, pool, options);
    mine = engine->load(plan);
  }
  Status all = agree(transport, mine);
  if (!all.ok()) return std::move(all).error();
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace grace
