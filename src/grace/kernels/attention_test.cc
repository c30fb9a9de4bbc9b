#include "grace/kernels/attention.h"

#include <gtest/gtest.h>

#include "grace/kernels/test_values.h"

namespace grace::kernels {
namespace {

// Rows of a cache in blocks of their own, as f32 or rounded to bf16.
struct Cache {
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> blocks;
  CachedRows rows;

  // In blocks of heads where dim is not 0.
  Cache(std::span<const float> all, std::size_t row, Element element, std::size_t dim = 0) {
    const std::vector<float> values =
        dim == 0 ? std::vector<float>(all.begin(), all.end()) : by_head(all, row, dim);
    for (std::size_t first = 0; first < values.size(); first += row * kCacheBlock) {
      auto& block = memory.emplace_back();
      for (const float v :
           std::span(values).subspan(first, std::min(row * kCacheBlock, values.size() - first))) {
        const std::uint16_t half = bf16_of_f32(v);
        const std::size_t at = block.size(), width = element == Element::kF32 ? 4 : 2;
        block.resize(at + width);
        std::memcpy(block.data() + at, element == Element::kF32 ? static_cast<const void*>(&v) : &half,
                    width);
      }
      block.reserve(block.size() + 64);
    }
    for (const auto& block : memory) blocks.push_back(block.data());
    rows = {blocks, static_cast<int>(all.size() / row), static_cast<int>(row), element, dim != 0};
  }
  static std::vector<float> by_head(std::span<const float> all, std::size_t row, std::size_t dim) {
    constexpr std::size_t kBlock = kCacheBlock;
    std::vector<float> out((all.size() / row + kBlock - 1) / kBlock * kBlock * row, kPoison);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t t = i / row, head = i % row / dim;
      out[t / kBlock * kBlock * row + (head * kBlock + t % kBlock) * dim + i % dim] = all[i];
    }
    return out;
  }
};

struct Case {
  int num_new, length, heads, kv_heads, key_dim, value_dim, window;
};
class AnAttention : public testing::TestWithParam<Case> {};

TEST_P(AnAttention, EqualsTheReferenceAndGivesATokenTheSameBitsInAPrefillAndAlone) {
  const auto [num_new, length, heads, kv_heads, key_dim, value_dim, window] = GetParam();
  Rng rng(37);
  const auto q_row = static_cast<std::size_t>(heads * key_dim),
             out_row = static_cast<std::size_t>(heads * value_dim);
  const auto key_row = static_cast<std::size_t>(kv_heads * key_dim);
  const auto value_row = static_cast<std::size_t>(kv_heads * value_dim);
  const auto q = random_values(rng, static_cast<std::size_t>(num_new) * q_row, 3);
  const auto keys = rounded(random_values(rng, static_cast<std::size_t>(length) * key_row, 3));
  const auto values = rounded(random_values(rng, static_cast<std::size_t>(length) * value_row));
  const AttentionShape shape{heads, kv_heads, key_dim, value_dim, 0.3F, window};
  std::vector<float> expected(static_cast<std::size_t>(num_new) * out_row, kPoison);
  reference::attention(q, keys, values, shape, expected);
  for (const Element element : {Element::kF32, Element::kBf16}) {
    const Cache key_cache(keys, key_row, element), value_cache(values, value_row, element);
    const Cache key_heads(keys, key_row, element, static_cast<std::size_t>(key_dim));
    const Cache value_heads(values, value_row, element, static_cast<std::size_t>(value_dim));
    for (const Instructions instructions : usable_instructions()) {
      SCOPED_TRACE(name_of(instructions));
      std::vector<float> alone(expected.size(), kPoison);
      ThreadPool one(1);
      for (std::size_t t = 0; t < static_cast<std::size_t>(num_new); ++t) {
        AttentionItem item{std::span(q).subspan(t * q_row, q_row), key_cache.rows, value_cache.rows,
                           std::span(alone).subspan(t * out_row, out_row)};
        item.keys.length = item.values.length = length - num_new + static_cast<int>(t) + 1;
        attention(std::span(&item, 1), shape, instructions, one);
      }
      expect_close(alone, expected, 2e-5);
      for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        std::vector<float> together(expected.size(), kPoison), again(expected.size(), kPoison);
        const AttentionItem items[] = {{q, key_cache.rows, value_cache.rows, together},
                                       {q, key_heads.rows, value_heads.rows, again}};
        attention(items, shape, instructions, pool);
        EXPECT_TRUE(same_bits(together, alone)) << threads;
        EXPECT_TRUE(same_bits(again, alone)) << threads;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, AnAttention,
                         testing::Values(Case{1, 1, 6, 2, 4, 4, 0}, Case{1, 9, 6, 2, 16, 16, 0},
                                         Case{7, 7, 4, 4, 22, 22, 0}, Case{5, 12, 6, 3, 24, 16, 0},
                                         Case{70, 140, 8, 2, 64, 64, 0}, Case{3, 130, 4, 1, 40, 32, 0},
                                         Case{90, 90, 2, 1, 20, 20, 5}, Case{4, 200, 2, 2, 16, 16, 70}));

TEST(AnAttention, TakesTheFirstPartOfItsKeysAsValues) {
  Rng rng(5);
  const auto q = random_values(rng, 2 * 3 * 24);
  const auto latents = random_values(rng, 100 * 24);
  std::vector<float> values;
  for (std::size_t t = 0; t < 100; ++t)
    values.insert(values.end(), latents.begin() + static_cast<std::ptrdiff_t>(t * 24),
                  latents.begin() + static_cast<std::ptrdiff_t>(t * 24 + 16));
  const AttentionShape shape{3, 1, 24, 16, 0.2F, 0};
  std::vector<float> expected(2 * 3 * 16), out(expected.size());
  reference::attention(q, latents, values, shape, expected);
  const Cache cache(latents, 24, Element::kF32);
  ThreadPool pool(2);
  const AttentionItem item{q, cache.rows, cache.rows, out};
  attention(std::span(&item, 1), shape, usable_instructions().front(), pool);
  expect_close(out, expected, 1e-5);
}

}  // namespace
}  // namespace grace::kernels
