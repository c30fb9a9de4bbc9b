#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "grace/base/bf16.h"
#include "grace/base/check.h"
#include "grace/base/f16.h"
#include "grace/kernels/cpu/tile.h"
#include "grace/kernels/packed.h"

namespace grace::kernels {
namespace {

constexpr std::size_t kLine = 64, kHugePage = std::size_t{2} << 20;
constexpr int kHalfPanel = 16;

std::size_t panels_of(int out) { return (static_cast<std::size_t>(out) + kPanel - 1) / kPanel; }
// Values of the inner dimension that lie together, and the multiple to which it is padded.
std::size_t group_of(Storage storage) {
  return storage == Storage::kF32 ? 1 : storage == Storage::kBf16 ? 2 : 4;
}
std::size_t padding_of(Storage storage) {
  return storage == Storage::kF32 ? 1 : storage == Storage::kBf16 ? 32 : 64;
}
std::size_t bytes_of(Storage storage) {
  return storage == Storage::kF32 ? 4 : storage == Storage::kBf16 ? 2 : 1;
}

float value_at(const MatrixView& m, std::int64_t index) {
  const std::byte* at = m.data + index * static_cast<std::int64_t>(grace::bytes_of(m.element));
  if (m.element == Element::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return m.element == Element::kBf16 ? f32_of_bf16(bits) : f32_of_f16(bits);
}

// Row `row` of the matrix as f32; zeros where there is no such row.
void read_row(const MatrixView& m, int row, std::span<float> to) {
  std::ranges::fill(to, 0.0F);
  if (row >= m.rows) return;
  const std::int64_t first = m.transposed ? row : row * m.stride;
  const std::int64_t step = m.transposed ? m.stride : 1;
  if (m.element == Element::kF32 && step == 1) {
    std::memcpy(to.data(), m.data + first * 4, static_cast<std::size_t>(m.cols) * 4);
    return;
  }
  if (m.element == Element::kBf16 && step == 1) {
    const std::byte* from = m.data + first * 2;
    for (int c = 0; c < m.cols; ++c) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from + 2 * c, sizeof bits);
      to[static_cast<std::size_t>(c)] = f32_of_bf16(bits);
    }
    return;
  }
  for (int c = 0; c < m.cols; ++c) to[static_cast<std::size_t>(c)] = value_at(m, first + c * step);
}

// A panel is made of words of four bytes: one f32, two bf16, four int8. words: a column's, [units].
void quantise(std::span<const float> row, std::span<std::uint32_t> words, float& scale,
              std::int32_t& offset) {
  std::int32_t bits = 0;
  for (const float value : row) bits = std::max(bits, std::bit_cast<std::int32_t>(value) & 0x7fffffff);
  const auto largest = std::bit_cast<float>(bits);
  const float inverse = largest > 0 ? 127.0F / largest : 0.0F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to nearest even into the last byte
  auto* bytes = reinterpret_cast<std::int8_t*>(words.data());
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < row.size(); ++k) {
    bytes[k] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(row[k] * inverse + kRound));
    sum += bytes[k];
  }
  scale = largest / 127.0F;
  offset = 128 * sum;
}

// The source of one column of a panel, word after word; those from `count` on are zero.
struct ColumnWords {
  const std::byte* data = nullptr;
  std::size_t count = 0;
};

// Transposes the words of a panel's columns: [kPanel][units] to [units][kPanel], a block at a time so that
// what is written stays in the first cache.
void transpose(std::span<const ColumnWords> columns, std::size_t units, std::byte* panel) {
  constexpr std::size_t kBlock = 16;
  for (std::size_t first = 0; first < units; first += kBlock) {
    const std::size_t last = std::min(first + kBlock, units);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const ColumnWords& column = columns[c];
      std::byte* to = panel + (first * kPanel + c) * sizeof(std::uint32_t);
      const std::byte* from = column.data + first * sizeof(std::uint32_t);
      std::size_t u = first;
      for (; u < std::min(last, column.count); ++u, to += kStepBytes, from += sizeof(std::uint32_t))
        std::memcpy(to, from, sizeof(std::uint32_t));
      for (; u < last; ++u, to += kStepBytes) std::memset(to, 0, sizeof(std::uint32_t));
    }
  }
}

