// Attention over chunks of keys, written once over vectors; included as block_body.h is, before
// vector_body.h.

template <class L>
__attribute__((always_inline)) static inline typename L::Vector exp_of(typename L::Vector x);

constexpr int kAttendRows = 4;  // of queries at a time
// Keys scored, and vectors of values weighed, at a time: sums enough to hide the latency of an addition.
constexpr int keys_at_once(int rows) { return rows == 1 ? 16 : 4; }
constexpr int vectors_at_once(int rows) { return rows == 1 ? 8 : 4; }

constexpr int padded_dim(int dim) { return (dim + kWidestLanes - 1) / kWidestLanes * kWidestLanes; }

// Rows of the cache, padded to whole vectors: as f32, where they lie or widened into scratch, or as bf16,
// where so few rows ask for them that each widens what it reads.
template <class L>
struct F32Rows {
  const float* data;
  std::size_t stride;
  typename L::Vector load(int row, int d) const {
    return L::load(data + static_cast<std::size_t>(row) * stride + d);
  }
};
template <class L>
struct Bf16Rows {
  const std::uint16_t* data;
  std::size_t stride;
  typename L::Vector load(int row, int d) const {
    return L::load_bf16(data + static_cast<std::size_t>(row) * stride + d);
  }
};
constexpr int kFewRows = 3;  // widening a row costs about as much as using it once

template <class L>
F32Rows<L> chunk_rows(const std::byte* block, int row, int offset, int dim, bool bf16, int count, float* to) {
  const int padded = padded_dim(dim);
  const std::size_t stride = static_cast<std::size_t>(row);
  if (!bf16 && padded == dim) return {reinterpret_cast<const float*>(block) + offset, stride};
  for (int i = 0; i < count; ++i) {
    float* out = to + static_cast<std::size_t>(i) * static_cast<std::size_t>(padded);
    const std::size_t begin = static_cast<std::size_t>(i) * stride + static_cast<std::size_t>(offset);
    int d = 0;
    if (bf16) {
      const std::uint16_t* from = reinterpret_cast<const std::uint16_t*>(block) + begin;
      for (; d + L::kLanes <= dim; d += L::kLanes) L::store(out + d, L::load_bf16(from + d));
      for (; d < dim; ++d) {
        const std::uint32_t bits = static_cast<std::uint32_t>(from[d]) << 16;
        __builtin_memcpy(out + d, &bits, sizeof bits);
      }
    } else {
      const float* from = reinterpret_cast<const float*>(block) + begin;
      for (; d < dim; ++d) out[d] = from[d];
    }
    for (; d < padded; ++d) out[d] = 0;
  }
  return {to, static_cast<std::size_t>(padded)};
}

