#include <cmath>
#include <vector>

#include "grace/base/check.h"
#include "grace/kernels/kernels.h"

namespace grace::kernels {

void expert_ffn(std::span<const float> x, const PackedExpert& expert, std::span<float> y) {
  const auto hidden = static_cast<std::size_t>(expert.gate.in);
  const auto ffn = static_cast<std::size_t>(expert.gate.out);
  GRACE_CHECK(hidden > 0 && x.size() % hidden == 0 && y.size() == x.size(), "x and y are not [rows, H]");
  const std::size_t rows = x.size() / hidden;
  std::vector<float> gate(rows * ffn);
  std::vector<float> up(rows * ffn);
  matmul_rows(x, expert.gate, gate);
  matmul_rows(x, expert.up, up);
  // One call of exp per element: a vectorised loop could treat its tail otherwise, and a row's bits would
  // depend on its place.
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
  matmul_rows(gate, expert.down, y);
}

}  // namespace grace::kernels
