#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "grace/base/bf16.h"
#include "grace/base/check.h"
#include "grace/base/f16.h"
#include "grace/kernels/packed.h"

namespace grace::kernels {
namespace {

constexpr std::size_t kLine = 64;
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

// One output column of a packed matrix, out of a row of f32 [depth].
void write_column(PackedMatrix& packed, std::size_t column, std::span<const float> row) {
  const std::size_t group = group_of(packed.storage);
  const std::size_t depth = row.size();
  const std::size_t width = bytes_of(packed.storage);
  std::byte* panel = packed.panels.data() + column / kPanel * depth * kPanel * width;
  std::byte* to = panel + column % kPanel * group * width;
  const std::size_t step = kPanel * group * width;
  switch (packed.storage) {
    case Storage::kF32:
      for (std::size_t k = 0; k < depth; ++k, to += step) std::memcpy(to, &row[k], sizeof(float));
      return;
    case Storage::kBf16:
      for (std::size_t k = 0; k < depth; k += 2, to += step) {
        const std::uint32_t pair = bf16_of_f32(row[k]) | std::uint32_t{bf16_of_f32(row[k + 1])} << 16;
        std::memcpy(to, &pair, sizeof pair);
      }
      return;
    case Storage::kInt8:
      break;
  }
  float largest = 0;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  const float scale = largest / 127.0F;
  const float inverse = largest > 0 ? 127.0F / largest : 0.0F;
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < depth; k += 4, to += step) {
    for (std::size_t i = 0; i < 4; ++i) {
      const auto value = static_cast<std::int8_t>(std::lrint(row[k + i] * inverse));
      sum += value;
      std::memcpy(to + i, &value, 1);
    }
  }
  packed.scales[column] = scale;
  packed.offsets[column] = 128 * sum;
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
    packed.scales.assign(panels * kPanel, 0);
    packed.offsets.assign(panels * kPanel, 0);
  }
  const std::size_t depth = packed_depth(in, storage);
  const auto one = [&](std::size_t panel, int) {
    std::vector<float> row(depth);
    for (std::size_t c = panel * kPanel; c < (panel + 1) * kPanel; ++c) {
      const Column column = column_at(static_cast<int>(c));
      read_row(*column.matrix, column.row, row);
      write_column(packed, c, row);
    }
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
  void* memory = std::aligned_alloc(kLine, (size + kLine - 1) / kLine * kLine);
  if (memory == nullptr) throw std::bad_alloc();
  owned_.reset(static_cast<std::byte*>(memory));
  data_ = owned_.get();
}

Bytes Bytes::view(std::span<const std::byte> bytes) {
  Bytes view;
  view.data_ = const_cast<std::byte*>(bytes.data());
  view.size_ = bytes.size();
  return view;
}

void Bytes::Free::operator()(std::byte* data) const { std::free(data); }

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

PackedExpert pack_parts(const MatrixView& gate, const MatrixView& up, const MatrixView& down,
                        const Arithmetic& arithmetic, ThreadPool* pool) {
  GRACE_CHECK(gate.rows > 0 && gate.cols > 0 && gate.rows == up.rows && gate.cols == up.cols &&
                  down.rows == gate.cols && down.cols == gate.rows,
              "gate and up are not [F, H], or down is not [H, F]");
  // One storage for all: the widest that any of them needs.
  Storage storage = storage_of(gate.element, arithmetic.numbers);
  for (const MatrixView* m : {&up, &down})
    if (storage_of(m->element, arithmetic.numbers) == Storage::kF32) storage = Storage::kF32;
  const int halves = (gate.rows + kHalfPanel - 1) / kHalfPanel;
  const auto column_at = [&](int column) {
    const int row = column / kPanel * kHalfPanel + column % kHalfPanel;
    return Column{column % kPanel < kHalfPanel ? &gate : &up, row};
  };
  PackedExpert packed;
  packed.ffn = gate.rows;
  packed.gate_up = pack_columns(halves * kPanel, gate.cols, storage, arithmetic, column_at, pool);
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
  const int halves = (ffn + kHalfPanel - 1) / kHalfPanel;
  return packed_bytes(halves * kPanel, hidden, storage) + packed_bytes(hidden, ffn, storage);
}

}  // namespace grace::kernels
