#include "grace/kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "grace/kernels/cpu/product.h"
#include "grace/kernels/cpu/vector_functions.h"
#include "grace/kernels/test_values.h"

namespace grace::kernels {
namespace {

std::vector<Arithmetic> all_arithmetic() {
  std::vector<Arithmetic> all;
  for (const Instructions instructions : usable_instructions())
    for (const Numbers numbers : {Numbers::kF32, Numbers::kBf16, Numbers::kInt8})
      all.push_back({instructions, numbers});
  return all;
}
std::string words_of(const Arithmetic& a) {
  return std::string(name_of(a.instructions)) + " " + std::string(name_of(a.numbers));
}

// Rows of `in` values to whole numbers of one scale each, and back: what int8 makes of them.
std::vector<float> quantised(std::span<const float> values, std::size_t in) {
  std::vector<float> out;
  for (std::size_t first = 0; first < values.size(); first += in) {
    float largest = 0;
    for (const float v : values.subspan(first, in)) largest = std::max(largest, std::abs(v));
    for (const float v : values.subspan(first, in))
      out.push_back(largest == 0 ? 0 : std::nearbyint(v * (127 / largest)) * (largest / 127));
  }
  return out;
}
std::vector<float> as_multiplied(std::span<const float> values, std::size_t in, Numbers numbers) {
  if (numbers == Numbers::kBf16) return rounded(values);
  if (numbers == Numbers::kInt8) return quantised(values, in);
  return {values.begin(), values.end()};
}

std::vector<std::uint16_t> halves_of(std::span<const float> values) {
  std::vector<std::uint16_t> out;
  for (const float v : values) out.push_back(bf16_of_f32(v));
  return out;
}

struct Shape {
  int rows, in, out;
};
class AMatmul : public testing::TestWithParam<Shape> {};

TEST_P(AMatmul, EqualsTheReferenceInEveryArithmetic) {
  const auto [rows, in, out] = GetParam();
  Rng rng(7);
  const auto depth = static_cast<std::size_t>(in);
  const auto x = random_values(rng, static_cast<std::size_t>(rows) * depth);
  const auto weight = random_values(rng, static_cast<std::size_t>(out) * depth);
  ThreadPool pool(2);
  for (const Arithmetic& arithmetic : all_arithmetic()) {
    SCOPED_TRACE(words_of(arithmetic));
    std::vector<float> expected(static_cast<std::size_t>(rows * out), kPoison);
    reference::matmul(as_multiplied(x, depth, arithmetic.numbers),
                      as_multiplied(weight, depth, arithmetic.numbers), out, in, expected);
    const PackedMatrix packed = pack(weight, out, in, arithmetic);
    EXPECT_EQ(packed.panels.size(), packed_bytes(out, in, packed.storage));
    std::vector<float> y(expected.size(), kPoison);
    matmul_rows(x, packed, y);
    // n additions of terms below 1: each partial sum is below n and is rounded once or twice.
    expect_close(y, expected, 2 * kUlp * in * in + 1e-6);
    std::vector<float> shared(expected.size(), kPoison);
    matmul(x, packed, shared, pool);
    EXPECT_TRUE(same_bits(shared, y));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, AMatmul,
                         testing::Values(Shape{1, 1, 1}, Shape{0, 5, 7}, Shape{3, 17, 31}, Shape{8, 64, 32},
                                         Shape{13, 33, 65}, Shape{37, 100, 96}, Shape{2, 257, 129},
                                         Shape{300, 40, 70}, Shape{1, 128, 300}));

TEST(AMatmul, GivesARowTheSameBitsWhateverItsCompanyAndThreads) {
  constexpr int kIn = 71, kOut = 161;
  constexpr std::size_t kRows = 43;
  for (const Arithmetic& arithmetic : all_arithmetic()) {
    SCOPED_TRACE(words_of(arithmetic));
    Rng rng(11);
    const PackedMatrix weight = pack(random_values(rng, kOut * kIn), kOut, kIn, arithmetic);
    const auto x = random_values(rng, kRows * kIn);
    std::vector<float> alone(kRows * kOut, kPoison);
    for (std::size_t r = 0; r < kRows; ++r)
      matmul_rows(std::span(x).subspan(r * kIn, kIn), weight, std::span(alone).subspan(r * kOut, kOut));
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      for (std::size_t rows = 1; rows <= kRows; ++rows) {
        for (const std::size_t first : {std::size_t{0}, kRows - rows}) {
          std::vector<float> y(rows * kOut, kPoison);
          matmul(std::span(x).subspan(first * kIn, rows * kIn), weight, y, pool);
          ASSERT_TRUE(same_bits(y, std::span(alone).subspan(first * kOut, rows * kOut)))
              << rows << " rows from " << first << ", " << threads << " threads";
        }
      }
    }
  }
}

TEST(AMatmul, OfABf16TensorIsThatOfItsValuesToTheBit) {
  constexpr int kIn = 91, kOut = 70;
  Rng rng(17);
  const auto weight = rounded(random_values(rng, kOut * kIn));
  const auto halves = halves_of(weight);
  const MatrixView view{kOut, kIn, Element::kBf16, std::as_bytes(std::span(halves)).data(), kIn, false};
  const auto x = random_values(rng, 11 * kIn);
  ThreadPool pool(2);
  for (const Arithmetic& arithmetic : all_arithmetic()) {
    const PackedMatrix narrow = pack(view, arithmetic, pool), wide = pack(weight, kOut, kIn, arithmetic);
    std::vector<float> a(11 * kOut, kPoison), b(11 * kOut, kPoison);
    matmul_rows(x, narrow, a);
    matmul_rows(x, wide, b);
    EXPECT_TRUE(same_bits(a, b)) << words_of(arithmetic);
    EXPECT_EQ(narrow.storage, arithmetic.numbers == Numbers::kInt8 ? Storage::kInt8 : Storage::kBf16);
  }
}

TEST(APack, ReadsStridesAndTransposes) {
  constexpr int kIn = 10, kOut = 37, kStride = 50;
  Rng rng(3);
  const auto weight = random_values(rng, kOut * kIn);
  std::vector<float> apart(kOut * kStride, kPoison), turned(kIn * kStride, kPoison);
  for (std::size_t o = 0; o < kOut; ++o)
    for (std::size_t i = 0; i < kIn; ++i)
      apart[o * kStride + i] = turned[i * kStride + o] = weight[o * kIn + i];
  ThreadPool pool(1);
  const PackedMatrix plain = pack(weight, kOut, kIn);
  for (const MatrixView& view :
       {MatrixView{kOut, kIn, Element::kF32, std::as_bytes(std::span(apart)).data(), kStride, false},
        MatrixView{kOut, kIn, Element::kF32, std::as_bytes(std::span(turned)).data(), kStride, true}}) {
    const PackedMatrix packed = pack(view, {}, pool);
    ASSERT_EQ(packed.panels.size(), plain.panels.size());
    EXPECT_EQ(std::memcmp(packed.panels.data(), plain.panels.data(), plain.panels.size()), 0);
  }
}

bool is_usable(Instructions instructions) {
  const auto usable = usable_instructions();
  return std::find(usable.begin(), usable.end(), instructions) != usable.end();
}

TEST(F32, HasTheSameBitsInAvx2AndAvx512) {
  if (!is_usable(Instructions::kAvx512)) GTEST_SKIP() << "this processor has not both";
  Rng rng(17);
  const auto weight = random_values(rng, 70 * 300);
  const auto x = random_values(rng, 11 * 300);
  std::vector<float> a(11 * 70, kPoison), b(11 * 70, kPoison);
  matmul_rows(x, pack(weight, 70, 300, {Instructions::kAvx2, Numbers::kF32}), a);
  matmul_rows(x, pack(weight, 70, 300, {Instructions::kAvx512, Numbers::kF32}), b);
  EXPECT_TRUE(same_bits(a, b));
}

TEST(Int8, HasTheSameBitsInEveryInstructionSet) {
  Rng rng(18);
  const auto weight = random_values(rng, 70 * 300);
  const auto x = random_values(rng, 11 * 300);
  std::vector<float> first(11 * 70, kPoison);
  matmul_rows(x, pack(weight, 70, 300, {Instructions::kPortable, Numbers::kInt8}), first);
  for (const Instructions instructions : usable_instructions()) {
    std::vector<float> y(11 * 70, kPoison);
    matmul_rows(x, pack(weight, 70, 300, {instructions, Numbers::kInt8}), y);
    EXPECT_TRUE(same_bits(first, y)) << name_of(instructions);
  }
}

// The code for tiles, on loops that do what the instructions do: it is tested also where there are none.
TEST(AmxCode, EqualsTheReferenceOnEmulatedTiles) {
  constexpr int kIn = 200, kOut = 70;
  for (const Numbers numbers : {Numbers::kBf16, Numbers::kInt8}) {
    for (const int rows : {1, 15, 16, 17, 32, 45}) {
      Rng rng(23);
      const auto x = random_values(rng, static_cast<std::size_t>(rows * kIn));
      const auto weight = random_values(rng, kOut * kIn);
      PackedMatrix packed = pack(weight, kOut, kIn, {Instructions::kPortable, numbers});
      const Tiles& tiles =
          numbers == Numbers::kBf16 ? emulated_amx_tiles().bf16_by_bf16 : emulated_amx_tiles().u8_by_int8;
      // Its operand is made by hand: no processor's name stands for the emulation.
      const std::size_t width = numbers == Numbers::kBf16 ? 2 : 1;
      const std::size_t stride = packed_depth(kIn, packed.storage) * width;
      std::vector<std::byte> operand(static_cast<std::size_t>((rows + 31) / 16 * 16) * stride);
      std::vector<float> scales;
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
        const auto row = std::span(x).subspan(r * kIn, kIn);
        float largest = 0;
        for (const float v : row) largest = std::max(largest, std::abs(v));
        scales.push_back(largest / 127);
        for (std::size_t k = 0; k < kIn; ++k) {
          const std::uint16_t half = bf16_of_f32(row[k]);
          const auto byte = static_cast<std::uint8_t>(std::lrint(row[k] * (127 / largest)) + 128);
          std::memcpy(operand.data() + r * stride + k * width,
                      numbers == Numbers::kBf16 ? static_cast<const void*>(&half) : &byte, width);
        }
      }
      const auto panels = num_panels(packed);
      std::vector<float> sums(panels * static_cast<std::size_t>(rows) * kPanel);
      const auto* next = packed.panels.data();
      tiles.run({operand.data(), stride, rows, steps_of(packed), packed.panels.data(),
                 static_cast<int>(panels), sums.data(), next, packed.panels.size()});
      std::vector<float> y, expected(static_cast<std::size_t>(rows * kOut));
      for (std::size_t p = 0; p < panels && numbers == Numbers::kInt8; ++p)
        scale_sums(packed, p, scales.data(), rows, sums.data() + p * static_cast<std::size_t>(rows) * kPanel);
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
        for (std::size_t c = 0; c < kOut; ++c)
          y.push_back(sums[(c / kPanel * static_cast<std::size_t>(rows) + r) * kPanel + c % kPanel]);
      reference::matmul(as_multiplied(x, kIn, numbers), as_multiplied(weight, kIn, numbers), kOut, kIn,
                        expected);
      expect_close(y, expected, 2 * kUlp * kIn * kIn);
    }
  }
}

std::vector<const float*> rows_of(std::span<const float> x, std::size_t width) {
  std::vector<const float*> rows;
  for (std::size_t first = 0; first < x.size(); first += width) rows.push_back(x.data() + first);
  return rows;
}
std::vector<float*> outputs_of(std::span<float> x, std::size_t width) {
  std::vector<float*> rows;
  for (std::size_t first = 0; first < x.size(); first += width) rows.push_back(x.data() + first);
  return rows;
}

TEST(AnExpert, EqualsTheReferenceAndGivesARowTheSameBitsWhateverItsCompany) {
  constexpr int kHidden = 48, kFfn = 70;
  constexpr std::size_t kRows = 37;
  Rng rng(19);
  const auto gate = random_values(rng, kFfn * kHidden, 0.3);
  const auto up = random_values(rng, kFfn * kHidden, 0.3);
  const auto down = random_values(rng, kHidden * kFfn, 0.3);
  const auto x = random_values(rng, kRows * kHidden);
  for (const Arithmetic& arithmetic : all_arithmetic()) {
    SCOPED_TRACE(words_of(arithmetic));
    const PackedExpert expert = pack_expert(gate, up, down, kHidden, kFfn, arithmetic);
    EXPECT_EQ(expert.gate_up.panels.size() + expert.down.panels.size(),
              packed_expert_bytes(kHidden, kFfn, expert.down.storage));
    std::vector<float> expected(x.size(), kPoison);
    reference::expert_ffn(as_multiplied(x, kHidden, arithmetic.numbers),
                          as_multiplied(gate, kHidden, arithmetic.numbers),
                          as_multiplied(up, kHidden, arithmetic.numbers),
                          as_multiplied(down, kFfn, arithmetic.numbers), kHidden, kFfn, expected);
    std::vector<float> alone(x.size(), kPoison);
    for (std::size_t r = 0; r < kRows; ++r)
      expert_ffn(rows_of(std::span(x).subspan(r * kHidden, kHidden), kHidden), expert,
                 outputs_of(std::span(alone).subspan(r * kHidden, kHidden), kHidden));
    // The reference does not round what passes from up to down: by half a unit of each of F terms.
    const double middle = arithmetic.numbers == Numbers::kF32    ? 0
                          : arithmetic.numbers == Numbers::kBf16 ? 0.004
                                                                 : 0.008;
    expect_close(alone, expected, 1e-4 + middle * kFfn * 0.3 * 0.3);
    for (std::size_t rows = 1; rows <= kRows; ++rows) {
      std::vector<float> y(rows * kHidden, kPoison);
      expert_ffn(rows_of(std::span(x).first(rows * kHidden), kHidden), expert, outputs_of(y, kHidden));
      ASSERT_TRUE(same_bits(y, std::span(alone).first(rows * kHidden))) << rows << " rows";
    }
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      std::vector<float> y(x.size(), kPoison);
      ffn(x, expert, y, pool);
      EXPECT_TRUE(same_bits(y, alone)) << threads << " threads";
    }
  }
}

