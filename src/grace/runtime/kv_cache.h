// The keys and values of the sequences one rank serves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace grace {

// Owner. Grows with its sequences. Thread-compatible.
class KvCache {
 public:
  // row: kv_heads * head_dim.
  KvCache(int num_layers, int row)
      : num_layers_(static_cast<std::size_t>(num_layers)), row_(static_cast<std::size_t>(row)) {}

  // Slots [0, num_sequences), all empty.
  void reset(int num_sequences);
  void release(int sequence);
  int num_sequences() const { return static_cast<int>(length_.size()); }
  // Tokens whose step has been finished.
  int length(int sequence) const { return length_[static_cast<std::size_t>(sequence)]; }
  // Called once per step and sequence, after its last layer.
  void advance(int sequence, int num_new) { length_[static_cast<std::size_t>(sequence)] += num_new; }

  // keys, values: [num_new, row].
  void append(int layer, int sequence, std::span<const float> keys, std::span<const float> values);
  // [length, row], what was appended last included. Valid until the next append to this layer and sequence.
  std::span<const float> keys(int layer, int sequence) const { return cell(layer, sequence).keys; }
  std::span<const float> values(int layer, int sequence) const { return cell(layer, sequence).values; }

 private:
  struct Cell {
    std::vector<float> keys;
    std::vector<float> values;
  };
  const Cell& cell(int layer, int sequence) const {
    return cells_[static_cast<std::size_t>(sequence) * num_layers_ + static_cast<std::size_t>(layer)];
  }

  std::size_t num_layers_;
  std::size_t row_;
  std::vector<Cell> cells_;  // [sequences, layers]
  std::vector<int> length_;  // [sequences]
};

}  // namespace grace
