#include "grace/trace/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>

#include "grace/base/check.h"
#include "grace/base/limits.h"
#include "grace/base/rng.h"

namespace grace {
namespace {

constexpr int kMaxLayers = 10'000;
constexpr int kMaxTopics = 4'096;
constexpr int kMaxTopK = 1'024;  // far above any model; a row's time grows with its square
constexpr double kMaxZipf = 4;
constexpr std::int64_t kMaxChoices = std::int64_t{1} << 33;
constexpr std::int64_t kMaxSequences = std::numeric_limits<int>::max();

// One stream for each thing that is drawn, so that a change to one option leaves the others' draws alone.
enum Stream : std::uint64_t { kLayerStream, kSequenceStream, kPromptStream, kTokenStream, kChoiceStream };

// All layers of a block are written while its part of the trace is in the cache.
constexpr std::int64_t kBlockTokens = 512;

// A draw spends one 64-bit number: 16 bits for a coin, 48 for the alias table, whose product with up to 2^16
// items still fits.
constexpr int kCoinBits = 16, kPickBits = 48;
constexpr std::uint64_t kPickMask = (std::uint64_t{1} << kPickBits) - 1;

std::uint64_t coin_threshold(double probability) {
  return static_cast<std::uint64_t>(std::llround(std::ldexp(probability, kCoinBits)));
}
bool coin(std::uint64_t bits, std::uint64_t threshold) {
  return (bits & ((std::uint64_t{1} << kCoinBits) - 1)) < threshold;
}

// Draws one of its experts by weight in constant time (Walker 1977, Vose 1991). Immutable.
class AliasTable {
 public:
  // weights: [E]; of `experts` they are positive.
  AliasTable(std::span<const std::uint16_t> experts, std::span<const double> weights) {
    double sum = 0;
    for (const std::uint16_t e : experts) sum += weights[e];
    std::vector<double> scaled;
    for (const std::uint16_t e : experts)
      scaled.push_back(weights[e] / sum * static_cast<double>(experts.size()));
    std::vector<std::size_t> small, large;
    for (std::size_t i = experts.size(); i-- > 0;) (scaled[i] < 1 ? small : large).push_back(i);
    for (const std::uint16_t e : experts) slots_.push_back({kPickMask + 1, e, e});
    while (!small.empty() && !large.empty()) {
      const std::size_t lack = small.back(), plenty = large.back();
      small.pop_back();
      slots_[lack].threshold = static_cast<std::uint64_t>(std::llround(std::ldexp(scaled[lack], kPickBits)));
      slots_[lack].other = experts[plenty];
      scaled[plenty] -= 1 - scaled[lack];
      if (scaled[plenty] >= 1) continue;
      large.pop_back();
      small.push_back(plenty);
    }
  }

  std::size_t size() const { return slots_.size(); }
  std::uint16_t own(std::size_t i) const { return slots_[i].own; }
  std::uint16_t draw(std::uint64_t bits) const {
    const std::uint64_t product = (bits >> kCoinBits) * slots_.size();
    const Slot& slot = slots_[product >> kPickBits];
    return (product & kPickMask) < slot.threshold ? slot.own : slot.other;
  }

