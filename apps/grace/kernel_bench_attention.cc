// Attention as the engine calls it: whole prompts, and one new token of each of many sequences.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernel_bench_cases.h"

namespace grace::app {
namespace {

constexpr std::uint64_t kCacheSeed = 21, kQuerySeed = 22;
constexpr int kDecodeKeys = 512;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

// Sequences of one length and what is cached of them; latent decode has keys alone, whose first part is the
// values.
struct Sequences {
  Sequences(const kernels::AttentionShape& of, kernels::Instructions by, ThreadPool& threads)
      : shape(of), instructions(by), pool(threads) {}

  kernels::AttentionShape shape;
  kernels::Instructions instructions;
  ThreadPool& pool;
  Element element = Element::kF32;
  bool values_are_keys = false;
  int length = 0, num_new = 0, together = 0, count = 0;  // together: of `count`, in a call

  std::size_t key_row = 0, value_row = 0;
  std::vector<float> wide_keys, wide_values;  // [length, row] of every sequence: they differ by their place
  std::vector<kernels::Bytes> keys, values;   // [count]
  std::vector<std::vector<const std::byte*>> key_blocks, value_blocks;
  std::vector<float> q, out;  // [together, num_new, heads, dim]
  int next = 0;
};

// Rows as the cache holds them: blocks of heads.
kernels::Bytes cached(std::span<const std::uint16_t> halves, std::span<const float> wide, Element element,
                      std::size_t row, std::size_t heads) {
  const std::byte* from =
      element == Element::kF32 ? std::as_bytes(wide).data() : std::as_bytes(halves).data();
  const std::size_t rows = wide.size() / row, dim = row / heads, width = bytes_of(element);
  constexpr std::size_t kBlock = kernels::kCacheBlock;
  kernels::Bytes bytes((rows + kBlock - 1) / kBlock * kBlock * row * width);
  for (std::size_t t = 0; t < rows; ++t)
    for (std::size_t h = 0; h < heads; ++h)
      std::memcpy(bytes.data() + (t / kBlock * kBlock * row + (h * kBlock + t % kBlock) * dim) * width,
                  from + (t * row + h * dim) * width, dim * width);
  return bytes;
}

std::vector<const std::byte*> blocks_of(const kernels::Bytes& bytes, std::size_t row_bytes, int length) {
  std::vector<const std::byte*> blocks;
  for (int t = 0; t < length; t += kernels::kCacheBlock)
    blocks.push_back(bytes.data() + size_of(t) * row_bytes);
  return blocks;
}

void make_cache(Sequences& s) {
  s.key_row = size_of(s.shape.kv_heads * s.shape.key_dim);
  s.value_row = s.values_are_keys ? s.key_row : size_of(s.shape.kv_heads * s.shape.value_dim);
  const auto keys = random_bf16(size_of(s.length) * s.key_row, 1, kCacheSeed, s.pool);
  const auto values = random_bf16(size_of(s.length) * s.value_row, 1, kCacheSeed + 1, s.pool);
  s.wide_keys = widened(keys);
  s.wide_values = s.values_are_keys ? s.wide_keys : widened(values);
  for (int i = 0; i < s.count; ++i) {
    s.keys.push_back(cached(keys, s.wide_keys, s.element, s.key_row, size_of(s.shape.kv_heads)));
    s.key_blocks.push_back(blocks_of(s.keys.back(), s.key_row * bytes_of(s.element), s.length));
    if (s.values_are_keys) continue;
    s.values.push_back(cached(values, s.wide_values, s.element, s.value_row, size_of(s.shape.kv_heads)));
    s.value_blocks.push_back(blocks_of(s.values.back(), s.value_row * bytes_of(s.element), s.length));
  }
  const std::size_t rows = size_of(s.together * s.num_new * s.shape.heads);
  s.q = widened(random_bf16(rows * size_of(s.shape.key_dim), 1, kQuerySeed, s.pool));
  s.out.resize(rows * size_of(s.shape.value_dim));
}

Work run(Sequences& s) {
  const std::size_t q_size = size_of(s.num_new * s.shape.heads * s.shape.key_dim);
  const std::size_t out_size = size_of(s.num_new * s.shape.heads * s.shape.value_dim);
  std::vector<kernels::AttentionItem> items;
  for (int i = 0; i < s.together; ++i) {
    const std::size_t at = size_of((s.next + i) % s.count);
    const kernels::CachedRows keys{s.key_blocks[at], s.length, static_cast<int>(s.key_row), s.element, true};
    const kernels::CachedRows values{s.values_are_keys ? s.key_blocks[at] : s.value_blocks[at], s.length,
                                     static_cast<int>(s.value_row), s.element, true};
    items.push_back({std::span<const float>(s.q).subspan(size_of(i) * q_size, q_size), keys, values,
                     std::span(s.out).subspan(size_of(i) * out_size, out_size)});
  }
  s.next = (s.next + s.together) % s.count;
  kernels::attention(items, s.shape, s.instructions, s.pool);
  // The mean token sees all keys but half of the new ones.
  const double keys = s.length - (s.num_new - 1) / 2.0, tokens = s.together * s.num_new;
  const double of_sequence = static_cast<double>(s.length) * static_cast<double>(bytes_of(s.element)) *
                             static_cast<double>(s.key_row + (s.values_are_keys ? 0 : s.value_row));
  return {2.0 * s.shape.heads * (s.shape.key_dim + s.shape.value_dim) * keys * tokens,
          s.together * of_sequence};
}

// Of the last call's first and last token, whose sequences hold the same.
double error_of(const Sequences& s) {
  const std::size_t q_row = size_of(s.shape.heads * s.shape.key_dim);
  const std::size_t out_row = size_of(s.shape.heads * s.shape.value_dim);
  const std::size_t tokens = s.q.size() / q_row;
  double worst = 0;
  for (const std::size_t token : {std::size_t{0}, tokens - 1}) {
    const std::size_t seen = size_of(s.length - s.num_new) + token % size_of(s.num_new) + 1;
    // The values beside each other, where they are parts of the keys.
    const std::size_t values_row = size_of(s.shape.kv_heads * s.shape.value_dim);
    std::vector<float> values;
    for (std::size_t t = 0; t < seen; ++t)
      values.insert(values.end(), s.wide_values.begin() + static_cast<std::ptrdiff_t>(t * s.value_row),
                    s.wide_values.begin() + static_cast<std::ptrdiff_t>(t * s.value_row + values_row));
    std::vector<float> expected(out_row);
    kernels::reference::attention(std::span(s.q).subspan(token * q_row, q_row),
                                  std::span(s.wide_keys).first(seen * s.key_row), values, s.shape, expected);
    const double error = relative_error(std::span(s.out).subspan(token * out_row, out_row), expected);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

struct Size {
  int length, num_new, together;
};

// Prefill attends to expanded keys and values in f32 where attention is latent, decode to what is cached.
std::shared_ptr<Sequences> sequences_of(const KernelOptions& options, const Size& size, ThreadPool& pool) {
  const ModelShape& model = options.shape;
  const bool latent = model.attention == AttentionKind::kLatent, absorbed = latent && size.num_new == 1;
  const kernels::AttentionShape shape{model.num_heads,
                                      absorbed ? 1 : model.num_kv_heads,
                                      absorbed ? model.kv_rank + model.rotary_dim : model.head_dim,
                                      absorbed ? model.kv_rank : model.value_head_dim,
                                      static_cast<float>(1 / std::sqrt(model.head_dim)),
                                      0};
  auto s = std::make_shared<Sequences>(shape, options.arithmetic.instructions, pool);
  if (options.arithmetic.numbers != kernels::Numbers::kF32 && (!latent || absorbed))
    s->element = Element::kBf16;
  s->values_are_keys = absorbed;
  s->length = size.length;
  s->num_new = size.num_new;
  s->together = size.together;
  const std::size_t of_sequence =
      size_of(size.length) * bytes_of(s->element) * size_of(s->shape.kv_heads * s->shape.key_dim);
  s->count = std::max(size.together, static_cast<int>(cold_copies(of_sequence)));
  return s;
}

std::vector<KernelCase> make_cases(const KernelOptions& options, ThreadPool& pool) {
  constexpr double kBound = 5e-5;
  std::vector<KernelCase> cases;
  for (const Size& size :
       {Size{512, 512, 1}, Size{2048, 2048, 1}, Size{kDecodeKeys, 1, 1}, Size{kDecodeKeys, 1, 128}}) {
    const bool decode = size.num_new == 1;
    const std::string name = decode ? fmt::format("decode, {} sequence{} of {} keys", size.together,
                                                  size.together == 1 ? "" : "s", size.length)
                                    : fmt::format("prefill of {} tokens", size.length);
    const std::shared_ptr<Sequences> s = sequences_of(options, size, pool);
    // Its memory is taken by its first call.
    const auto call = [s] {
      if (s->keys.empty()) make_cache(*s);
      return run(*s);
    };
    cases.push_back({name, kernels::Numbers::kF32, call, [s] { return error_of(*s); }, kBound, {}});
  }
  return cases;
}

}  // namespace

KernelGroup attention_group(const KernelOptions& options, ThreadPool& pool) {
  double bytes = 0;
  const ModelShape& m = options.shape;
  const double row = m.attention == AttentionKind::kLatent ? m.kv_rank + m.rotary_dim
                                                           : m.num_kv_heads * (m.head_dim + m.value_head_dim);
  bytes += 4 * static_cast<double>(kColdBytes) + 128.0 * kDecodeKeys * row * sizeof(float);
  return {"Attention, products in f32", bytes, [=, &pool] { return make_cases(options, pool); }};
}

}  // namespace grace::app