// Which matrix and which of its rows a column is; gate and up take turns by half panels.
struct Column {
  const MatrixView* matrix;
  int row;
};

template <typename ColumnAt>
PackedMatrix pack_columns(int out, int in, Storage storage, const Arithmetic& arithmetic, ColumnAt column_at,
                          ThreadPool* pool) {
  PackedMatrix packed;
  packed.out = out;
  packed.in = in;
  packed.arithmetic = arithmetic;
  packed.storage = storage;
  packed.panels = Bytes(packed_bytes(out, in, storage));
  const std::size_t panels = panels_of(out);
  if (storage == Storage::kInt8) {
    packed.scales.assign(packed_columns(out), 0);
    packed.offsets.assign(packed_columns(out), 0);
  }
  const std::size_t depth = packed_depth(in, storage), units = depth / group_of(storage);
  const auto one = [&](std::size_t panel, int) {
    std::vector<float> row;
    std::vector<std::uint32_t> words;
    std::array<ColumnWords, kPanel> columns;
    for (std::size_t c = 0; c < kPanel; ++c) {
      const Column column = column_at(static_cast<int>(panel * kPanel + c));
      const MatrixView& matrix = *column.matrix;
      if (column.row >= matrix.rows) continue;
      const std::size_t width = grace::bytes_of(matrix.element);
      const bool as_it_is = matrix.element == (storage == Storage::kF32 ? Element::kF32 : Element::kBf16) &&
                            storage != Storage::kInt8 && !matrix.transposed &&
                            static_cast<std::size_t>(in) % group_of(storage) == 0;
      if (as_it_is) {
        columns[c] = {matrix.data + column.row * matrix.stride * static_cast<std::int64_t>(width),
                      static_cast<std::size_t>(in) / group_of(storage)};
        continue;
      }
      if (row.empty()) row.resize(depth);
      if (words.empty()) words.resize(kPanel * units);
      read_row(matrix, column.row, row);
      const auto own = std::span(words).subspan(c * units, units);
      if (storage == Storage::kF32) std::memcpy(own.data(), row.data(), depth * sizeof(float));
      for (std::size_t u = 0; u < units && storage == Storage::kBf16; ++u)
        own[u] = bf16_of_f32(row[2 * u]) | std::uint32_t{bf16_of_f32(row[2 * u + 1])} << 16;
      if (storage == Storage::kInt8)
        quantise(row, own, packed.scales[panel * kPanel + c], packed.offsets[panel * kPanel + c]);
      columns[c] = {std::as_bytes(own).data(), units};
    }
    transpose(columns, units, packed.panels.data() + panel * units * kStepBytes);
  };
  if (pool != nullptr) {
    pool->for_each(panels, one);
  } else {
    for (std::size_t panel = 0; panel < panels; ++panel) one(panel, 0);
  }
  return packed;
}

}  // namespace