// scores[r][k] = q[r] . keys[k] * scale for R rows and K keys.
template <class L, int R, int K, class Rows>
void score_tile(const float* const* q, const Rows& keys, int first, int dim, float scale, float* scores) {
  typename L::Vector sums[R][K];
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < K; ++k) sums[r][k] = L::zero();
  for (int d = 0; d < dim; d += L::kLanes) {
    typename L::Vector key[K];
    for (int k = 0; k < K; ++k) key[k] = keys.load(first + k, d);
    for (int r = 0; r < R; ++r) {
      const typename L::Vector value = L::load(q[r] + d);
      for (int k = 0; k < K; ++k) sums[r][k] = L::multiply_add(value, key[k], sums[r][k]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < K; ++k) scores[r * kCacheBlock + k] = L::sum(sums[r][k]) * scale;
}

template <class L, int R, class Rows>
void score_rows(const float* const* q, const Rows& keys, int count, int dim, float scale, float* scores) {
  int k = 0;
  for (; k + keys_at_once(R) <= count; k += keys_at_once(R))
    score_tile<L, R, keys_at_once(R)>(q, keys, k, dim, scale, scores + k);
  for (; k < count; ++k) score_tile<L, R, 1>(q, keys, k, dim, scale, scores + k);
}

// sums[r] = sums[r] * shrink[r] + sum over keys of weights[r][k] * values[k], V vectors of them.
template <class L, int R, int V, class Rows>
void weigh_tile(const float* weights, const float* shrink, const Rows& values, int first, int count,
                float* sums, std::size_t sums_stride) {
  typename L::Vector sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      sum[r][v] = L::mul(L::load(sums + static_cast<std::size_t>(r) * sums_stride + v * L::kLanes),
                         L::set(shrink[r]));
  for (int k = 0; k < count; ++k) {
    typename L::Vector value[V];
    for (int v = 0; v < V; ++v) value[v] = values.load(k, first + v * L::kLanes);
    for (int r = 0; r < R; ++r) {
      const typename L::Vector weight = L::broadcast(weights + r * kCacheBlock + k);
      for (int v = 0; v < V; ++v) sum[r][v] = L::multiply_add(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      L::store(sums + static_cast<std::size_t>(r) * sums_stride + v * L::kLanes, sum[r][v]);
}

template <class L, int R, class Rows>
void weigh_rows(const float* weights, const float* shrink, const Rows& values, int count, int dim,
                float* sums, std::size_t sums_stride) {
  int d = 0;
  for (; d + vectors_at_once(R) * L::kLanes <= dim; d += vectors_at_once(R) * L::kLanes)
    weigh_tile<L, R, vectors_at_once(R)>(weights, shrink, values, d, count, sums + d, sums_stride);
  for (; d < dim; d += L::kLanes)
    weigh_tile<L, R, 1>(weights, shrink, values, d, count, sums + d, sums_stride);
}

// The largest of what one row sees; what it does not see is set below everything.
template <class L>
float largest_seen(float* scores, int begin, int end) {
  for (int k = 0; k < begin; ++k) scores[k] = -__builtin_inff();
  for (int k = end; k < kCacheBlock; ++k) scores[k] = -__builtin_inff();
  typename L::Vector largest = L::load(scores);
  for (int k = L::kLanes; k < kCacheBlock; k += L::kLanes) largest = L::max(largest, L::load(scores + k));
  return L::largest(largest);
}

// Scores of one row to weights, in place; none for what it does not see. Returns their sum.
template <class L>
float weights_of(float* scores, int begin, int end, float maximum) {
  for (int k = 0; k < kCacheBlock; k += L::kLanes)
    L::store(scores + k, exp_of<L>(L::sub(L::load(scores + k), L::set(maximum))));
  for (int k = 0; k < begin; ++k) scores[k] = 0;
  for (int k = end; k < kCacheBlock; ++k) scores[k] = 0;
  typename L::Vector sum = L::zero();
  for (int k = 0; k < kCacheBlock; k += L::kLanes) sum = L::add(sum, L::load(scores + k));
  return L::sum(sum);
}

// R rows from `row` on against one chunk whose first key is `base`.
template <class L, int R, class Rows>
void attend_rows(const AttendCall& call, int row, int base, int count, const Rows& keys, const Rows& values,
                 const float* const* q, float* sums, float* maxima, float* totals) {
  const int key_dim = padded_dim(call.key_dim), value_dim = padded_dim(call.value_dim);
  alignas(64) float scores[R][kCacheBlock];
  float shrink[R];
  bool any = false;
  score_rows<L, R>(q + row, keys, count, key_dim, call.scale, &scores[0][0]);
  for (int r = 0; r < R; ++r) {
    const int begin = call.first_key[row + r] > base ? call.first_key[row + r] - base : 0;
    const int end = call.last_key[row + r] - base < count ? call.last_key[row + r] - base : count;
    shrink[r] = 1;
    if (begin >= end) {
      for (int k = 0; k < kCacheBlock; ++k) scores[r][k] = 0;
      continue;
    }
    any = true;
    const float seen = largest_seen<L>(scores[r], begin, end);
    const float maximum = seen > maxima[row + r] ? seen : maxima[row + r];
    if (totals[row + r] > 0) {
      alignas(64) float step[L::kLanes];
      L::store(step, exp_of<L>(L::set(maxima[row + r] - maximum)));
      shrink[r] = step[0];
    }
    maxima[row + r] = maximum;
    totals[row + r] = totals[row + r] * shrink[r] + weights_of<L>(scores[r], begin, end, maximum);
  }
  if (!any) return;
  weigh_rows<L, R>(&scores[0][0], shrink, values, count, value_dim,
                   sums + static_cast<std::size_t>(row) * static_cast<std::size_t>(value_dim),
                   static_cast<std::size_t>(value_dim));
}

template <class L>
void attend(const AttendCall& call) {
  const int key_dim = padded_dim(call.key_dim), value_dim = padded_dim(call.value_dim);
  // Scratch: sums, padded queries, a chunk's keys and values, maxima and totals.
  float* sums = call.scratch;
  float* padded_q = sums + static_cast<std::size_t>(call.rows) * static_cast<std::size_t>(value_dim);
  float* key_scratch = padded_q + static_cast<std::size_t>(call.rows) * static_cast<std::size_t>(key_dim);
  float* value_scratch =
      key_scratch + static_cast<std::size_t>(kCacheBlock) * static_cast<std::size_t>(key_dim);
  float* maxima = value_scratch + static_cast<std::size_t>(kCacheBlock) * static_cast<std::size_t>(value_dim);
  float* totals = maxima + call.rows;
  const float** q = reinterpret_cast<const float**>(totals + call.rows + call.rows % 2);
  for (int r = 0; r < call.rows; ++r) {
    q[r] = call.q[r];
    if (key_dim != call.key_dim) {
      float* to = padded_q + static_cast<std::size_t>(r) * static_cast<std::size_t>(key_dim);
      for (int d = 0; d < key_dim; ++d) to[d] = d < call.key_dim ? call.q[r][d] : 0;
      q[r] = to;
    }
    maxima[r] = -__builtin_inff();
    totals[r] = 0;
    for (int d = 0; d < value_dim; ++d)
      sums[static_cast<std::size_t>(r) * static_cast<std::size_t>(value_dim) + static_cast<std::size_t>(d)] =
          0;
  }
  const bool as_they_are =
      call.bf16 && call.rows <= kFewRows && key_dim == call.key_dim && value_dim == call.value_dim;
  for (int base = call.first / kCacheBlock * kCacheBlock; base < call.last; base += kCacheBlock) {
    const int count = call.last - base < kCacheBlock ? call.last - base : kCacheBlock;
    const std::size_t b = static_cast<std::size_t>(base / kCacheBlock);
    if (as_they_are) {
      const auto rows_at = [b](const std::byte* const* blocks, int row, int offset) {
        return Bf16Rows<L>{reinterpret_cast<const std::uint16_t*>(blocks[b]) + offset,
                           static_cast<std::size_t>(row)};
      };
      const Bf16Rows<L> keys = rows_at(call.keys, call.key_row, call.key_offset);
      const Bf16Rows<L> values = rows_at(call.values, call.value_row, call.value_offset);
      for (int row = 0; row < call.rows; ++row)
        attend_rows<L, 1>(call, row, base, count, keys, values, q, sums, maxima, totals);
      continue;
    }
    const F32Rows<L> keys = chunk_rows<L>(call.keys[b], call.key_row, call.key_offset, call.key_dim,
                                          call.bf16, count, key_scratch);
    const F32Rows<L> values = chunk_rows<L>(call.values[b], call.value_row, call.value_offset, call.value_dim,
                                            call.bf16, count, value_scratch);
    int row = 0;
    for (; row + kAttendRows <= call.rows; row += kAttendRows)
      attend_rows<L, kAttendRows>(call, row, base, count, keys, values, q, sums, maxima, totals);
    for (; row < call.rows; ++row)
      attend_rows<L, 1>(call, row, base, count, keys, values, q, sums, maxima, totals);
  }
  for (int r = 0; r < call.rows; ++r)
    for (int d = 0; d < call.value_dim; ++d)
      call.out[r][d] = sums[static_cast<std::size_t>(r) * static_cast<std::size_t>(value_dim) +
                            static_cast<std::size_t>(d)] /
                       totals[r];
}