 private:
  struct Slot {
    std::uint64_t threshold;  // of 2^48: below it the slot's own expert
    std::uint16_t own, other;
  };
  std::vector<Slot> slots_;
};

// What one layer draws from.
struct Layer {
  std::vector<double> weights;                   // [E]
  std::vector<std::uint16_t> cluster_of_expert;  // [E]
  std::vector<std::size_t> cluster_sizes;        // [clusters]
  std::vector<std::uint16_t> pool_of_topic;      // [topics]: the clusters a topic prefers, dealt into pools
  std::vector<AliasTable> all;                   // one: every expert
  std::vector<AliasTable> of_cluster;            // [clusters]
  std::vector<AliasTable> of_pool;               // [pools]
};

// Items dealt at random into `parts` parts of equal size, to within one: the part of each.
std::vector<std::uint16_t> deal(int items, int parts, Rng& rng) {
  std::vector<std::uint16_t> order(static_cast<std::size_t>(items));
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  rng.shuffle(std::span(order));
  std::vector<std::uint16_t> part_of(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    part_of[order[i]] = static_cast<std::uint16_t>(i % static_cast<std::size_t>(parts));
  return part_of;
}

Rng layer_rng(const SyntheticOptions& options, std::size_t layer) {
  return Rng(options.seed).fork(kLayerStream).fork(layer);
}

// One table for each part of the experts.
std::vector<AliasTable> tables_of(const Layer& layer, int parts, auto part_of_expert) {
  std::vector<std::vector<std::uint16_t>> members(static_cast<std::size_t>(parts));
  for (std::size_t e = 0; e < layer.weights.size(); ++e)
    members[part_of_expert(e)].push_back(static_cast<std::uint16_t>(e));
  std::vector<AliasTable> tables;
  for (const auto& experts : members) tables.emplace_back(experts, layer.weights);
  return tables;
}

Layer make_layer(const SyntheticOptions& options, std::size_t ordinal) {
  Rng rng = layer_rng(options, ordinal);
  Layer layer;
  layer.cluster_of_expert = deal(options.num_experts, options.clusters, rng);  // first: the truth redoes it
  layer.cluster_sizes.resize(static_cast<std::size_t>(options.clusters));
  for (const std::uint16_t cluster : layer.cluster_of_expert) ++layer.cluster_sizes[cluster];
  for (const std::uint16_t rank : deal(options.num_experts, options.num_experts, rng))
    layer.weights.push_back(std::pow(1.0 + rank, -options.zipf));
  const int pools = std::min(options.topics, options.clusters);
  const std::vector<std::uint16_t> pool_of_cluster = deal(options.clusters, pools, rng);
  layer.pool_of_topic = deal(options.topics, pools, rng);
  layer.all = tables_of(layer, 1, [](std::size_t) { return std::size_t{0}; });
  layer.of_cluster =
      tables_of(layer, options.clusters, [&](std::size_t e) { return layer.cluster_of_expert[e]; });
  layer.of_pool =
      tables_of(layer, pools, [&](std::size_t e) { return pool_of_cluster[layer.cluster_of_expert[e]]; });
  return layer;
}

// What one sequence is about.
struct Subject {
  std::uint16_t topic = 0, second_topic = 0;
  double second_share = 0;
};

std::int64_t num_sequences(const SyntheticOptions& options) {
  return options.tokens / options.sequence_length + (options.tokens % options.sequence_length > 0 ? 1 : 0);
}

std::vector<Subject> make_subjects(const SyntheticOptions& options) {
  std::vector<double> popularity_up_to;  // [topics], running sums
  double sum = 0;
  for (int t = 0; t < options.topics; ++t) popularity_up_to.push_back(sum += 1.0 / (1 + t));
  const std::int64_t count = num_sequences(options);
  const Rng root = Rng(options.seed).fork(kSequenceStream);
  std::vector<Subject> subjects;
  for (std::int64_t s = 0; s < count; ++s) {
    Rng rng = root.fork(static_cast<std::uint64_t>(s));
    const double time = count > 1 ? static_cast<double>(s) / static_cast<double>(count - 1) : 0;
    const auto draw_topic = [&] {
      const auto found = std::ranges::upper_bound(popularity_up_to, rng.uniform() * sum);
      const auto topic = std::min(found - popularity_up_to.begin(), std::ptrdiff_t{options.topics} - 1);
      const bool reversed = rng.uniform() < options.drift * time;
      return static_cast<std::uint16_t>(reversed ? options.topics - 1 - topic : topic);
    };
    Subject& subject = subjects.emplace_back();
    subject.topic = draw_topic();
    subject.second_topic = draw_topic();
    subject.second_share = rng.uniform() * options.mixing;
  }
  return subjects;
}

// Draws the rows of one layer. Thread-compatible; scratch of its own.
class Chooser {
 public:
  Chooser(const SyntheticOptions& options, const Layer& layer, Rng rng)
      : layer_(layer),
        rng_(rng),
        cluster_coin_(coin_threshold(options.strength)),
        topic_coin_(coin_threshold(options.topic_strength)) {}

  // K different experts into `row`.
  void choose(std::uint16_t topic, std::span<std::uint16_t> row) {
    row_ = row;
    chosen_ = 0;
    std::uint64_t bits = rng_.next();
    const AliasTable& first = coin(bits, topic_coin_) ? layer_.of_pool[layer_.pool_of_topic[topic]] : all();
    row_[chosen_++] = first.draw(bits);
    const std::uint16_t home = layer_.cluster_of_expert[row_[0]];
    std::size_t left_at_home = layer_.cluster_sizes[home] - 1;
    while (chosen_ < row_.size()) {
      bits = rng_.next();
      const bool stays = coin(bits, cluster_coin_) && left_at_home > 0;
      const std::uint16_t expert = draw_new(stays ? layer_.of_cluster[home] : all(), bits);
      row_[chosen_++] = expert;
      if (layer_.cluster_of_expert[expert] == home) --left_at_home;
    }
  }

 private:
  const AliasTable& all() const { return layer_.all.front(); }

  bool is_chosen(std::uint16_t expert) const {
    const auto chosen = row_.first(chosen_);
    return std::ranges::find(chosen, expert) != chosen.end();
  }

  // Drawing again until the expert is new is drawing by weight from the new ones. After a few tries it is
  // done at once, by going through them: both are the same distribution, and the time stays bounded.
  std::uint16_t draw_new(const AliasTable& table, std::uint64_t bits) {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i, bits = rng_.next()) {
      const std::uint16_t expert = table.draw(bits);
      if (!is_chosen(expert)) return expert;
    }
    return draw_by_going_through(table);
  }

  // REQUIRES: an expert of the table is not chosen yet.
  std::uint16_t draw_by_going_through(const AliasTable& table) {
    taken_.assign(layer_.weights.size(), 0);
    for (std::size_t i = 0; i < chosen_; ++i) taken_[row_[i]] = 1;
    double sum = 0;
    for (std::size_t i = 0; i < table.size(); ++i)
      if (taken_[table.own(i)] == 0) sum += layer_.weights[table.own(i)];
    double rest = rng_.uniform() * sum;
    std::uint16_t last = 0;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (taken_[table.own(i)] != 0) continue;
      last = table.own(i);
      if ((rest -= layer_.weights[last]) < 0) break;
    }
    return last;
  }

