#include "grace/kernels/cpu/product.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "grace/base/bf16.h"
#include "grace/base/check.h"

namespace grace::kernels {
namespace {

std::size_t operand_width(Operand operand) {
  return operand == Operand::kF32 ? 4 : operand == Operand::kBf16 ? 2 : 1;
}

// Rows 4,096 bytes apart would meet in the same lines of the first cache.
std::size_t padded_stride(std::size_t bytes) {
  constexpr std::size_t kLine = 64, kPage = 4096;
  const std::size_t lines = (bytes + kLine - 1) / kLine * kLine;
  return lines % kPage == 0 ? lines + kLine : lines;
}

void to_bf16(const float* x, std::size_t in, std::byte* to) {
  auto* values = reinterpret_cast<std::uint16_t*>(to);
  for (std::size_t k = 0; k < in; ++k) values[k] = bf16_of_f32(x[k]);
}

void to_rounded(const float* x, std::size_t in, std::byte* to) {
  auto* values = reinterpret_cast<float*>(to);
  for (std::size_t k = 0; k < in; ++k) values[k] = f32_of_bf16(bf16_of_f32(x[k]));
}

// Symmetric, one scale for the row; 128 is added so that the bytes are unsigned. Without branches or calls,
// so that both loops are vectorised: magnitudes are compared as whole numbers, and adding 1.5 * 2^23 rounds
// to nearest even into the last byte.
float to_u8(const float* x, std::size_t in, std::byte* to) {
  std::int32_t bits = 0;
  for (std::size_t k = 0; k < in; ++k) bits = std::max(bits, std::bit_cast<std::int32_t>(x[k]) & 0x7fffffff);
  const auto largest = std::bit_cast<float>(bits);
  const float inverse = largest > 0 ? 127.0F / largest : 0.0F;
  constexpr float kRound = 12582912.0F;
  for (std::size_t k = 0; k < in; ++k)
    to[k] = static_cast<std::byte>(std::bit_cast<std::uint32_t>(x[k] * inverse + kRound) + 128);
  return largest / 127.0F;
}

TileSet const& set_for(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAmx:
      return amx_tiles();
    case Instructions::kAvx512Bf16:
      return avx512_bf16_tiles();
    case Instructions::kAvx512:
      return avx512_tiles();
    case Instructions::kAvx2:
      return avx2_tiles();
    case Instructions::kPortable:
      break;
  }
  return portable_tiles();
}

}  // namespace

const Tiles& tiles_for(Instructions instructions, Numbers numbers, Storage storage) {
  const TileSet& set = set_for(instructions);
  if (storage == Storage::kInt8) return set.u8_by_int8;
  if (storage == Storage::kF32) return set.f32_by_f32;
  return numbers == Numbers::kBf16 && set.bf16_by_bf16.run != nullptr ? set.bf16_by_bf16 : set.f32_by_bf16;
}

std::size_t steps_of(const PackedMatrix& weight) {
  const std::size_t depth = packed_depth(weight.in, weight.storage);
  return depth / (weight.storage == Storage::kF32 ? 1 : weight.storage == Storage::kBf16 ? 2 : 4);
}

std::size_t row_block(const PackedMatrix& weight) {
  constexpr std::size_t kBytes = std::size_t{400} << 10, kLeast = 24, kMost = 192, kMultiple = 12;
  const std::size_t row = packed_depth(weight.in, weight.storage) * operand_width(tiles_of(weight).operand);
  return std::clamp(kBytes / row / kMultiple * kMultiple, kLeast, kMost);
}

bool OperandMaker::reads_as_it_is(const PackedMatrix& weight) {
  return tiles_of(weight).operand == Operand::kF32 && weight.arithmetic.numbers == Numbers::kF32 &&
         packed_depth(weight.in, weight.storage) == static_cast<std::size_t>(weight.in);
}

void OperandMaker::reserve(const PackedMatrix& weight, std::size_t rows) {
  const Tiles& tiles = tiles_of(weight);
  stride_ = padded_stride(packed_depth(weight.in, weight.storage) * operand_width(tiles.operand));
  // Any of the rows may be a block's first, and its last tile read on to a whole multiple.
  const std::size_t whole = rows + static_cast<std::size_t>(tiles.row_multiple) - 1;
  if (bytes_.size() < whole * stride_) bytes_ = Bytes(whole * stride_);
  if (whole > rows) std::memset(bytes_.data() + rows * stride_, 0, (whole - rows) * stride_);
  if (tiles.operand == Operand::kU8 && scales_.size() < rows) scales_.resize(rows);
}

void OperandMaker::fill(const PackedMatrix& weight, std::size_t row, const float* x) {
  const auto in = static_cast<std::size_t>(weight.in);
  const Operand operand = tiles_of(weight).operand;
  const std::size_t width = operand_width(operand);
  std::byte* to = bytes_.data() + row * stride_;
  switch (operand) {
    case Operand::kF32:
      if (weight.arithmetic.numbers == Numbers::kBf16) {
        to_rounded(x, in, to);
      } else {
        std::memcpy(to, x, in * sizeof(float));
      }
      break;
    case Operand::kBf16:
      to_bf16(x, in, to);
      break;
    case Operand::kU8:
      scales_[row] = to_u8(x, in, to);
      break;
  }
  // Weights are zero there; x must only be finite.
  std::memset(to + in * width, 0, packed_depth(weight.in, weight.storage) * width - in * width);
}

OperandRows OperandMaker::make(const PackedMatrix& weight, std::span<const float* const> rows) {
  reserve(weight, rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) fill(weight, r, rows[r]);
  return this->rows();
}

OperandRows OperandMaker::make(const PackedMatrix& weight, std::span<const float> x) {
  const auto in = static_cast<std::size_t>(weight.in);
  if (reads_as_it_is(weight)) return {std::as_bytes(x).data(), in * sizeof(float), nullptr};
  reserve(weight, x.size() / in);
  for (std::size_t r = 0; r < x.size() / in; ++r) fill(weight, r, x.data() + r * in);
  return rows();
}

void scale_sums(const PackedMatrix& weight, std::size_t panel, const float* row_scales, int rows,
                float* sums) {
  const std::int32_t* offsets = weight.offsets.data() + panel * kPanel;
  const float* scales = weight.scales.data() + panel * kPanel;
  for (int r = 0; r < rows; ++r, sums += kPanel) {
    std::int32_t whole[kPanel];
    std::memcpy(whole, sums, sizeof whole);
    for (int c = 0; c < kPanel; ++c)
      sums[c] = static_cast<float>(whole[c] - offsets[c]) * (row_scales[r] * scales[c]);
  }
}

}  // namespace grace::kernels
