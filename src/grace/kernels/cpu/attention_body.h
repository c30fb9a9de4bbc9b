// Attention over chunks of keys, written once over vectors; included as block_body.h is, before
// vector_body.h.

template <class L>
__attribute__((always_inline)) static inline typename L::Vector exp_of(typename L::Vector x);

constexpr int kAttendRows = 4;  // of queries at a time
constexpr int kAttendKeys = 4;
constexpr int kAttendVectors = 4;  // of values at a time

constexpr int padded_dim(int dim) { return (dim + kWidestLanes - 1) / kWidestLanes * kWidestLanes; }

// The sum over a vector's lanes, halves upon halves.
template <class L>
__attribute__((always_inline)) static inline float sum_of_lanes(typename L::Vector v) {
  alignas(64) float lanes[L::kLanes];
  L::store(lanes, v);
  for (int width = L::kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// Rows of the cache as f32, each padded to whole vectors: where they lie, or widened into `to`.
struct ChunkRows {
  const float* data;
  std::size_t stride;
};
template <class L>
ChunkRows chunk_rows(const std::byte* block, int row, int offset, int dim, bool bf16, int count, float* to) {
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
template <class L, int R, int K>
void score_tile(const float* const* q, const float* keys, std::size_t stride, int dim, float scale,
                float* scores) {
  typename L::Vector sums[R][K];
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < K; ++k) sums[r][k] = L::zero();
  for (int d = 0; d < dim; d += L::kLanes) {
    typename L::Vector key[K];
    for (int k = 0; k < K; ++k) key[k] = L::load(keys + static_cast<std::size_t>(k) * stride + d);
    for (int r = 0; r < R; ++r) {
      const typename L::Vector value = L::load(q[r] + d);
      for (int k = 0; k < K; ++k) sums[r][k] = L::multiply_add(value, key[k], sums[r][k]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < K; ++k) scores[r * kCacheBlock + k] = sum_of_lanes<L>(sums[r][k]) * scale;
}

template <class L, int R>
void score_rows(const float* const* q, ChunkRows keys, int count, int dim, float scale, float* scores) {
  int k = 0;
  for (; k + kAttendKeys <= count; k += kAttendKeys)
    score_tile<L, R, kAttendKeys>(q, keys.data + static_cast<std::size_t>(k) * keys.stride, keys.stride, dim,
                                  scale, scores + k);
  for (; k < count; ++k)
    score_tile<L, R, 1>(q, keys.data + static_cast<std::size_t>(k) * keys.stride, keys.stride, dim, scale,
                        scores + k);
}

// sums[r] = sums[r] * shrink[r] + sum over keys of weights[r][k] * values[k], V vectors of them.
template <class L, int R, int V>
void weigh_tile(const float* weights, const float* shrink, const float* values, std::size_t stride, int count,
                float* sums, std::size_t sums_stride) {
  typename L::Vector sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      sum[r][v] = L::mul(L::load(sums + static_cast<std::size_t>(r) * sums_stride + v * L::kLanes),
                         L::set(shrink[r]));
  for (int k = 0; k < count; ++k) {
    typename L::Vector value[V];
    for (int v = 0; v < V; ++v)
      value[v] = L::load(values + static_cast<std::size_t>(k) * stride + v * L::kLanes);
    for (int r = 0; r < R; ++r) {
      const typename L::Vector weight = L::broadcast(weights + r * kCacheBlock + k);
      for (int v = 0; v < V; ++v) sum[r][v] = L::multiply_add(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      L::store(sums + static_cast<std::size_t>(r) * sums_stride + v * L::kLanes, sum[r][v]);
}

template <class L, int R>
void weigh_rows(const float* weights, const float* shrink, ChunkRows values, int count, int dim, float* sums,
                std::size_t sums_stride) {
  int d = 0;
  for (; d + kAttendVectors * L::kLanes <= dim; d += kAttendVectors * L::kLanes)
    weigh_tile<L, R, kAttendVectors>(weights, shrink, values.data + d, values.stride, count, sums + d,
                                     sums_stride);
  for (; d < dim; d += L::kLanes)
    weigh_tile<L, R, 1>(weights, shrink, values.data + d, values.stride, count, sums + d, sums_stride);
}

// Scores of one row to weights, in place; masks what the row does not see. Returns their sum.
template <class L>
float weights_of(float* scores, int begin, int end, float maximum) {
  for (int k = 0; k < kCacheBlock; k += L::kLanes)
    L::store(scores + k, exp_of<L>(L::sub(L::load(scores + k), L::set(maximum))));
  for (int k = 0; k < begin; ++k) scores[k] = 0;
  for (int k = end; k < kCacheBlock; ++k) scores[k] = 0;
  typename L::Vector sum = L::zero();
  for (int k = 0; k < kCacheBlock; k += L::kLanes) sum = L::add(sum, L::load(scores + k));
  return sum_of_lanes<L>(sum);
}

// R rows from `row` on against one chunk whose first key is `base`.
template <class L, int R>
void attend_rows(const AttendCall& call, int row, int base, int count, ChunkRows keys, ChunkRows values,
                 const float* const* q, float* sums, float* maxima, float* totals) {
  const int key_dim = padded_dim(call.key_dim), value_dim = padded_dim(call.value_dim);
  alignas(64) float scores[R][kCacheBlock];
  float shrink[R];
  bool any = false;
  score_rows<L, R>(q + row, keys, count, key_dim, call.scale, &scores[0][0]);
  for (int r = 0; r < R; ++r) {
    const int begin = call.first_key[row + r] > base ? call.first_key[row + r] - base : 0;
    const int end = call.last_key[row + r] - base < count ? call.last_key[row + r] - base : count;
    for (int k = count; k < kCacheBlock; ++k) scores[r][k] = 0;
    shrink[r] = 1;
    if (begin >= end) {
      for (int k = 0; k < kCacheBlock; ++k) scores[r][k] = 0;
      continue;
    }
    any = true;
    float maximum = maxima[row + r];
    for (int k = begin; k < end; ++k) maximum = scores[r][k] > maximum ? scores[r][k] : maximum;
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
  for (int base = call.first / kCacheBlock * kCacheBlock; base < call.last; base += kCacheBlock) {
    const int count = call.last - base < kCacheBlock ? call.last - base : kCacheBlock;
    const std::size_t b = static_cast<std::size_t>(base / kCacheBlock);
    const ChunkRows keys = chunk_rows<L>(call.keys[b], call.key_row, call.key_offset, call.key_dim, call.bf16,
                                         count, key_scratch);
    const ChunkRows values = chunk_rows<L>(call.values[b], call.value_row, call.value_offset, call.value_dim,
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