  const Layer& layer_;
  Rng rng_;
  const std::uint64_t cluster_coin_, topic_coin_;
  std::span<std::uint16_t> row_;
  std::size_t chosen_ = 0;
  std::vector<char> taken_;  // [E]
};

void fill_block(const SyntheticOptions& options, const std::vector<Layer>& layers,
                const std::vector<Subject>& subjects, std::size_t block, std::vector<std::uint16_t>& ids) {
  const std::int64_t begin = static_cast<std::int64_t>(block) * kBlockTokens;
  const std::int64_t end = std::min(begin + kBlockTokens, options.tokens);
  std::array<std::uint16_t, kBlockTokens> topics;  // of the block's tokens
  Rng rng = Rng(options.seed).fork(kTokenStream).fork(block);
  for (std::int64_t t = begin; t < end; ++t) {
    const Subject& subject = subjects[static_cast<std::size_t>(t / options.sequence_length)];
    topics[static_cast<std::size_t>(t - begin)] =
        rng.uniform() < subject.second_share ? subject.second_topic : subject.topic;
  }
  const Rng choices = Rng(options.seed).fork(kChoiceStream).fork(block);
  const auto width = static_cast<std::size_t>(options.experts_per_token);
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    Chooser chooser(options, layers[layer], choices.fork(layer));
    for (std::int64_t t = begin; t < end; ++t) {
      const std::size_t row = static_cast<std::size_t>(t) * layers.size() + layer;
      chooser.choose(topics[static_cast<std::size_t>(t - begin)], std::span(ids).subspan(row * width, width));
    }
  }
}

template <typename T>
Status check_within(std::string_view name, T value, T lowest, T highest) {
  if (value >= lowest && value <= highest) return {};
  return invalid_input(fmt::format("{}: {} is outside [{}, {}]", name, value, lowest, highest));
}

