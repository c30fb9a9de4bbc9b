#include "grace/kernels/matmul.h"

#include <algorithm>

#include "grace/base/check.h"
#include "grace/kernels/cpu/expert_panels.h"

namespace grace::kernels {
namespace {

// Working memory of one thread, kept.
struct Scratch {
  OperandMaker in, middle;
  std::vector<float> sums, activations;
};
Scratch& scratch() {
  static thread_local Scratch mine;
  return mine;
}

// Rows of x, after checking that the three shapes agree.
std::size_t rows_of(std::span<const float> x, const PackedMatrix& weight, std::span<const float> y) {
  GRACE_CHECK(weight.in > 0 && weight.out > 0, "an empty weight");
  const std::size_t rows = x.size() / static_cast<std::size_t>(weight.in);
  GRACE_CHECK(rows * static_cast<std::size_t>(weight.in) == x.size(), "x is not [rows, in]");
  GRACE_CHECK(rows * static_cast<std::size_t>(weight.out) == y.size(), "y is not [rows, out]");
  return rows;
}

// Row r of a matrix of `width` columns.
auto rows_from(float* first, int width) {
  return [first, width](std::size_t r) { return first + r * static_cast<std::size_t>(width); };
}

OperandRows from_row(const OperandRows& x, std::size_t row) {
  return {x.data + row * x.stride, x.stride, x.scales == nullptr ? nullptr : x.scales + row};
}

// A loop's items: row blocks by ranges of panels, a few for each thread.
struct Grid {
  std::size_t rows, block, blocks, panels, ranges;

  Grid(const PackedMatrix& weight, std::size_t all_rows, int threads)
      : rows(all_rows), block(row_block(weight)), panels(num_panels(weight)) {
    blocks = (rows + block - 1) / block;
    const std::size_t wanted = threads == 1 ? 1 : 4 * static_cast<std::size_t>(threads);
    ranges = std::min(panels, (wanted + blocks - 1) / blocks);
  }
  std::size_t items() const { return blocks * ranges; }
  std::size_t first_row(std::size_t item) const { return rows * (item / ranges) / blocks; }
  std::size_t last_row(std::size_t item) const { return rows * (item / ranges + 1) / blocks; }
  std::size_t first_panel(std::size_t item) const { return panels * (item % ranges) / ranges; }
  std::size_t last_panel(std::size_t item) const { return panels * (item % ranges + 1) / ranges; }
};

// x as the weight's tiles read it, the rows shared out.
OperandRows make_shared(const PackedMatrix& weight, std::span<const float> x, std::size_t rows,
                        OperandMaker& maker, ThreadPool& pool) {
  const auto in = static_cast<std::size_t>(weight.in);
  constexpr std::size_t kRowsOfItem = 64;
  if (rows <= kRowsOfItem || OperandMaker::reads_as_it_is(weight)) return maker.make(weight, x);
  maker.reserve(weight, rows);
  pool.for_each((rows + kRowsOfItem - 1) / kRowsOfItem, [&](std::size_t item, int) {
    const std::size_t end = std::min(rows, (item + 1) * kRowsOfItem);
    for (std::size_t r = item * kRowsOfItem; r < end; ++r) maker.fill(weight, r, x.data() + r * in);
  });
  return maker.rows();
}

}  // namespace

void matmul(std::span<const float> x, const PackedMatrix& weight, std::span<float> y, ThreadPool& pool) {
  const std::size_t rows = rows_of(x, weight, y);
  if (rows == 0) return;
  const OperandRows operand = make_shared(weight, x, rows, scratch().in, pool);
  const Grid grid(weight, rows, pool.num_threads());
  pool.for_each(grid.items(), [&](std::size_t item, int) {
    const std::size_t row = grid.first_row(item);
    multiply_into(weight, from_row(operand, row), grid.last_row(item) - row, grid.first_panel(item),
                  grid.last_panel(item), scratch().sums,
                  rows_from(y.data() + row * static_cast<std::size_t>(weight.out), weight.out));
  });
}

void matmul_rows(std::span<const float> x, const PackedMatrix& weight, std::span<float> y) {
  const std::size_t rows = rows_of(x, weight, y);
  if (rows == 0) return;
  const OperandRows operand = scratch().in.make(weight, x);
  const Grid grid(weight, rows, 1);
  for (std::size_t item = 0; item < grid.items(); ++item) {
    const std::size_t row = grid.first_row(item);
    multiply_into(weight, from_row(operand, row), grid.last_row(item) - row, 0, grid.panels, scratch().sums,
                  rows_from(y.data() + row * static_cast<std::size_t>(weight.out), weight.out));
  }
}

void expert_ffn(std::span<const float* const> rows, const PackedExpert& expert, std::span<float* const> y) {
  GRACE_CHECK(rows.size() == y.size(), "as many outputs as rows");
  if (rows.empty()) return;
  Scratch& mine = scratch();
  const auto ffn = static_cast<std::size_t>(expert.ffn);
  if (mine.activations.size() < rows.size() * ffn) mine.activations.resize(rows.size() * ffn);
  const PackedMatrix& down = expert.down;
  const OperandRows x = mine.in.make(expert.gate_up, rows);
  activate_into(expert, x, rows.size(), 0, num_panels(expert.gate_up),
                {down.panels.data(), down.panels.size()}, mine.sums, mine.activations.data());
  const OperandRows middle = mine.middle.make(down, std::span(mine.activations).first(rows.size() * ffn));
  multiply_into(down, middle, rows.size(), 0, num_panels(down), mine.sums,
                [&](std::size_t r) { return y[r]; });
}

void ffn(std::span<const float> x, const PackedExpert& expert, std::span<float> y, ThreadPool& pool) {
  const auto hidden = static_cast<std::size_t>(expert.down.out);
  const auto ffn = static_cast<std::size_t>(expert.ffn);
  GRACE_CHECK(x.size() % hidden == 0 && y.size() == x.size(), "x and y are not [T, H]");
  const std::size_t rows = x.size() / hidden;
  if (rows == 0) return;
  Scratch& mine = scratch();
  if (mine.activations.size() < rows * ffn) mine.activations.resize(rows * ffn);
  float* activations = mine.activations.data();
  const OperandRows operand = make_shared(expert.gate_up, x, rows, mine.in, pool);
  const Grid grid(expert.gate_up, rows, pool.num_threads());
  pool.for_each(grid.items(), [&](std::size_t item, int) {
    const std::size_t row = grid.first_row(item);
    activate_into(expert, from_row(operand, row), grid.last_row(item) - row, grid.first_panel(item),
                  grid.last_panel(item), {}, scratch().sums, activations + row * ffn);
  });
  const OperandRows middle = make_shared(expert.down, {activations, rows * ffn}, rows, mine.middle, pool);
  const Grid down(expert.down, rows, pool.num_threads());
  pool.for_each(down.items(), [&](std::size_t item, int) {
    const std::size_t row = down.first_row(item);
    multiply_into(expert.down, from_row(middle, row), down.last_row(item) - row, down.first_panel(item),
                  down.last_panel(item), scratch().sums, rows_from(y.data() + row * hidden, expert.down.out));
  });
}

}  // namespace grace::kernels