TEST(ManyExperts, SayWhatEachSaysAloneHoweverTheyAreSharedOut) {
  constexpr int kHidden = 70, kFfn = 300;
  for (const Arithmetic& arithmetic : all_arithmetic()) {
    SCOPED_TRACE(words_of(arithmetic));
    Rng rng(29);
    std::vector<PackedExpert> experts;
    for (int e = 0; e < 3; ++e)
      experts.push_back(pack_expert(random_values(rng, kFfn * kHidden, 0.3),
                                    random_values(rng, kFfn * kHidden, 0.3),
                                    random_values(rng, kHidden * kFfn, 0.3), kHidden, kFfn, arithmetic));
    for (const std::size_t count : {1UL, 3UL, 90UL}) {
      std::vector<std::vector<float>> x, alone, together;
      std::vector<std::vector<const float*>> in;
      std::vector<std::vector<float*>> out;
      std::vector<ExpertRows> lots;
      for (std::size_t i = 0; i < count; ++i) {
        x.push_back(random_values(rng, (1 + i % 14) * kHidden));
        alone.emplace_back(x[i].size(), kPoison);
        together.emplace_back(x[i].size(), kPoison);
      }
      for (std::size_t i = 0; i < count; ++i) {
        in.push_back(rows_of(x[i], kHidden));
        out.push_back(outputs_of(together[i], kHidden));
        expert_ffn(in[i], experts[i % 3], outputs_of(alone[i], kHidden));
      }
      for (std::size_t i = 0; i < count; ++i) lots.push_back({&experts[i % 3], in[i], out[i]});
      for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        for (auto& values : together) std::fill(values.begin(), values.end(), kPoison);
        expert_ffns(lots, pool);
        for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(same_bits(together[i], alone[i])) << i;
      }
    }
  }
}

TEST(AnExpert, TakesNoRows) {
  Rng rng(1);
  const PackedExpert expert =
      pack_expert(random_values(rng, 6), random_values(rng, 6), random_values(rng, 6), 3, 2);
  expert_ffn({}, expert, {});
}

TEST(Silu, IsWithinAFewUnitsInTheLastPlace) {
  for (const Instructions instructions : usable_instructions()) {
    for (double g = -100; g < 100; g += 0.37) {
      float sums[32], out[16];
      for (int i = 0; i < 16; ++i) {
        sums[i] = static_cast<float>(g + i * 0.01);
        sums[16 + i] = 1.5F;
      }
      functions_for(instructions).silu_times_up(sums, out);
      for (int i = 0; i < 16; ++i) {
        const double gate = static_cast<double>(sums[i]);
        EXPECT_NEAR(out[i], 1.5 * gate / (1 + std::exp(-gate)), 1e-6 * std::max(1.0, std::abs(gate)))
            << name_of(instructions) << " " << gate;
      }
    }
  }
}

}  // namespace
}  // namespace grace::kernels
