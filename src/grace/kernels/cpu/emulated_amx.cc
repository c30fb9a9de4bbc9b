#include "grace/base/bf16.h"
#include "grace/kernels/cpu/amx_body.h"

namespace grace::kernels {
namespace {

// What the instructions do to tiles (Intel SDM, TDPBF16PS and TDPBUSD), one value after the other.
struct PlainTiles {
  struct Tile {
    std::byte bytes[kTileRows][kTileBytes];
  };
  static Tile& tile(int t) {
    static thread_local Tile tiles[8];
    return tiles[t];
  }
  static void configure() {}
  template <int t>
  static void zero() {
    std::memset(&tile(t), 0, sizeof(Tile));
  }
  template <int t>
  static void load(const std::byte* from, std::size_t stride) {
    for (int r = 0; r < kTileRows; ++r)
      std::memcpy(tile(t).bytes[r], from + static_cast<std::size_t>(r) * stride, kTileBytes);
  }
  template <int t>
  static void store(float* to, std::size_t stride) {
    for (int r = 0; r < kTileRows; ++r)
      std::memcpy(reinterpret_cast<std::byte*>(to) + static_cast<std::size_t>(r) * stride, tile(t).bytes[r],
                  kTileBytes);
  }
  template <typename Value>
  static Value get(int t, int row, std::size_t index) {
    Value value;
    std::memcpy(&value, tile(t).bytes[row] + index * sizeof(Value), sizeof value);
    return value;
  }
  template <typename Value>
  static void set(int t, int row, std::size_t index, Value value) {
    std::memcpy(tile(t).bytes[row] + index * sizeof(Value), &value, sizeof value);
  }
};

constexpr std::size_t kColumns = 16;

// Even and odd products have a sum each before they are added to the tile's.
struct PlainBf16 {
  template <int c, int a, int b>
  static void add() {
    using T = PlainTiles;
    for (int m = 0; m < kTileRows; ++m) {
      for (std::size_t n = 0; n < kColumns; ++n) {
        float even = 0, odd = 0;
        for (int k = 0; k < kTileRows; ++k) {
          const auto pair = 2 * static_cast<std::size_t>(k);
          even += f32_of_bf16(T::get<std::uint16_t>(a, m, pair)) *
                  f32_of_bf16(T::get<std::uint16_t>(b, k, 2 * n));
          odd += f32_of_bf16(T::get<std::uint16_t>(a, m, pair + 1)) *
                 f32_of_bf16(T::get<std::uint16_t>(b, k, 2 * n + 1));
        }
        T::set<float>(c, m, n, T::get<float>(c, m, n) + (even + odd));
      }
    }
  }
};
struct PlainU8 {
  template <int c, int a, int b>
  static void add() {
    using T = PlainTiles;
    for (int m = 0; m < kTileRows; ++m) {
      for (std::size_t n = 0; n < kColumns; ++n) {
        auto sum = T::get<std::int32_t>(c, m, n);
        for (int k = 0; k < kTileRows; ++k)
          for (std::size_t i = 0; i < 4; ++i)
            sum += std::int32_t{T::get<std::uint8_t>(a, m, 4 * static_cast<std::size_t>(k) + i)} *
                   T::get<std::int8_t>(b, k, 4 * n + i);
        T::set<std::int32_t>(c, m, n, sum);
      }
    }
  }
};

}  // namespace

const TileSet& emulated_amx_tiles() {
  static const TileSet kSet{portable_tiles().f32_by_f32, portable_tiles().f32_by_bf16,
                            amx_tiles_of<PlainTiles, PlainBf16>(Operand::kBf16),
                            amx_tiles_of<PlainTiles, PlainU8>(Operand::kU8)};
  return kSet;
}

}  // namespace grace::kernels
