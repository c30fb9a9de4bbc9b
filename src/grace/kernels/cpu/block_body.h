// A block of rows and panels, written once over vectors. Included by each instruction set's file after its
// target is set, within that file's unnamed namespace: no standard templates here, which would be compiled
// for that target and shared with everyone.
//
// Needs of a Lanes: Vector, kLanes, kRows (of a block with one panel) and
// kWidenedRows (where weights are widened first), kMostPanels; zero(), load(f32*),
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
  static constexpr int kRows = L::kWidenedRows;
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
  const std::size_t chunks = (call.steps + kChunk - 1) / kChunk;
  const std::size_t next_per_chunk = (call.next_bytes / 64 + chunks - 1) / chunks * 64;
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
      if (next != nullptr) {
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

template <class Product>
int panels_for(int rows) {
  int panels = Product::Lanes::kMostPanels;
  while (panels > 1 && rows > Product::kRows / panels) panels /= 2;
  return panels;
}

// Rows in blocks of nearly one size.
template <class Product>
void run_tile(const TileCall& call) {
  const int blocks = (call.rows + Product::kRows - 1) / Product::kRows;
  for (int b = 0; b < blocks; ++b) {
    const int first = call.rows * b / blocks;
    TileCall part = call;
    // Several panels at once are streams that the processor follows by itself; one is slower than memory, and
    // each block fetches its share of the next.
    part.next_bytes = 0;
    part.next = nullptr;
    if (call.next != nullptr && panels_for<Product>(call.rows) == 1) {
      const auto parts = static_cast<std::size_t>(blocks), i = static_cast<std::size_t>(b);
      part.next = call.next + call.next_bytes * i / parts;
      part.next_bytes = call.next_bytes * (i + 1) / parts - call.next_bytes * i / parts;
    }
    panels_of<Product, Product::Lanes::kMostPanels>(part, first, call.rows * (b + 1) / blocks - first, 0);
  }
}

template <class Product>
constexpr Tiles tiles_of(Operand operand) {
  return {operand, Product::kRows, &panels_for<Product>, 1, &run_tile<Product>};
}
