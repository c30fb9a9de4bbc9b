#include "grace/runtime/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"
#include "grace/files/safetensors.h"
#include "grace/runtime/wire_values.h"

namespace grace {
namespace {

using testing::HasSubstr;

constexpr WireFormat kExact{2, 6, Combine::kExact};
constexpr WireFormat kReduced{2, 6, Combine::kReduced};

class AMessage : public testing::TestWithParam<std::pair<Combine, Wire>> {};

TEST_P(AMessage, IsReadBackAsItWasWritten) {
  const auto [combine, wire] = GetParam();
  const WireFormat format{3, 40, combine, wire};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<float> x(3 * 8);
    for (float& value : x) value = static_cast<float>(rng.uniform());
    ParcelList sent;
    std::size_t num_assignments = 0;
    OwnBuffer message;
    for (std::uint64_t n = rng.below(8); n > 0; --n) {
      std::vector<WireAssignment> assignments;
      for (std::uint16_t e = 0; e < 40; ++e)
        if (rng.below(6) == 0)
          assignments.push_back(
              {e, static_cast<std::uint16_t>(rng.below(9)), static_cast<float>(rng.uniform())});
      if (assignments.empty()) continue;
      const auto row = static_cast<std::int32_t>(rng.below(8));
      sent.add({row, assignments, x.data() + row * 3});
      append_parcel(format, sent[sent.size() - 1], message);
      num_assignments += assignments.size();
    }
    const std::size_t per_assignment = combine == Combine::kExact ? 4 : 8;
    EXPECT_EQ(message.size(),
              sent.size() * (8 + 3 * (wire == Wire::kF32 ? 4 : 2)) + num_assignments * per_assignment);
    ParcelList read;
    ASSERT_TRUE(read_parcels(format, std::as_const(message).bytes(), 0, read).ok());
    ASSERT_EQ(read.size(), sent.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].row, sent[i].row);
      ASSERT_EQ(read[i].assignments.size(), sent[i].assignments.size());
      for (std::size_t a = 0; a < read[i].assignments.size(); ++a) {
        EXPECT_EQ(read[i].assignments[a].expert, sent[i].assignments[a].expert);
        EXPECT_EQ(read[i].assignments[a].local, sent[i].assignments[a].local);
        EXPECT_EQ(read[i].assignments[a].weight,
                  combine == Combine::kExact ? 0.0F : sent[i].assignments[a].weight);
      }
      for (std::size_t k = 0; k < 3; ++k)
        EXPECT_EQ(read[i].x[k], wire == Wire::kF32 ? sent[i].x[k] : f32_of_bf16(bf16_of_f32(sent[i].x[k])));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AMessage,
                         testing::Values(std::pair(Combine::kExact, Wire::kF32),
                                         std::pair(Combine::kReduced, Wire::kF32),
                                         std::pair(Combine::kExact, Wire::kBf16),
                                         std::pair(Combine::kReduced, Wire::kBf16)));

TEST(AValue, IsRoundedOnTheWayAsEverywhereElse) {
  const float limit = std::numeric_limits<float>::max();
  std::vector<float> values{0.0F,         -0.0F,  1.0F,  1.00390625F, 1.01171875F,
                            -3.1415927F,  1e-40F, limit, -limit,      std::numeric_limits<float>::infinity(),
                            std::nanf("")};
  Rng rng(7);
  for (int i = 0; i < 10000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(rng.next())));
  std::vector<std::byte> wire(values.size() * 2);
  put_values(Wire::kBf16, values, wire.data());
  std::vector<float> back(values.size());
  take_values(Wire::kBf16, wire.data(), back);
  std::vector<float> rounded = values;
  round_values(Wire::kBf16, rounded);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(back[i]), std::isnan(values[i]));
    if (std::isnan(values[i])) continue;
    EXPECT_EQ(back[i], f32_of_bf16(bf16_of_f32(values[i]))) << values[i];
    EXPECT_EQ(rounded[i], back[i]);
    if (std::isfinite(back[i]) && std::abs(values[i]) > 1e-37F) {
      EXPECT_LE(std::abs(back[i] - values[i]), std::abs(values[i]) / 256);
    }
  }
}

std::string error_of(const WireFormat& format, const std::vector<std::int32_t>& words) {
  ParcelList parcels;
  const Status status = read_parcels(format, std::as_bytes(std::span(words)), 3, parcels);
  return status.ok() ? "" : status.error().message;
}

TEST(ADispatchMessage, IsRefusedWithTheRankAndTheByteWhenItCannotBe) {
  EXPECT_EQ(error_of(kExact, {0, 1, 5, 0, 0}), "");
  EXPECT_EQ(error_of(kReduced, {0, 1, 5, 0, 0, 0}), "");
  EXPECT_EQ(error_of(kExact, {0}), "rank 3: byte 0 of its dispatch message: a header that is cut short");
  EXPECT_THAT(error_of(kExact, {-1, 1, 5, 0, 0}), HasSubstr("row -1 is below 0"));
  EXPECT_THAT(error_of(kExact, {0, 0, 5, 0, 0}), HasSubstr("0 experts are outside [1, 6]"));
  EXPECT_THAT(error_of(kExact, {0, 7, 5, 0, 0}), HasSubstr("7 experts are outside [1, 6]"));
  EXPECT_THAT(error_of(kExact, {0, 1, 6, 0, 0}),
              HasSubstr("byte 8 of its dispatch message: expert 6 is outside [0, 6)"));
  EXPECT_THAT(error_of(kExact, {0, 2, 5, 5, 0, 0}),
              HasSubstr("byte 12 of its dispatch message: expert 5 after expert 5"));
  EXPECT_THAT(error_of(kExact, {0, 1, 5, 0, 0, 0, 2, 1, 2}),
              HasSubstr("byte 20 of its dispatch message: 8 bytes are left of 16"));
  EXPECT_THAT(error_of(kReduced, {0, 1, 5, 0, 0}),
              HasSubstr("byte 0 of its dispatch message: 12 bytes are left of 16"));
}

TEST(ADispatchMessage, OfTheCorpusIsReadOrRefused) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/dispatch_message")) {
    const std::string text = read_text(entry.path()).value();
    ParcelList parcels;
    const bool good = entry.path().filename().string().starts_with("good");
    EXPECT_EQ(read_parcels(kExact, std::as_bytes(std::span(text)), 0, parcels).ok(), good) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace grace
