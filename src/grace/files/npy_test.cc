#include "grace/files/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"
#include "grace/files/zip.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
std::vector<T> values(std::span<const std::byte> bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// A file with the given header text, padded by nothing.
std::string file_of(const std::string& header, const std::string& data, char version = 1) {
  std::string out("\x93NUMPY", 6);
  out += version;
  out += '\0';
  const auto length = static_cast<std::uint32_t>(header.size());
  out.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return out + header + data;
}

std::string message_of(const std::string& file) {
  const auto parsed = parse_npy(bytes_of_text(file), "x.npy");
  return parsed.ok() ? "no error" : parsed.error().message;
}

TEST(ANpyFile, ReadsBackWhatWasWritten) {
  const std::vector<std::int64_t> numbers = {1, -2, 3, 4, 5, 1LL << 40};
  const TensorView tensor{Dtype::kI64, {2, 3}, std::as_bytes(std::span(numbers))};
  const std::string file = npy_bytes(tensor);
  EXPECT_EQ(file.size() % 64, 6 * sizeof(std::int64_t));
  const auto parsed = parse_npy(bytes_of_text(file), "x.npy");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed.value().tensor.dtype, Dtype::kI64);
  EXPECT_THAT(parsed.value().tensor.shape, ElementsAre(2, 3));
  EXPECT_EQ(values<std::int64_t>(parsed.value().tensor.bytes), numbers);
}

TEST(ANpyFile, TakesEveryVersionScalarsAndEmptyArrays) {
  for (const char version : {1, 2, 3}) {
    const std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (), }\n";
    const std::string file = file_of(header, std::string("\7\0\0\0", 4), version);
    const auto scalar = parse_npy(bytes_of_text(file), "x");
    ASSERT_TRUE(scalar.ok()) << scalar.error().message;
    EXPECT_TRUE(scalar.value().tensor.shape.empty());
    EXPECT_THAT(values<std::int32_t>(scalar.value().tensor.bytes), ElementsAre(7));
  }
  EXPECT_EQ(message_of(file_of("{\"shape\": (0L, 5L), 'descr': '|u1', 'fortran_order': True}", "")),
            "no error");
}

TEST(ANpyFile, OfFortranOrderIsTurnedRoundAsItsIndicesSay) {
  Rng rng(3);
  for (int repeat = 0; repeat < 50; ++repeat) {
    SCOPED_TRACE(repeat);
    std::vector<std::int64_t> shape;
    for (std::uint64_t d = 0, rank = rng.below(4); d < rank; ++d)
      shape.push_back(static_cast<std::int64_t>(rng.below(4)));
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    std::vector<std::int16_t> data(static_cast<std::size_t>(count));
    std::iota(data.begin(), data.end(), std::int16_t{0});
    const NpyArray array{{Dtype::kI16, shape, std::as_bytes(std::span(data))}, true};
    const std::vector<std::int16_t> turned = values<std::int16_t>(row_major_bytes(array));
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = i, from = 0;
      std::vector<std::int64_t> index(shape.size());
      for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) index[d] = rest % shape[d];
      for (std::size_t d = shape.size(); d-- > 0;) from = from * shape[d] + index[d];
      EXPECT_EQ(turned[static_cast<std::size_t>(i)], data[static_cast<std::size_t>(from)]);
    }
  }
}

