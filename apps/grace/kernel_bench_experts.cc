// The experts of one layer, rows shared out as the engine shares them.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "grace/base/rng.h"
#include "grace/runtime/expert_work.h"
#include "kernel_bench_cases.h"

namespace grace::app {
namespace {

constexpr std::uint64_t kWeightSeed = 1, kTokenSeed = 2, kRoutingSeed = 3;

// The tokens' choices in one step: K different experts for each token, all equally likely.
struct Routing {
  std::vector<ExpertRow> rows;  // [T * K]
  std::vector<int> rows_of_expert;
  double experts = 0;  // that some token chose
};

struct Layer {
  ModelShape shape;
  kernels::Arithmetic arithmetic;
  ThreadPool& pool;
  HostedExperts experts;
  ExpertWork work;
  std::vector<float> x;  // [most tokens, H]
  std::unique_ptr<Peer> peer;
  std::vector<std::pair<int, int>> peer_weights;  // [E] gate and up, down
  double expert_bytes = 0;

  Layer(const KernelOptions& options, ThreadPool& threads)
      : shape(options.shape),
        arithmetic(options.arithmetic),
        pool(threads),
        work(static_cast<std::size_t>(options.shape.hidden)) {}
};

// gate, up [F, H] and down [H, F] of an expert, one behind the other.
std::vector<std::uint16_t> source_of(const Layer& layer, int expert) {
  const auto hidden = static_cast<std::size_t>(layer.shape.hidden);
  const auto ffn = static_cast<std::size_t>(layer.shape.expert_ffn);
  const std::uint64_t seed = kWeightSeed + (static_cast<std::uint64_t>(expert) << 8);
  std::vector<std::uint16_t> source = random_bf16(2 * ffn * hidden, layer.shape.hidden, seed, layer.pool);
  const auto down = random_bf16(ffn * hidden, layer.shape.expert_ffn, seed + (1U << 7), layer.pool);
  source.insert(source.end(), down.begin(), down.end());
  return source;
}

void make_experts(Layer& layer, int typical_rows) {
  const int hidden = layer.shape.hidden, ffn = layer.shape.expert_ffn;
  const std::size_t size = static_cast<std::size_t>(hidden) * static_cast<std::size_t>(ffn);
  for (int e = 0; e < layer.shape.num_experts; ++e) {
    const std::vector<std::uint16_t> source = source_of(layer, e);
    const std::span<const std::uint16_t> all(source);
    layer.experts.weights.push_back(kernels::pack_expert(
        view_of(all.first(size), ffn, hidden), view_of(all.subspan(size, size), ffn, hidden),
        view_of(all.last(size), hidden, ffn), layer.arithmetic, layer.pool));
    layer.experts.slot_of_expert.push_back(e);
    if (layer.peer != nullptr)
      layer.peer_weights.emplace_back(layer.peer->hold(all.first(2 * size), 2 * ffn, hidden, typical_rows),
                                      layer.peer->hold(all.last(size), hidden, ffn, typical_rows));
  }
  const kernels::PackedExpert& first = layer.experts.weights.front();
  layer.expert_bytes = static_cast<double>(first.gate_up.panels.size() + first.down.panels.size());
}

Routing random_routing(const Layer& layer, int tokens, Rng& rng) {
  const auto experts = static_cast<std::size_t>(layer.shape.num_experts);
  Routing routing;
  routing.rows_of_expert.resize(experts);
  std::vector<int> order(experts);
  std::iota(order.begin(), order.end(), 0);
  for (int t = 0; t < tokens; ++t)
    for (std::size_t k = 0; k < static_cast<std::size_t>(layer.shape.experts_per_token); ++k) {
      std::swap(order[k], order[k + rng.below(experts - k)]);
      const float* x =
          layer.x.data() + static_cast<std::size_t>(t) * static_cast<std::size_t>(layer.shape.hidden);
      routing.rows.push_back({ExpertId(order[k]), x});
      ++routing.rows_of_expert[static_cast<std::size_t>(order[k])];
    }
  routing.experts =
      static_cast<double>(std::ranges::count_if(routing.rows_of_expert, [](int rows) { return rows > 0; }));
  return routing;
}

// A step's routings in turn: few tokens choose other experts each time.
struct Steps {
  std::vector<Routing> routings;
  std::size_t next = 0;
  const Routing* last = nullptr;

