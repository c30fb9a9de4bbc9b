// Products that every token passes: projections, dense parts, the router and the head.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernel_bench_cases.h"

namespace grace::app {
namespace {

constexpr std::uint64_t kWeightSeed = 11, kTokenSeed = 12;

kernels::Bytes copy_of(const kernels::Bytes& bytes) {
  kernels::Bytes copy(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}
kernels::PackedMatrix copy_of(const kernels::PackedMatrix& m) {
  return {m.out, m.in, m.arithmetic, m.storage, copy_of(m.panels), m.scales, m.offsets};
}
kernels::PackedExpert copy_of(const kernels::PackedExpert& e) {
  return {copy_of(e.gate_up), copy_of(e.down), e.ffn};
}

// What is measured, by its sizes. ffn > 0: gate, up and down of so many; else one product.
struct Dense {
  std::string name;
  int out = 0, in = 0, ffn = 0;
  bool in_f32 = false;  // whatever the numbers
};

kernels::Arithmetic arithmetic_of(const Dense& dense, kernels::Arithmetic arithmetic) {
  if (dense.in_f32) arithmetic.numbers = kernels::Numbers::kF32;
  return arithmetic;
}

struct Copies {
  Dense dense;
  std::vector<std::uint16_t> source;
  std::vector<kernels::PackedMatrix> products;
  std::vector<kernels::PackedExpert> ffns;
  std::unique_ptr<Peer> peer;
  std::vector<std::vector<int>> peer_weights;
  std::vector<float> x, y;
  std::size_t next = 0, peer_next = 0;
  double bytes = 0, parameters = 0;  // of a copy
};

std::size_t size_of(int rows, int cols) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
}

// Where weights are large one copy is enough, but not where a second call would find its end in a cache.
std::size_t copies_of(double bytes) {
  return std::max<std::size_t>(2, cold_copies(static_cast<std::size_t>(bytes)));
}

void make_products(Copies& copies, const kernels::Arithmetic& arithmetic, ThreadPool& pool) {
  const Dense& dense = copies.dense;
  copies.products.push_back(kernels::pack(view_of(copies.source, dense.out, dense.in), arithmetic, pool));
  copies.bytes = static_cast<double>(copies.products.front().panels.size());
  for (std::size_t i = 1; i < copies_of(copies.bytes); ++i)
    copies.products.push_back(copy_of(copies.products.front()));
  for (std::size_t i = 0; copies.peer != nullptr && i < copies.products.size(); ++i)
    copies.peer_weights.push_back({copies.peer->hold(copies.source, dense.out, dense.in, 64)});
}

void make_ffns(Copies& copies, const kernels::Arithmetic& arithmetic, ThreadPool& pool) {
  const Dense& dense = copies.dense;
  const std::size_t size = size_of(dense.ffn, dense.in);
  const std::span<const std::uint16_t> all(copies.source);
  copies.ffns.push_back(kernels::pack_expert(view_of(all.first(size), dense.ffn, dense.in),
                                             view_of(all.subspan(size, size), dense.ffn, dense.in),
                                             view_of(all.last(size), dense.in, dense.ffn), arithmetic, pool));
  copies.bytes =
      static_cast<double>(copies.ffns.front().gate_up.panels.size() + copies.ffns.front().down.panels.size());
  for (std::size_t i = 1; i < copies_of(copies.bytes); ++i)
    copies.ffns.push_back(copy_of(copies.ffns.front()));
  for (std::size_t i = 0; copies.peer != nullptr && i < copies.ffns.size(); ++i)
    copies.peer_weights.push_back({copies.peer->hold(all.first(2 * size), 2 * dense.ffn, dense.in, 64),
                                   copies.peer->hold(all.last(size), dense.in, dense.ffn, 64)});
}

std::shared_ptr<Copies> make_copies(const Dense& dense, const KernelOptions& options, int most_tokens,
                                    ThreadPool& pool) {
  auto copies = std::make_shared<Copies>();
  copies->dense = dense;
  const kernels::Arithmetic arithmetic = arithmetic_of(dense, options.arithmetic);
  copies->peer = make_peer(arithmetic.numbers, options.threads);
  if (dense.ffn > 0) {
    copies->source = random_bf16(2 * size_of(dense.ffn, dense.in), dense.in, kWeightSeed, pool);
    const auto down = random_bf16(size_of(dense.ffn, dense.in), dense.ffn, kWeightSeed + 1, pool);
    copies->source.insert(copies->source.end(), down.begin(), down.end());
    make_ffns(*copies, arithmetic, pool);
  } else {
    copies->source = random_bf16(size_of(dense.out, dense.in), dense.in, kWeightSeed, pool);
    make_products(*copies, arithmetic, pool);
  }
  copies->parameters = static_cast<double>(copies->source.size());
  copies->x = widened(random_bf16(size_of(most_tokens, dense.in), 1, kTokenSeed, pool));
  copies->y.resize(size_of(most_tokens, dense.out));
  return copies;
}

Work run_dense(Copies& copies, int tokens, ThreadPool& pool) {
  const auto x = std::span<const float>(copies.x).first(size_of(tokens, copies.dense.in));
  const auto y = std::span(copies.y).first(size_of(tokens, copies.dense.out));
  if (copies.dense.ffn > 0) {
    kernels::ffn(x, copies.ffns[copies.next], y, pool);
    copies.next = (copies.next + 1) % copies.ffns.size();
  } else {
    kernels::matmul(x, copies.products[copies.next], y, pool);
    copies.next = (copies.next + 1) % copies.products.size();
  }
  return {2 * copies.parameters * tokens, copies.bytes};
}

void run_peer(Copies& copies, int tokens) {
  for (const int weight : copies.peer_weights[copies.peer_next]) copies.peer->multiply(weight, tokens);
  copies.peer_next = (copies.peer_next + 1) % copies.peer_weights.size();
}

// The last token's row.
double error_of(const Copies& copies, int tokens) {
  const Dense& dense = copies.dense;
  const std::vector<float> weights = widened(copies.source);
  const auto x = std::span(copies.x).subspan(size_of(tokens - 1, dense.in), size_of(1, dense.in));
  const auto y = std::span(copies.y).subspan(size_of(tokens - 1, dense.out), size_of(1, dense.out));
  std::vector<float> expected(y.size());
  if (dense.ffn > 0) {
    const std::size_t size = size_of(dense.ffn, dense.in);
    const std::span<const float> all(weights);
    kernels::reference::expert_ffn(x, all.first(size), all.subspan(size, size), all.last(size), dense.in,
                                   dense.ffn, expected);
  } else {
    kernels::reference::matmul(x, weights, dense.out, dense.in, expected);
  }
  return relative_error(y, expected);
}

std::vector<KernelCase> make_cases(const std::vector<Dense>& all, const KernelOptions& options,
                                   const std::vector<int>& tokens, ThreadPool& pool) {
  std::vector<KernelCase> cases;
  for (const Dense& dense : all) {
    const std::shared_ptr<Copies> copies = make_copies(dense, options, std::ranges::max(tokens), pool);
    const kernels::Numbers numbers = arithmetic_of(dense, options.arithmetic).numbers;
    for (const int count : tokens) {
      KernelCase one{fmt::format("{}, {} token{}", dense.name, count, count == 1 ? "" : "s"),
                     numbers,
                     [copies, count, &pool] { return run_dense(*copies, count, pool); },
                     [copies, count] { return error_of(*copies, count); },
                     dense.ffn > 0 ? expert_bound(numbers) : product_bound(numbers),
                     {}};
      if (copies->peer != nullptr) one.peer = [copies, count] { run_peer(*copies, count); };
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

std::vector<Dense> projections(const ModelShape& s) {
  std::vector<Dense> all;
  const auto add = [&](const char* name, int out, int in) {
    const auto same = std::ranges::find_if(all, [&](const Dense& d) { return d.out == out && d.in == in; });
    if (same == all.end())
      all.push_back({name, out, in});
    else
      same->name += fmt::format(", {}", name);
  };
  const int queries = s.num_heads * s.head_dim;
  if (s.attention == AttentionKind::kGrouped) {
    add("q", queries, s.hidden);
    add("k", s.num_kv_heads * s.head_dim, s.hidden);
    add("v", s.num_kv_heads * s.value_head_dim, s.hidden);
  } else {
    if (s.query_rank > 0) add("q down", s.query_rank, s.hidden);
    add(s.query_rank > 0 ? "q up" : "q", queries, s.query_rank > 0 ? s.query_rank : s.hidden);
    add("kv down", s.kv_rank + s.rotary_dim, s.hidden);
    add("kv up", s.num_heads * (s.head_dim - s.rotary_dim + s.value_head_dim), s.kv_rank);
  }
  add("o", s.hidden, s.num_heads * s.value_head_dim);
  for (Dense& dense : all) dense.name += fmt::format(" {} -> {}", dense.in, dense.out);
  return all;
}

double bytes_of(const std::vector<Dense>& all, const kernels::Arithmetic& arithmetic) {
  double sum = 0;
  for (const Dense& dense : all) {
    const kernels::Storage storage =
        kernels::storage_of(Element::kBf16, arithmetic_of(dense, arithmetic).numbers);
    const auto one =
        static_cast<double>(dense.ffn > 0 ? kernels::packed_expert_bytes(dense.in, dense.ffn, storage)
                                          : kernels::packed_bytes(dense.out, dense.in, storage));
    sum += one * static_cast<double>(copies_of(one));
  }
  return sum;
}

}  // namespace

std::vector<KernelGroup> dense_groups(const KernelOptions& options, ThreadPool& pool) {
  const ModelShape& shape = options.shape;
  std::vector<KernelGroup> groups;
  const auto add = [&](const char* title, std::vector<Dense> all, std::vector<int> tokens) {
    if (!options.tokens.empty()) tokens = options.tokens;
    groups.push_back({title, bytes_of(all, options.arithmetic),
                      [=, &pool] { return make_cases(all, options, tokens, pool); }});
  };
  add("Projections of attention", projections(shape), {1, 16, 128, 512});
  std::vector<Dense> parts;
  for (const auto& [name, ffn] :
       {std::pair{"shared experts", shape.shared_expert_ffn}, std::pair{"dense layer", shape.dense_ffn}})
    if (ffn > 0)
      parts.push_back({fmt::format("{} {} -> {} -> {}", name, shape.hidden, ffn, shape.hidden), shape.hidden,
                       shape.hidden, ffn});
  if (!parts.empty()) add("Shared experts and dense layers", parts, {1, 16, 128, 512});
  add("Router, in f32",
      {{fmt::format("{} -> {}", shape.hidden, shape.num_experts), shape.num_experts, shape.hidden, 0, true}},
      {1, 16, 128, 512});
  add("Head", {{fmt::format("{} -> {}", shape.hidden, shape.vocab), shape.vocab, shape.hidden}}, {1, 128});
  return groups;
}

}  // namespace grace::app
