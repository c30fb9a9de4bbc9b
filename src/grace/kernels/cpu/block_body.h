// A block of rows and panels, written once over vectors. Included by each instruction set's file after its
// target is set, within that file's unnamed namespace: no standard templates here, which would be compiled
// for that target and shared with everyone.
//
// Needs of a Lanes: Vector, kLanes, kRows (of a block with one panel), kMostPanels; zero(), load(f32*),
// store(f32*, Vector), broadcast(f32), multiply_add(a, b, c); widen_even / widen_odd (of kLanes pairs of
// bf16).

constexpr std::size_t kChunk = 8;  // steps between fetches

// A Product says how one step of one group of columns adds to its sums.
template <class L>
struct F32ByF32 {
  using Lanes = L;
  using Sum = typename L::Vector;
  static constexpr std::size_t kOperandBytes = 4;
  static constexpr int kRows = L::kRows;
  static Sum zero() { return L::zero(); }
  static void store(float* to, Sum sum) { L::store(to, sum); }
  template <int R, int V>
  __attribute__((always_inline)) static inline void step(Sum (&sums)[R][V], const std::byte* x,
                                                         std::size_t stride, const std::byte* (&w)[V]) {
    Sum weight[V];
    for (int v = 0; v < V; ++v) weight[v] = L::load(reinterpret_cast<const float*>(w[v]));
    for (int r = 0; r < R; ++r) {
      const Sum value =
          L::broadcast(reinterpret_cast<const float*>(x + static_cast<std::size_t>(r) * stride));
      for (int v = 0; v < V; ++v) sums[r][v] = L::multiply_add(value, weight[v], sums[r][v]);
    }
  }
};

template <class L>
struct F32ByBf16 {
  using Lanes = L;
  using Sum = typename L::Vector;
  static constexpr std::size_t kOperandBytes = 8;
  static constexpr int kRows = L::kRows;
  static Sum zero() { return L::zero(); }
  static void store(float* to, Sum sum) { L::store(to, sum); }
  template <int R, int V>
  __attribute__((always_inline)) static inline void step(Sum (&sums)[R][V], const std::byte* x,
                                                         std::size_t stride, const std::byte* (&w)[V]) {
    Sum weight[V];
    for (int v = 0; v < V; ++v) weight[v] = L::widen_even(w[v]);
    for (int r = 0; r < R; ++r) {
      const Sum value =
          L::broadcast(reinterpret_cast<const float*>(x + static_cast<std::size_t>(r) * stride));
      for (int v = 0; v < V; ++v) sums[r][v] = L::multiply_add(value, weight[v], sums[r][v]);
    }
    for (int v = 0; v < V; ++v) weight[v] = L::widen_odd(w[v]);
    for (int r = 0; r < R; ++r) {
      const Sum value =
          L::broadcast(reinterpret_cast<const float*>(x + static_cast<std::size_t>(r) * stride) + 1);
      for (int v = 0; v < V; ++v) sums[r][v] = L::multiply_add(value, weight[v], sums[r][v]);
    }
  }
};

