// Weights as a tape's products read them: f32, row-major.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace grace {

// [rows, cols]. Owner.
class TapeMatrix {
 public:
  TapeMatrix() = default;
  TapeMatrix(int rows, int cols)
      : rows_(rows), cols_(cols), values_(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols)) {}
  bool empty() const { return values_.empty(); }
  int rows() const { return rows_; }
  std::span<float> row(int r) { return {values_.data() + begin(r), static_cast<std::size_t>(cols_)}; }
  std::span<const float> row(int r) const {
    return {values_.data() + begin(r), static_cast<std::size_t>(cols_)};
  }
  TapeMatrix transposed() const {
    TapeMatrix to(cols_, rows_);
    for (int r = 0; r < rows_; ++r)
      for (int c = 0; c < cols_; ++c)
        to.row(c)[static_cast<std::size_t>(r)] = row(r)[static_cast<std::size_t>(c)];
    return to;
  }
  TapeMatrix rows_of(int first, int count) const {
    TapeMatrix to(count, cols_);
    for (int r = 0; r < count; ++r) std::ranges::copy(row(first + r), to.row(r).begin());
    return to;
  }

 private:
  std::size_t begin(int r) const { return static_cast<std::size_t>(r) * static_cast<std::size_t>(cols_); }
  int rows_ = 0, cols_ = 0;
  std::vector<float> values_;
};

struct TapeFfn {
  TapeMatrix gate, up, down;
};
// q_norm and k_norm of latent attention are those of its compressed queries and keys.
struct TapeAttention {
  TapeMatrix q, k, v, o;
  std::vector<float> q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
  TapeMatrix q_down, kv_down;
  std::vector<TapeMatrix> keys, absorb, values;  // latent, of each head
};

}  // namespace grace
