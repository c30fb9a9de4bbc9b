// What one rank has cached of the sequences it serves: keys and values, or the latent vectors they come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/matrix_view.h"
#include "grace/kernels/attention.h"
#include "grace/kernels/packed.h"

namespace grace {

// Owner. Grows block by block; blocks of sequences that are released serve others. Thread-compatible.
class KvCache {
 public:
  // Of each layer and token key_row and value_row values; value_row may be 0. element: kF32 or kBf16, to
  // which what is appended is rounded.
  // A row is of `heads` heads, one behind the other.
  KvCache(int num_layers, int key_row, int value_row, Element element, int heads = 1);

  // Slots [0, num_sequences), all empty.
  void reset(int num_sequences);
  void release(int sequence);
  int num_sequences() const { return static_cast<int>(length_.size()); }
  // Tokens whose step has been finished.
  int length(int sequence) const { return length_[static_cast<std::size_t>(sequence)]; }
  // Called once per step and sequence, after its last layer.
  void advance(int sequence, int num_new) { length_[static_cast<std::size_t>(sequence)] += num_new; }

  // keys: [num_new, key_row], values: [num_new, value_row].
  void append(int layer, int sequence, std::span<const float> keys, std::span<const float> values);
  // What was appended last included. Valid until the next append to this layer and sequence.
  kernels::CachedRows keys(int layer, int sequence) const;
  kernels::CachedRows values(int layer, int sequence) const;

  // Of one token in all layers.
  std::int64_t bytes_per_token() const;

 private:
  struct Rows {
    std::vector<const std::byte*> blocks;
    int length = 0;
  };
  struct Cell {
    Rows keys, values;
  };
  Cell& cell(int layer, int sequence);
  const Cell& cell(int layer, int sequence) const;

  // Blocks of rows of one size.
  class Pool {
   public:
    Pool(int row, int heads, Element element);
    std::size_t row() const { return row_; }
    void append(Rows& rows, std::span<const float> values, Element element);
    void give(Rows& rows);

   private:
    std::byte* take();

    std::size_t row_, dim_, block_bytes_;  // dim: of a head
    std::vector<kernels::Bytes> slabs_;
    std::vector<std::byte*> free_;
  };

  int num_layers_;
  Element element_;
  Pool keys_, values_;
  std::vector<Cell> cells_;  // [sequences, layers]
  std::vector<int> length_;  // [sequences]
};

}  // namespace grace
