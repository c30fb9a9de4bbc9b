#include "grace/runtime/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "grace/base/bf16.h"
#include "grace/base/check.h"

namespace grace {
namespace {

constexpr std::size_t kBlockRows = kernels::kCacheBlock;
constexpr std::size_t kLine = 64;
// Blocks are taken from the system so many bytes at a time.
constexpr std::size_t kSlabBytes = std::size_t{1} << 20;

}  // namespace

KvCache::KvCache(int num_layers, int key_row, int value_row, Element element, int heads)
    : num_layers_(num_layers),
      element_(element),
      keys_(key_row, heads, element),
      values_(value_row, heads, element) {
  GRACE_CHECK(num_layers >= 0 && key_row >= 0 && value_row >= 0, "sizes below 0");
  GRACE_CHECK(heads >= 1 && key_row % heads == 0 && value_row % heads == 0, "a row is not of whole heads");
  GRACE_CHECK(element != Element::kF16, "f16 is not cached");
}

KvCache::Pool::Pool(int row, int heads, Element element)
    : row_(static_cast<std::size_t>(row)),
      dim_(row_ / static_cast<std::size_t>(heads)),
      block_bytes_((kBlockRows * row_ * bytes_of(element) + kLine - 1) / kLine * kLine) {}

std::byte* KvCache::Pool::take() {
  if (free_.empty()) {
    const std::size_t count = std::max<std::size_t>(1, kSlabBytes / std::max<std::size_t>(1, block_bytes_));
    std::byte* slab = slabs_.emplace_back(count * block_bytes_).data();
    for (std::size_t i = count; i > 0; --i) free_.push_back(slab + (i - 1) * block_bytes_);
  }
  std::byte* block = free_.back();
  free_.pop_back();
  return block;
}

void KvCache::Pool::give(Rows& rows) {
  for (const std::byte* block : rows.blocks) free_.push_back(const_cast<std::byte*>(block));
  rows = {};
}

void KvCache::Pool::append(Rows& rows, std::span<const float> values, Element element) {
  for (; !values.empty(); values = values.subspan(row_)) {
    const std::size_t place = static_cast<std::size_t>(rows.length++) % kBlockRows;
    if (place == 0) rows.blocks.push_back(take());
    auto* block = const_cast<std::byte*>(rows.blocks.back());
    for (std::size_t first = 0; first < row_; first += dim_) {
      std::byte* to = block + (first * kBlockRows + place * dim_) * bytes_of(element);
      if (element == Element::kF32) {
        std::memcpy(to, values.data() + first, dim_ * sizeof(float));
      } else {
        auto* halves = reinterpret_cast<std::uint16_t*>(to);
        for (std::size_t i = 0; i < dim_; ++i) halves[i] = bf16_of_f32(values[first + i]);
      }
    }
  }
}

KvCache::Cell& KvCache::cell(int layer, int sequence) {
  return cells_[static_cast<std::size_t>(sequence) * static_cast<std::size_t>(num_layers_) +
                static_cast<std::size_t>(layer)];
}
const KvCache::Cell& KvCache::cell(int layer, int sequence) const {
  return const_cast<KvCache*>(this)->cell(layer, sequence);
}

void KvCache::reset(int num_sequences) {
  GRACE_CHECK(num_sequences >= 0, "a negative number of sequences");
  for (int sequence = 0; sequence < this->num_sequences(); ++sequence) release(sequence);
  cells_.clear();
  cells_.resize(static_cast<std::size_t>(num_sequences) * static_cast<std::size_t>(num_layers_));
  length_.assign(static_cast<std::size_t>(num_sequences), 0);
}

void KvCache::release(int sequence) {
  for (int layer = 0; layer < num_layers_; ++layer) {
    keys_.give(cell(layer, sequence).keys);
    values_.give(cell(layer, sequence).values);
  }
}

void KvCache::append(int layer, int sequence, std::span<const float> keys, std::span<const float> values) {
  GRACE_CHECK(keys.size() % keys_.row() == 0, "keys are not [num_new, row]");
  GRACE_CHECK(values.size() == keys.size() / keys_.row() * values_.row(), "values are not [num_new, row]");
  Cell& to = cell(layer, sequence);
  GRACE_CHECK(to.keys.length == length(sequence),
              "a sequence that was released, or a layer appended to twice in one step");
  keys_.append(to.keys, keys, element_);
  if (values_.row() > 0) values_.append(to.values, values, element_);
}

kernels::CachedRows KvCache::keys(int layer, int sequence) const {
  const Rows& rows = cell(layer, sequence).keys;
  return {rows.blocks, rows.length, static_cast<int>(keys_.row()), element_, true};
}

kernels::CachedRows KvCache::values(int layer, int sequence) const {
  const Rows& rows = cell(layer, sequence).values;
  return {rows.blocks, rows.length, static_cast<int>(values_.row()), element_, true};
}

std::int64_t KvCache::bytes_per_token() const {
  return num_layers_ * static_cast<std::int64_t>((keys_.row() + values_.row()) * bytes_of(element_));
}

}  // namespace grace
