#include "grace/kernels/attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "grace/base/check.h"
#include "grace/kernels/cpu/vector_functions.h"
#include "grace/kernels/packed.h"

namespace grace::kernels {
namespace {

// Enough rows to use a chunk often once it is widened, few enough to stay in the cache.
constexpr int kMostRows = 64;

std::size_t padded(int dim) {
  return static_cast<std::size_t>((dim + kWidestLanes - 1) / kWidestLanes * kWidestLanes);
}

// Tokens of one sequence and heads of one kv head.
struct Piece {
  const AttentionItem* item;
  int kv_head;
  int first, last;  // rows of the kv head: token * group + head
};

void check(const AttentionItem& item, const AttentionShape& shape) {
  const auto heads = static_cast<std::size_t>(shape.heads);
  const std::size_t tokens = item.q.size() / (heads * static_cast<std::size_t>(shape.key_dim));
  GRACE_CHECK(item.q.size() == tokens * heads * static_cast<std::size_t>(shape.key_dim) &&
                  item.out.size() == tokens * heads * static_cast<std::size_t>(shape.value_dim),
              "q and out are not [num_new, heads, dim]");
  for (const CachedRows* rows : {&item.keys, &item.values}) {
    GRACE_CHECK(std::cmp_greater_equal(rows->length, tokens) &&
                    std::cmp_greater_equal(std::ssize(rows->blocks) * kCacheBlock, rows->length),
                "fewer rows are cached than there are new tokens");
    GRACE_CHECK(rows->element != Element::kF16, "f16 is not cached");
  }
  GRACE_CHECK(item.keys.length == item.values.length && item.keys.element == item.values.element,
              "keys and values are not of the same tokens");
  GRACE_CHECK(
      item.keys.row >= shape.kv_heads * shape.key_dim && item.values.row >= shape.kv_heads * shape.value_dim,
      "a row is shorter than its heads");
  GRACE_CHECK((!item.keys.by_head || item.keys.row == shape.kv_heads * shape.key_dim) &&
                  (!item.values.by_head || item.values.row == shape.kv_heads * shape.value_dim ||
                   shape.kv_heads == 1),
              "blocks by heads are of other heads");
}

// Working memory of one thread.
struct Scratch {
  Bytes bytes;
  std::vector<const float*> q;
  std::vector<float*> out;
  std::vector<int> first, last;
};

void run(const Piece& piece, const AttentionShape& shape, const VectorFunctions& functions,
         Scratch& scratch) {
  const AttentionItem& item = *piece.item;
  const int group = shape.heads / shape.kv_heads;
  const int tokens = static_cast<int>(item.q.size()) / (shape.heads * shape.key_dim);
  const int rows = piece.last - piece.first;
  scratch.q.clear();
  scratch.out.clear();
  scratch.first.clear();
  scratch.last.clear();
  for (int row = piece.first; row < piece.last; ++row) {
    const int token = row / group;
    const std::size_t head = static_cast<std::size_t>(token) * static_cast<std::size_t>(shape.heads) +
                             static_cast<std::size_t>(piece.kv_head * group + row % group);
    scratch.q.push_back(item.q.data() + head * static_cast<std::size_t>(shape.key_dim));
    scratch.out.push_back(item.out.data() + head * static_cast<std::size_t>(shape.value_dim));
    const int visible = item.keys.length - tokens + token + 1;
    scratch.last.push_back(visible);
    scratch.first.push_back(shape.window > 0 ? std::max(0, visible - shape.window) : 0);
  }
  const std::size_t floats = attend_scratch(rows, shape.key_dim, shape.value_dim);
  if (scratch.bytes.size() < floats * sizeof(float)) scratch.bytes = Bytes(floats * sizeof(float));
  functions.attend(
      {.rows = rows,
       .q = scratch.q.data(),
       .out = scratch.out.data(),
       .first_key = scratch.first.data(),
       .last_key = scratch.last.data(),
       .first = scratch.first.front(),
       .last = scratch.last.back(),
       .keys = item.keys.blocks.data(),
       .values = item.values.blocks.data(),
       .key_row = item.keys.by_head && shape.kv_heads > 1 ? shape.key_dim : item.keys.row,
       .value_row = item.values.by_head && shape.kv_heads > 1 ? shape.value_dim : item.values.row,
       .key_offset = piece.kv_head * shape.key_dim * (item.keys.by_head ? kCacheBlock : 1),
       .value_offset = piece.kv_head * shape.value_dim * (item.values.by_head ? kCacheBlock : 1),
       .key_dim = shape.key_dim,
       .value_dim = shape.value_dim,
       .bf16 = item.keys.element == Element::kBf16,
       .scale = shape.scale,
       .scratch = reinterpret_cast<float*>(scratch.bytes.data())});
}

}  // namespace

std::size_t attend_scratch(int rows, int key_dim, int value_dim) {
  const auto count = static_cast<std::size_t>(rows);
  constexpr std::size_t kFloatsOfPointer = sizeof(void*) / sizeof(float);
  return (count + kCacheBlock) * (padded(key_dim) + padded(value_dim)) + count * (2 + kFloatsOfPointer);
}

const VectorFunctions& functions_for(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAmx:
    case Instructions::kAvx512Bf16:
    case Instructions::kAvx512:
      return avx512_functions();
    case Instructions::kAvx2:
      return avx2_functions();
    case Instructions::kPortable:
      break;
  }
  return portable_functions();
}

void attention(std::span<const AttentionItem> items, const AttentionShape& shape, Instructions instructions,
               ThreadPool& pool) {
  GRACE_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
              "heads are not a multiple of kv_heads");
  const int group = shape.heads / shape.kv_heads;
  std::size_t all_rows = 0;
  for (const AttentionItem& item : items) {
    check(item, shape);
    all_rows += item.q.size() / static_cast<std::size_t>(shape.key_dim);
  }
  // A row's bits do not depend on the pieces, so that they may be as many as keep all threads busy.
  const std::size_t share = all_rows / (4 * static_cast<std::size_t>(pool.num_threads())) + 1;
  const int most = static_cast<int>(std::clamp<std::size_t>(share, 4, kMostRows));
  static thread_local std::vector<Piece> kept;
  std::vector<Piece>& pieces = kept;  // the caller's, also in the pool's threads
  pieces.clear();
  for (const AttentionItem& item : items) {
    const int rows = static_cast<int>(item.q.size()) / (shape.heads * shape.key_dim) * group;
    for (int kv = 0; kv < shape.kv_heads; ++kv)
      for (int first = 0; first < rows; first += most)
        pieces.push_back({&item, kv, first, std::min(first + most, rows)});
  }
  const VectorFunctions& functions = functions_for(instructions);
  static thread_local std::vector<Scratch> scratch;
  std::vector<Scratch>& mine = scratch;
  if (std::cmp_less(mine.size(), pool.num_threads()))
    mine.resize(static_cast<std::size_t>(pool.num_threads()));
  pool.for_each(pieces.size(), [&](std::size_t i, int thread) {
    run(pieces[i], shape, functions, mine[static_cast<std::size_t>(thread)]);
  });
}

}  // namespace grace::kernels
