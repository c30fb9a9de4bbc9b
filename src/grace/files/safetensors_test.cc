#include "grace/files/safetensors.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "grace/base/rng.h"

namespace grace {
namespace {

using testing::HasSubstr;

std::filesystem::path temporary(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) /
         ("grace_" + name + std::to_string(::getpid()) + ".safetensors");
}

template <typename T>
TensorView view(Dtype dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

// A file's bytes: length, header, `data_bytes` zeros.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

std::string message_of(const std::string& file) {
  const auto content = parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "x");
  return content.ok() ? "ok" : content.error().message;
}

TEST(ASafetensorsFile, GivesBackWhatWasWritten) {
  const std::vector<float> floats = {1.5F, -2, 3, 4, 5, 6};
  const std::vector<std::int64_t> ids = {7};
  const std::vector<std::uint8_t> odd = {1, 2, 3};
  const auto path = temporary("round_trip");
  const TensorMap tensors = {{"b", view(Dtype::kF32, {2, 3}, floats)},
                             {"a", view(Dtype::kU8, {3}, odd)},
                             {"empty", TensorView{Dtype::kF32, {0, 5}, {}}},
                             {"scalar", view(Dtype::kI64, {}, ids)}};
  ASSERT_TRUE(write_safetensors(path, tensors, {{"format", "pt"}}).ok());
  auto opened = Safetensors::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Safetensors file = std::move(opened).value();
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), 4U);
  const TensorView b = file.find("b").value();
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  std::vector<float> middle(3);
  ASSERT_TRUE(read_as_f32(b, "b", 2, 5, middle).ok());
  EXPECT_EQ(middle, (std::vector<float>{3, 4, 5}));
  EXPECT_EQ(file.find("scalar").value().num_elements(), 1);
  EXPECT_EQ(file.find("empty").value().num_elements(), 0);
  EXPECT_THAT(file.find("c").error().message, HasSubstr("no tensor c"));
  std::vector<float> bytes(3);
  EXPECT_EQ(read_as_f32(file.find("a").value(), "a", 0, 3, bytes).error().message,
            "a: dtype U8 is not one of BF16, F16, F32");
}

TEST(ASafetensorsFile, StartsItsDataAtAMultipleOfEight) {
  const std::vector<float> one = {1};
  for (const std::string name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"}) {
    const auto path = temporary("aligned");
    ASSERT_TRUE(write_safetensors(path, {{name, view(Dtype::kF32, {1}, one)}}, {}).ok());
    EXPECT_EQ((std::filesystem::file_size(path) - sizeof(float)) % 8, 0U);
  }
}

TEST(ASafetensorsFile, IsRefusedWithWhatIsWrongWithIt) {
  EXPECT_EQ(message_of("1234567"), "x: 7 bytes, too short for the header's length");
  EXPECT_EQ(message_of(file_of("{}", 0).substr(0, 9)),
            "x: the header says it is 2 bytes long, at most 1 can be");
  EXPECT_EQ(message_of(std::string(8, '\xff')),
            "x: the header says it is 18446744073709551615 bytes long, at most 0 can be");
  EXPECT_THAT(message_of(file_of("{", 0)), HasSubstr("x: header: not JSON at byte"));
  EXPECT_EQ(message_of(file_of("[1]", 0)), "x: header: [1] is not an object");
  EXPECT_EQ(message_of(file_of("{}", 0)), "ok");
  EXPECT_EQ(message_of(file_of("{}", 3)), "x: 3 bytes of data, the tensors take 0");
  const auto one = [](const std::string& entry, std::size_t bytes) {
    return message_of(file_of("{\"t\":" + entry + "}", bytes));
  };
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8), "ok");
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 7),
            "x: tensor \"t\": data_offsets [0,8] are outside [0, 7]");
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8),
            "x: tensor \"t\": data_offsets [8,0] are outside [0, 8]");
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8),
            "x: tensor \"t\": F32 [3] takes 12 bytes, data_offsets give it 8");
  EXPECT_EQ(one(R"({"dtype":"F4","shape":[8],"data_offsets":[0,8]})", 8),
            "x: tensor \"t\": unknown dtype \"F4\"");
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8),
            "x: tensor \"t\": shape is [-2], not a list of sizes");
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", 8),
              HasSubstr("has more elements than fit"));
  EXPECT_EQ(one(R"({"dtype":"F32","data_offsets":[0,8]})", 8), "x: tensor \"t\": shape is missing");
  EXPECT_EQ(one("3", 0), "x: tensor \"t\": 3 is not an object");
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                               R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                               7)),
            "x: tensor \"b\" begins at byte 3 of the data, the one before it ends at 4");
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5)),
            "x: tensor \"a\" begins at byte 1 of the data, the one before it ends at 0");
  EXPECT_EQ(message_of(file_of(R"({"__metadata__":{"k":1}})", 0)),
            "x: __metadata__ of \"k\" is 1, not a string");
}