  const Routing& take() {
    last = &routings[next];
    next = (next + 1) % routings.size();
    return *last;
  }
};

Work run_step(Layer& layer, Steps& steps) {
  const Routing& routing = steps.take();
  layer.work.set(routing.rows, {}, layer.experts);
  layer.work.run_all(layer.experts, layer.pool);
  const double of_row = 6.0 * layer.shape.hidden * layer.shape.expert_ffn;
  return {of_row * static_cast<double>(routing.rows.size()), layer.expert_bytes * routing.experts};
}

double error_of_step(Layer& layer, const Steps& steps) {
  const auto hidden = static_cast<std::size_t>(layer.shape.hidden);
  const std::size_t size = hidden * static_cast<std::size_t>(layer.shape.expert_ffn);
  const std::vector<ExpertRow>& rows = steps.last->rows;
  double worst = 0;
  for (const std::size_t row : {std::size_t{0}, rows.size() / 2, rows.size() - 1}) {
    const std::vector<float> source = widened(source_of(layer, rows[row].expert.value));
    const std::span<const float> weights(source);
    std::vector<float> expected(hidden);
    kernels::reference::expert_ffn({rows[row].x, hidden}, weights.first(size), weights.subspan(size, size),
                                   weights.last(size), layer.shape.hidden, layer.shape.expert_ffn, expected);
    const double error = relative_error(layer.work.outputs().subspan(row * hidden, hidden), expected);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

// Both products of every expert that has rows; without gathering them and without what lies between.
void run_peer(Layer& layer, const Steps& steps) {
  for (std::size_t e = 0; e < steps.last->rows_of_expert.size(); ++e) {
    const int rows = steps.last->rows_of_expert[e];
    if (rows == 0) continue;
    layer.peer->multiply(layer.peer_weights[e].first, rows);
    layer.peer->multiply(layer.peer_weights[e].second, rows);
  }
}

std::vector<KernelCase> make_cases(const KernelOptions& options, const std::vector<int>& tokens,
                                   ThreadPool& pool) {
  // Shared: the cases of the group own their weights together.
  const auto layer = std::make_shared<Layer>(options, pool);
  layer->peer = make_peer(options.arithmetic.numbers, options.threads);
  constexpr int kTypicalRows = 64;
  make_experts(*layer, kTypicalRows);
  const auto most = static_cast<std::size_t>(std::ranges::max(tokens));
  layer->x = widened(random_bf16(most * static_cast<std::size_t>(layer->shape.hidden), 1, kTokenSeed, pool));
  std::vector<KernelCase> cases;
  for (const int count : tokens) {
    const auto steps = std::make_shared<Steps>();
    Rng rng = Rng(kRoutingSeed).fork(static_cast<std::uint64_t>(count));
    constexpr int kMost = 32, kFewTokens = 64;
    for (int i = 0; i < (count > kFewTokens ? 2 : kMost); ++i)
      steps->routings.push_back(random_routing(*layer, count, rng));
    KernelCase one{fmt::format("{} token{}", count, count == 1 ? "" : "s"),
                   options.arithmetic.numbers,
                   [layer, steps] { return run_step(*layer, *steps); },
                   [layer, steps] { return error_of_step(*layer, *steps); },
                   expert_bound(options.arithmetic.numbers),
                   {}};
    if (layer->peer != nullptr) one.peer = [layer, steps] { run_peer(*layer, *steps); };
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace

KernelGroup expert_group(const KernelOptions& options, ThreadPool& pool) {
  const ModelShape& shape = options.shape;
  std::vector<int> tokens = options.tokens;
  if (tokens.empty())
    for (int count = 1; count <= 8192; count *= 2) tokens.push_back(count);
  const kernels::Storage storage = kernels::storage_of(Element::kBf16, options.arithmetic.numbers);
  const double rows = static_cast<double>(std::ranges::max(tokens)) * (1 + shape.experts_per_token);
  const double bytes = shape.num_experts * static_cast<double>(kernels::packed_expert_bytes(
                                               shape.hidden, shape.expert_ffn, storage)) +
                       rows * shape.hidden * static_cast<double>(sizeof(float));
  return {fmt::format("Experts of a layer: {} -> {} -> {}, {} of {} for each token", shape.hidden,
                      shape.expert_ffn, shape.hidden, shape.experts_per_token, shape.num_experts),
          bytes, [=, &pool] { return make_cases(options, tokens, pool); }};
}

}  // namespace grace::app
