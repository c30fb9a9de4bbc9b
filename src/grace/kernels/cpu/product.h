// Activations by packed weights, on one thread: what matmul and expert_ffn are made of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "grace/kernels/cpu/tile.h"

namespace grace::kernels {

// Rows in the form that a weight's tiles read. Views of what made them.
struct OperandRows {
  const std::byte* data = nullptr;
  std::size_t stride = 0;         // bytes
  const float* scales = nullptr;  // kU8: [rows]
};

// Makes operands and keeps their memory. Thread-compatible.
class OperandMaker {
 public:
  // x: rows of `in` values each.
  OperandRows make(const PackedMatrix& weight, std::span<const float* const> rows);
  // The same for x [rows, in]; where the tiles read it as it is, it stays where it is.
  OperandRows make(const PackedMatrix& weight, std::span<const float> x);

  // In two steps, so that threads can share the second: room for so many rows, then each row.
  void reserve(const PackedMatrix& weight, std::size_t rows);
  void fill(const PackedMatrix& weight, std::size_t row, const float* x);
  OperandRows rows() const { return {bytes_.data(), stride_, scales_.data()}; }
  static bool reads_as_it_is(const PackedMatrix& weight);

 private:
  Bytes bytes_;
  std::size_t stride_ = 0;
  std::vector<float> scales_;
};

inline const Tiles& tiles_of(const PackedMatrix& weight) {
  return tiles_for(weight.arithmetic.instructions, weight.arithmetic.numbers, weight.storage);
}
inline std::size_t num_panels(const PackedMatrix& weight) {
  return (static_cast<std::size_t>(weight.out) + kPanel - 1) / kPanel;
}
std::size_t steps_of(const PackedMatrix& weight);
// Rows from which on a panel is used often enough, and that stay in the cache with it.
std::size_t row_block(const PackedMatrix& weight);

// Whole sums to f32, in place. sums: [rows, kPanel] of panel `panel`.
void scale_sums(const PackedMatrix& weight, std::size_t panel, const float* row_scales, int rows,
                float* sums);

// sink(panel, sums) for each panel of [first, last); sums: [rows, kPanel]. `after` is what will be read next.
template <typename Sink>
void multiply(const PackedMatrix& weight, const OperandRows& x, int rows, std::size_t first, std::size_t last,
              std::span<const std::byte> after, std::vector<float>& sums, Sink sink) {
  const Tiles& tiles = tiles_of(weight);
  const auto most = static_cast<std::size_t>(tiles.panels_for(rows));
  const std::size_t steps = steps_of(weight);
  const std::size_t panel_bytes = steps * kStepBytes;
  const std::size_t sums_of_panel = static_cast<std::size_t>(rows) * kPanel;
  if (sums.size() < most * sums_of_panel) sums.resize(most * sums_of_panel);
  for (std::size_t panel = first; panel < last;) {
    const std::size_t count = std::min(most, last - panel);
    const std::byte* panels = weight.panels.data() + panel * panel_bytes;
    TileCall call{x.data, x.stride, rows, steps, panels, static_cast<int>(count), sums.data(), nullptr, 0};
    if (panel + count < last) {
      call.next = panels + count * panel_bytes;
      call.next_bytes = panel_bytes;
    } else if (!after.empty()) {
      call.next = after.data();
      call.next_bytes = std::min(after.size(), panel_bytes);
    }
    tiles.run(call);
    for (std::size_t p = 0; p < count; ++p) {
      if (tiles.operand == Operand::kU8)
        scale_sums(weight, panel + p, x.scales, rows, sums.data() + p * sums_of_panel);
      sink(panel + p, sums.data() + p * sums_of_panel);
    }
    panel += count;
  }
}

}  // namespace grace::kernels