TEST(ASafetensorsFile, NeedsToExist) {
  EXPECT_EQ(Safetensors::open("/nowhere/x").error().kind, ErrorKind::kIo);
}

TEST(ASafetensorsFile, OfTheCorpusIsAcceptedOnlyWhenItsNameSaysSo) {
  int seen = 0;
  for (const auto& file : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/safetensors")) {
    ++seen;
    const bool good = file.path().filename().string().starts_with("good");
    const auto opened = Safetensors::open(file.path());
    EXPECT_EQ(opened.ok(), good) << file.path() << (opened.ok() ? "" : opened.error().message);
    if (!opened.ok()) {
      EXPECT_EQ(opened.error().message.find('\n'), std::string::npos);
    }
  }
  EXPECT_GE(seen, 5);
}

TEST(ASafetensorsFile, SurvivesAnyByteBeingChanged) {
  const std::string good =
      file_of(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}})", 4);
  Rng rng(11);
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    for (std::uint64_t n = 1 + rng.below(3); n > 0; --n)
      bad[rng.below(bad.size())] = static_cast<char>(rng.next());
    if (rng.below(4) == 0) bad.resize(rng.below(bad.size()));
    const auto content = parse_safetensors(std::as_bytes(std::span(bad.data(), bad.size())), "x");
    if (!content.ok()) continue;
    for (const auto& [name, tensor] : content.value().tensors) {
      std::vector<float> out(static_cast<std::size_t>(tensor.num_elements()));
      (void)read_as_f32(tensor, name, 0, tensor.num_elements(), out).ok();
    }
  }
}

TEST(AHalf, SurvivesTheWayToF32AndBackForEveryPattern) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float bf16 = f32_of_bf16(half);
    const float f16 = f32_of_f16(half);
    ASSERT_TRUE(std::isnan(bf16) ? std::isnan(f32_of_bf16(bf16_of_f32(bf16))) : bf16_of_f32(bf16) == half)
        << bits;
    ASSERT_TRUE(std::isnan(f16) ? std::isnan(f32_of_f16(f16_of_f32(f16))) : f16_of_f32(f16) == half) << bits;
  }
}

// The slow twin: exact value of a finite f16 pattern from its definition.
double f16_by_definition(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(AnF16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    ASSERT_EQ(static_cast<double>(f32_of_f16(bits)), f16_by_definition(bits));
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const auto middle = static_cast<float>((f16_by_definition(bits) + f16_by_definition(next)) / 2);
    ASSERT_EQ(f16_of_f32(middle), bits % 2 == 0 ? bits : next);
    ASSERT_EQ(f16_of_f32(std::nextafter(middle, 0.0F)), bits);
    ASSERT_EQ(f16_of_f32(-std::nextafter(middle, 1e6F)), next | 0x8000);
  }
  EXPECT_EQ(f16_of_f32(65519.996F), 0x7bff);
  EXPECT_EQ(f16_of_f32(65520.0F), 0x7c00);
  EXPECT_EQ(f16_of_f32(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(ABf16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(bf16_of_f32(std::bit_cast<float>(0x3f808000U)), 0x3f80);
  EXPECT_EQ(bf16_of_f32(std::bit_cast<float>(0x3f818000U)), 0x3f82);
  EXPECT_EQ(bf16_of_f32(std::bit_cast<float>(0x3f808001U)), 0x3f81);
  EXPECT_EQ(bf16_of_f32(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace grace