// R rows by P panels. A group of columns is two vectors of each panel; a panel is one group or several.
template <class Product, int R, int P>
void block(const TileCall& call, const std::byte* x, int first_row, const std::byte* panels, float* out) {
  using Lanes = typename Product::Lanes;
  constexpr int kVectors = 2 * P;
  constexpr int kColumns = 2 * Lanes::kLanes;
  constexpr std::size_t kVectorBytes = kStepBytes / kPanel * Lanes::kLanes;
  const std::size_t panel_bytes = call.steps * kStepBytes;
  // The first group fetches what is next; few rows fetch their own panels ahead instead.
  constexpr std::size_t kAhead = 2 * kChunk * kStepBytes;
  const std::size_t chunks = (call.steps + kChunk - 1) / kChunk;
  const std::size_t next_per_chunk = P == 1 ? (call.next_bytes / 64 + chunks - 1) / chunks * 64 : 0;
  for (int first = 0; first < kPanel; first += kColumns) {
    typename Product::Sum sums[R][kVectors];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Product::zero();
    const std::byte* w[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      w[v] = panels + static_cast<std::size_t>(v / 2) * panel_bytes +
             static_cast<std::size_t>(first / Lanes::kLanes + v % 2) * kVectorBytes;
    }
    const std::byte* row = x;
    const std::byte* next = first == 0 ? call.next : nullptr;
    for (std::size_t s = 0; s < call.steps; s += kChunk) {
      if (P > 1) {
        for (int v = 0; v < kVectors; v += 2)
          for (std::size_t i = 0; i < kChunk; ++i) {
            __builtin_prefetch(w[v] + kAhead + i * kStepBytes);
            __builtin_prefetch(w[v] + kAhead + i * kStepBytes + 64);
          }
      } else if (next != nullptr) {
        for (std::size_t i = 0; i < next_per_chunk; i += 64) __builtin_prefetch(next + i, 0, 2);
        next += next_per_chunk;
      }
      const std::size_t count = call.steps - s < kChunk ? call.steps - s : kChunk;
      for (std::size_t i = 0; i < count; ++i) {
        Product::template step<R, kVectors>(sums, row, call.stride, w);
        row += Product::kOperandBytes;
        for (int v = 0; v < kVectors; ++v) w[v] += kStepBytes;
      }
    }
    for (int p = 0; p < P; ++p)
      for (int r = 0; r < R; ++r) {
        float* to = out + (static_cast<std::size_t>(p * call.rows + first_row + r)) * kPanel + first;
        Product::store(to, sums[r][2 * p]);
        Product::store(to + Lanes::kLanes, sums[r][2 * p + 1]);
      }
  }
}

// The block of exactly `rows` rows, P panels.
template <class Product, int P, int R>
void block_of_rows(const TileCall& call, const std::byte* x, int first_row, int rows, const std::byte* panels,
                   float* out) {
  if constexpr (R > 0) {
    if (rows == R) return block<Product, R, P>(call, x, first_row, panels, out);
    block_of_rows<Product, P, R - 1>(call, x, first_row, rows, panels, out);
  }
}

// P panels at a time while there are so many, then half of that.
template <class Product, int P>
void panels_of(const TileCall& call, int first_row, int rows, int panel) {
  constexpr int kRows = Product::kRows / P;
  const std::byte* x = call.x + static_cast<std::size_t>(first_row) * call.stride;
  for (; call.num_panels - panel >= P && rows <= kRows; panel += P) {
    block_of_rows<Product, P, kRows>(
        call, x, first_row, rows, call.panels + static_cast<std::size_t>(panel) * call.steps * kStepBytes,
        call.out + static_cast<std::size_t>(panel) * static_cast<std::size_t>(call.rows) * kPanel);
  }
  if constexpr (P > 1) panels_of<Product, P / 2>(call, first_row, rows, panel);
}

// Rows in blocks of nearly one size.
template <class Product>
void run_tile(const TileCall& call) {
  const int blocks = (call.rows + Product::kRows - 1) / Product::kRows;
  for (int b = 0; b < blocks; ++b) {
    const int first = call.rows * b / blocks;
    TileCall part = call;
    if (call.next != nullptr) {  // each block fetches its share
      const std::size_t begin =
          call.next_bytes * static_cast<std::size_t>(b) / static_cast<std::size_t>(blocks);
      const std::size_t end =
          call.next_bytes * static_cast<std::size_t>(b + 1) / static_cast<std::size_t>(blocks);
      part.next = call.next + begin;
      part.next_bytes = end - begin;
    }
    panels_of<Product, Product::Lanes::kMostPanels>(part, first, call.rows * (b + 1) / blocks - first, 0);
  }
}

template <class Product>
int panels_for(int rows) {
  int panels = Product::Lanes::kMostPanels;
  while (panels > 1 && rows > Product::kRows / panels) panels /= 2;
  return panels;
}

template <class Product>
constexpr Tiles tiles_of(Operand operand) {
  return {operand, Product::kRows, &panels_for<Product>, 1, &run_tile<Product>};
}