TEST(ANpyFile, IsRefusedWithWhatIsWrong) {
  const std::string good = "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }";
  EXPECT_THAT(message_of("GIF89a..............."), HasSubstr("x.npy: does not begin"));
  EXPECT_THAT(message_of(std::string("\x93NUMPY\x01", 7)), HasSubstr("does not begin"));
  EXPECT_THAT(message_of(file_of(good, "1234", 4)), HasSubstr(".npy version 4 is outside [1, 3]"));
  EXPECT_THAT(message_of(file_of(good, "12345")), HasSubstr("I32 [1] does not take the 5 bytes"));
  EXPECT_THAT(message_of(file_of(good, "")), HasSubstr("does not take the 0 bytes"));
  EXPECT_THAT(message_of(file_of("{'descr': '>i4', 'fortran_order': False, 'shape': (1,)}", "1234")),
              HasSubstr("dtype \">i4\" is not"));
  EXPECT_THAT(message_of(file_of("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "1234")),
              HasSubstr("\"|O\""));
  EXPECT_THAT(message_of(file_of("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}", "1234")),
              HasSubstr("a structure"));
  EXPECT_THAT(message_of(file_of("{'descr': '<i4', 'fortran_order': False}", "1234")),
              HasSubstr("lacks shape"));
  EXPECT_THAT(
      message_of(file_of("{'descr': '<i4', 'descr': '<i8', 'fortran_order': False, 'shape': ()}", "1234")),
      HasSubstr("descr twice"));
  EXPECT_THAT(message_of(file_of("{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}", "1234")),
              HasSubstr("no size at byte"));
  EXPECT_THAT(message_of(file_of(
                  "{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 16)}", "")),
              HasSubstr("does not take"));
  EXPECT_THAT(message_of(file_of("{'descr': '<i4', 'x': 1}", "")), HasSubstr("unknown key"));
  EXPECT_THAT(message_of(file_of("{'descr", "")), HasSubstr("end of a string"));
  const std::string whole = file_of(good, "1234");
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(message_of(whole.substr(0, length)), "no error") << length;
}

TEST(AnNpzFile, HoldsItsArraysByName) {
  const std::vector<std::int32_t> a = {1, 2, 3};
  const std::vector<float> b = {0.5F};
  const TensorMap arrays = {{"a", {Dtype::kI32, {3}, std::as_bytes(std::span(a))}},
                            {"b", {Dtype::kF32, {1, 1}, std::as_bytes(std::span(b))}}};
  const std::string file = npz_bytes(arrays);
  EXPECT_EQ(file, npz_bytes(arrays));
  const auto parsed = parse_npz(bytes_of_text(file), "x.npz");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  ASSERT_EQ(parsed.value().arrays.size(), 2U);
  EXPECT_THAT(values<std::int32_t>(parsed.value().arrays.at("a").tensor.bytes), ElementsAre(1, 2, 3));
  EXPECT_THAT(parsed.value().arrays.at("b").tensor.shape, ElementsAre(1, 1));
}

TEST(AnNpzFile, NamesTheMemberThatIsBroken) {
  const std::vector<std::pair<std::string, std::string>> members = {{"weight.npy", "nothing"}};
  const std::string file = zip_bytes(members);
  const auto parsed = parse_npz(bytes_of_text(file), "x.npz");
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.error().message, HasSubstr("x.npz: member \"weight.npy\": does not begin"));
}

// Written by numpy: tools/make_interop_fixtures.py.
TEST(AnNpzFile, WrittenByNumpyIsReadStoredAndDeflated) {
  const std::filesystem::path folder =
      std::filesystem::path(GRACE_SOURCE_DIR) / "tests/fixtures/interop/numpy";
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    SCOPED_TRACE(name);
    const auto file = MappedFile::open(folder / name);
    ASSERT_TRUE(file.ok()) << file.error().message;
    const auto parsed = parse_npz(file.value().bytes(), name);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    const NpyArray& fortran = parsed.value().arrays.at("fortran");
    EXPECT_TRUE(fortran.fortran_order);
    std::vector<std::int64_t> counted(24);
    std::iota(counted.begin(), counted.end(), 0);
    EXPECT_EQ(values<std::int64_t>(row_major_bytes(fortran)), counted);
    EXPECT_EQ(values<std::int64_t>(row_major_bytes(parsed.value().arrays.at("plain"))), counted);
    EXPECT_THAT(values<float>(parsed.value().arrays.at("floats").tensor.bytes), ElementsAre(0.5F, -1.0F));
  }
}

}  // namespace
}  // namespace grace
