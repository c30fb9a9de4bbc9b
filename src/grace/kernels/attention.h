// Causal attention over cached keys and values.
#pragma once

#include <cstddef>
#include <span>

#include "grace/base/matrix_view.h"
#include "grace/base/thread_pool.h"
#include "grace/kernels/instructions.h"

namespace grace::kernels {

inline constexpr int kCacheBlock = 64;  // tokens

// What one sequence has cached in one layer: `length` rows of `row` values, in blocks of kCacheBlock rows.
struct CachedRows {
  std::span<const std::byte* const> blocks;
  int length = 0;
  int row = 0;
  Element element = Element::kF32;  // or kBf16, which is widened as it is read
  // Whether a block is [kv_heads][kCacheBlock][dim], so that what one head reads lies together, and not
  // [kCacheBlock][row].
  bool by_head = false;
};

struct AttentionShape {
  int heads = 0;
  int kv_heads = 0;  // heads / kv_heads heads in a row share keys and values
  int key_dim = 0;   // of a query and a key
  int value_dim = 0;
  float scale = 0;  // of the products
  int window = 0;   // a token attends to this many last tokens, itself included; 0: to all
};

// One sequence's `num_new` last tokens. q: [num_new, heads, key_dim], out: [num_new, heads, value_dim]. Row t
// of `keys` begins with [kv_heads, key_dim], of `values` with [kv_heads, value_dim]; the new tokens' are
// there. Both may be the same rows: absorbed latent attention is one kv head whose values are the first part
// of its keys. f32 throughout, sums in an order that depends on the token's position alone: the same bits in
// a prefill, in parts of one, and alone. Errors: the caller's bugs.
struct AttentionItem {
  std::span<const float> q;
  CachedRows keys, values;
  std::span<float> out;
};
// All items at once, their heads and tokens shared out to the pool.
void attention(std::span<const AttentionItem> items, const AttentionShape& shape, Instructions instructions,
               ThreadPool& pool);

namespace reference {
// Softmax over plain sums in f64. keys: [length, kv_heads, key_dim], values: [length, kv_heads, value_dim].
void attention(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
               const AttentionShape& shape, std::span<float> out);
}  // namespace reference

}  // namespace grace::kernels
