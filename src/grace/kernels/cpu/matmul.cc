#include <algorithm>
#include <array>

#include "grace/base/check.h"
#include "grace/kernels/cpu/tile.h"

namespace grace::kernels {
namespace {

std::size_t num_panels(const PackedMatrix& weight) {
  return (static_cast<std::size_t>(weight.out) + kPanel - 1) / kPanel;
}

// Panels [first, last) for every row; a panel stays in the cache while all rows pass it.
void multiply(const Tile& tile, const float* x, std::size_t rows, const PackedMatrix& weight,
              std::size_t first, std::size_t last, float* y) {
  const auto in = static_cast<std::size_t>(weight.in);
  const auto out = static_cast<std::size_t>(weight.out);
  std::array<float, static_cast<std::size_t>(kMaxTileRows) * kPanel> sums;
  for (std::size_t panel = first; panel < last; ++panel) {
    const std::size_t column = panel * kPanel;
    const std::size_t columns = std::min<std::size_t>(kPanel, out - column);
    for (std::size_t row = 0; row < rows; row += static_cast<std::size_t>(tile.max_rows)) {
      const std::size_t block = std::min<std::size_t>(static_cast<std::size_t>(tile.max_rows), rows - row);
      tile.run(x + row * in, static_cast<int>(block), in, weight.panels.data() + column * in, sums.data());
      for (std::size_t r = 0; r < block; ++r)
        std::copy_n(sums.data() + r * kPanel, columns, y + (row + r) * out + column);
    }
  }
}

// Rows of x, after checking that the three shapes agree.
std::size_t num_rows(std::span<const float> x, const PackedMatrix& weight, std::span<const float> y) {
  GRACE_CHECK(weight.in > 0 && weight.out > 0, "an empty weight");
  const std::size_t rows = x.size() / static_cast<std::size_t>(weight.in);
  GRACE_CHECK(rows * static_cast<std::size_t>(weight.in) == x.size(), "x is not [rows, in]");
  GRACE_CHECK(rows * static_cast<std::size_t>(weight.out) == y.size(), "y is not [rows, out]");
  return rows;
}

}  // namespace

std::span<const Tile> usable_tiles() {
  static const std::vector<Tile> tiles = [] {
    std::vector<Tile> found;
    if (const Tile* tile = avx512_tile()) found.push_back(*tile);
    if (const Tile* tile = avx2_tile()) found.push_back(*tile);
    found.push_back(portable_tile());
    return found;
  }();
  return tiles;
}

PackedMatrix pack(std::span<const float> weight, int out, int in) {
  GRACE_CHECK(
      out > 0 && in > 0 && weight.size() == static_cast<std::size_t>(out) * static_cast<std::size_t>(in),
      "weight is not [out, in]");
  PackedMatrix packed{out, in, {}};
  packed.panels.assign(num_panels(packed) * static_cast<std::size_t>(in) * kPanel, 0.0F);
  const auto depth = static_cast<std::size_t>(in);
  for (std::size_t column = 0; column < static_cast<std::size_t>(out); ++column) {
    float* panel = packed.panels.data() + column / kPanel * depth * kPanel + column % kPanel;
    for (std::size_t k = 0; k < depth; ++k) panel[k * kPanel] = weight[column * depth + k];
  }
  return packed;
}

void matmul(std::span<const float> x, const PackedMatrix& weight, std::span<float> y, ThreadPool& pool) {
  const std::size_t rows = num_rows(x, weight, y);
  if (rows == 0) return;
  const Tile& tile = usable_tiles().front();
  const std::size_t panels = num_panels(weight);
  // A few items per thread even out their pace without paying the pool for each panel.
  const std::size_t items =
      pool.num_threads() == 1
          ? 1
          : std::min<std::size_t>(panels, 4 * static_cast<std::size_t>(pool.num_threads()));
  pool.for_each(items, [&](std::size_t item, int) {
    multiply(tile, x.data(), rows, weight, item * panels / items, (item + 1) * panels / items, y.data());
  });
}

void matmul_rows(std::span<const float> x, const PackedMatrix& weight, std::span<float> y) {
  matmul_rows_with(usable_tiles().front(), x, weight, y);
}

void matmul_rows_with(const Tile& tile, std::span<const float> x, const PackedMatrix& weight,
                      std::span<float> y) {
  multiply(tile, x.data(), num_rows(x, weight, y), weight, 0, num_panels(weight), y.data());
}

}  // namespace grace::kernels