Bytes::Bytes(std::size_t size) : size_(size) {
  if (size == 0) return;
  const std::size_t boundary = size >= kHugePage ? kHugePage : kLine;
  void* memory = std::aligned_alloc(boundary, (size + boundary - 1) / boundary * boundary);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Fewer and cheaper faults when it is first written; the last, partial one stays small pages.
  if (size >= kHugePage) ::madvise(memory, size / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  owned_.reset(static_cast<std::byte*>(memory));
  data_ = owned_.get();
}

Bytes::Bytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
    : owner_(std::move(owner)), data_(bytes.data()), size_(bytes.size()) {
  GRACE_CHECK(reinterpret_cast<std::uintptr_t>(data_) % kLine == 0, "bytes that begin inside a cache line");
}

void Bytes::Free::operator()(std::byte* data) const { std::free(data); }

std::size_t packed_columns(int out) { return panels_of(out) * kPanel; }

std::size_t packed_depth(int in, Storage storage) {
  const std::size_t padding = padding_of(storage);
  return (static_cast<std::size_t>(in) + padding - 1) / padding * padding;
}

Storage storage_of(Element element, Numbers numbers) {
  if (numbers == Numbers::kInt8) return Storage::kInt8;
  return numbers == Numbers::kBf16 || element == Element::kBf16 ? Storage::kBf16 : Storage::kF32;
}

std::size_t packed_bytes(int out, int in, Storage storage) {
  return panels_of(out) * kPanel * packed_depth(in, storage) * bytes_of(storage);
}

PackedMatrix pack(const MatrixView& weight, const Arithmetic& arithmetic, ThreadPool& pool) {
  GRACE_CHECK(weight.rows > 0 && weight.cols > 0 && !weight.empty(), "an empty weight");
  return pack_columns(
      weight.rows, weight.cols, storage_of(weight.element, arithmetic.numbers), arithmetic,
      [&](int column) {
        return Column{&weight, column};
      },
      &pool);
}

PackedMatrix pack(std::span<const float> weight, int out, int in, const Arithmetic& arithmetic) {
  GRACE_CHECK(
      out > 0 && in > 0 && weight.size() == static_cast<std::size_t>(out) * static_cast<std::size_t>(in),
      "weight is not [out, in]");
  const MatrixView view{out, in, Element::kF32, std::as_bytes(weight).data(), in, false};
  return pack_columns(
      out, in, storage_of(view.element, arithmetic.numbers), arithmetic,
      [&](int column) {
        return Column{&view, column};
      },
      nullptr);
}

namespace {

int columns_of_gate_up(int ffn) { return (ffn + kHalfPanel - 1) / kHalfPanel * kPanel; }

}  // namespace

ExpertShape expert_shape(const MatrixView& gate, const MatrixView& up, const MatrixView& down,
                         const Arithmetic& arithmetic) {
  Storage storage = storage_of(gate.element, arithmetic.numbers);
  for (const MatrixView* m : {&up, &down})
    if (storage_of(m->element, arithmetic.numbers) == Storage::kF32) storage = Storage::kF32;
  return {storage, columns_of_gate_up(gate.rows)};
}

namespace {

PackedExpert pack_parts(const MatrixView& gate, const MatrixView& up, const MatrixView& down,
                        const Arithmetic& arithmetic, ThreadPool* pool) {
  GRACE_CHECK(gate.rows > 0 && gate.cols > 0 && gate.rows == up.rows && gate.cols == up.cols &&
                  down.rows == gate.cols && down.cols == gate.rows,
              "gate and up are not [F, H], or down is not [H, F]");
  const auto [storage, gate_up_columns] = expert_shape(gate, up, down, arithmetic);
  const auto column_at = [&](int column) {
    const int row = column / kPanel * kHalfPanel + column % kHalfPanel;
    return Column{column % kPanel < kHalfPanel ? &gate : &up, row};
  };
  PackedExpert packed;
  packed.ffn = gate.rows;
  packed.gate_up = pack_columns(gate_up_columns, gate.cols, storage, arithmetic, column_at, pool);
  packed.down = pack_columns(
      down.rows, down.cols, storage, arithmetic,
      [&](int column) {
        return Column{&down, column};
      },
      pool);
  return packed;
}

}  // namespace

PackedExpert pack_expert(const MatrixView& gate, const MatrixView& up, const MatrixView& down,
                         const Arithmetic& arithmetic, ThreadPool& pool) {
  return pack_parts(gate, up, down, arithmetic, &pool);
}

PackedExpert pack_expert(std::span<const float> gate, std::span<const float> up, std::span<const float> down,
                         int hidden, int ffn, const Arithmetic& arithmetic) {
  const auto view = [](std::span<const float> values, int rows, int cols) {
    GRACE_CHECK(values.size() == static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols),
                "gate and up are not [F, H], or down is not [H, F]");
    return MatrixView{rows, cols, Element::kF32, std::as_bytes(values).data(), cols, false};
  };
  return pack_parts(view(gate, ffn, hidden), view(up, ffn, hidden), view(down, hidden, ffn), arithmetic,
                    nullptr);
}

std::size_t packed_expert_bytes(int hidden, int ffn, Storage storage) {
  return packed_bytes(columns_of_gate_up(ffn), hidden, storage) + packed_bytes(hidden, ffn, storage);
}

}  // namespace grace::kernels