Status check(const SyntheticOptions& o) {
  GRACE_TRY(check_within("moe_layers", o.moe_layers, 1, kMaxLayers));
  GRACE_TRY(check_within("dense_layers", o.dense_layers, 0, kMaxLayers));
  GRACE_TRY(check_within("num_experts", o.num_experts, 1, kMaxExperts));
  GRACE_TRY(check_within("experts_per_token", o.experts_per_token, 1, std::min(o.num_experts, kMaxTopK)));
  const std::int64_t most = kMaxChoices / (std::int64_t{o.moe_layers} * o.experts_per_token);
  GRACE_TRY(check_within("tokens", o.tokens, std::int64_t{0}, most));
  GRACE_TRY(check_within("sequence_length", o.sequence_length, std::int64_t{1}, kMaxChoices));
  GRACE_TRY(check_within("sequences", num_sequences(o), std::int64_t{0}, kMaxSequences));
  GRACE_TRY(check_within("clusters", o.clusters, 1, o.num_experts));
  GRACE_TRY(check_within("strength", o.strength, 0.0, 1.0));
  GRACE_TRY(check_within("zipf", o.zipf, 0.0, kMaxZipf));
  GRACE_TRY(check_within("topics", o.topics, 1, kMaxTopics));
  GRACE_TRY(check_within("topic_strength", o.topic_strength, 0.0, 1.0));
  GRACE_TRY(check_within("mixing", o.mixing, 0.0, 1.0));
  GRACE_TRY(check_within("drift", o.drift, 0.0, 1.0));
  if (o.drift > 0 && o.topics < 2)
    return invalid_input(fmt::format("drift: {} needs at least 2 topics, there is {}", o.drift, o.topics));
  return check_within("prompt_length", o.prompt_length, std::int64_t{1}, kMaxChoices);
}

std::string describe(const SyntheticOptions& o) {
  return fmt::format(
      "synthetic: {} clusters of strength {}, zipf {}, {} topics of strength {}, mixing {}, drift {}, seed "
      "{}",
      o.clusters, o.strength, o.zipf, o.topics, o.topic_strength, o.mixing, o.drift, o.seed);
}

Trace empty_trace(const SyntheticOptions& options) {
  Trace trace;
  trace.model = options.model;
  trace.source = describe(options);
  trace.num_experts = options.num_experts;
  trace.experts_per_token = options.experts_per_token;
  trace.decoder_layers.resize(static_cast<std::size_t>(options.moe_layers));
  std::iota(trace.decoder_layers.begin(), trace.decoder_layers.end(), options.dense_layers);
  trace.phase = options.phase;
  trace.sequence_offsets = {0};
  Rng rng = Rng(options.seed).fork(kPromptStream);
  for (std::int64_t begin = 0; begin < options.tokens; begin = trace.sequence_offsets.back()) {
    const std::int64_t length = std::min(options.sequence_length, options.tokens - begin);
    trace.sequence_offsets.push_back(begin + length);
    if (options.phase != Phase::kMixed) continue;
    const std::int64_t longest = std::min(length, options.prompt_length);
    trace.prompt_lengths.push_back(1 +
                                   static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(longest))));
  }
  return trace;
}

}  // namespace

Result<Trace> synthetic_trace(const SyntheticOptions& options, ThreadPool& pool,
                              const std::function<void(std::int64_t, std::int64_t)>& progress) {
  GRACE_TRY(check(options));
  Trace trace = empty_trace(options);
  const auto num_layers = static_cast<std::size_t>(options.moe_layers);
  std::vector<Layer> layers(num_layers);
  pool.for_each(num_layers, [&](std::size_t layer, int) { layers[layer] = make_layer(options, layer); });
  const std::vector<Subject> subjects = make_subjects(options);
  trace.topk_ids.resize(static_cast<std::size_t>(options.tokens) * num_layers *
                        static_cast<std::size_t>(options.experts_per_token));
  const auto blocks = static_cast<std::size_t>((options.tokens + kBlockTokens - 1) / kBlockTokens);
  pool.for_each(blocks, [&](std::size_t block, int thread) {
    fill_block(options, layers, subjects, block, trace.topk_ids);
    // Blocks are handed out in ascending order, so what came before this one is done but for a few.
    if (thread == 0 && progress) progress(static_cast<std::int64_t>(block) * kBlockTokens, options.tokens);
  });
  return trace;
}

std::vector<int> planted_cluster_of_expert(const SyntheticOptions& options, MoeOrdinal layer) {
  GRACE_CHECK(check(options).ok(), "options of a synthetic trace");
  GRACE_CHECK(layer.value >= 0 && layer.value < options.moe_layers, "no such layer");
  Rng rng = layer_rng(options, layer.idx());
  const std::vector<std::uint16_t> cluster_of_expert = deal(options.num_experts, options.clusters, rng);
  return {cluster_of_expert.begin(), cluster_of_expert.end()};
}

std::vector<int> planted_topic_of_sequence(const SyntheticOptions& options) {
  GRACE_CHECK(check(options).ok(), "options of a synthetic trace");
  std::vector<int> topics;
  for (const Subject& subject : make_subjects(options)) topics.push_back(subject.topic);
  return topics;
}

}  // namespace grace
