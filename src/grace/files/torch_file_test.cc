#include "grace/files/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"
#include "grace/files/zip.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Members = std::vector<std::pair<std::string, std::string>>;

std::span<const std::byte> bytes_of_text(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string fixture(const std::string& name) {
  auto text = read_text(std::filesystem::path(GRACE_SOURCE_DIR) / "tests/fixtures/interop/torch" / name);
  return text.ok() ? std::move(text).value() : std::string();
}
template <typename T>
std::vector<T> values_of(const TorchFile& file, const char* name) {
  const auto tensor = file.tensor(*file.root().find(name), name);
  EXPECT_TRUE(tensor.ok()) << tensor.error().message;
  const std::vector<std::byte> bytes = row_major_bytes(tensor.value());
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Written by torch: tools/make_interop_fixtures.py.
TEST(ATorchFile, GivesTensorsOfAnyDtypeStrideAndDevice) {
  for (const char* name : {"tree.pt", "tree_cuda.pt"}) {
    SCOPED_TRACE(name);
    const std::string bytes = fixture(name);
    const auto parsed = TorchFile::parse(bytes_of_text(bytes), name);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    const TorchFile& file = parsed.value();
    const std::vector<std::int32_t> i32 = values_of<std::int32_t>(file, "i32");
    ASSERT_EQ(i32.size(), 24U);
    for (int i = 0; i < 24; ++i) EXPECT_EQ(i32[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(values_of<std::int64_t>(file, "i64")[23], 23);
    EXPECT_EQ(values_of<std::int16_t>(file, "i16")[23], 23);
    EXPECT_EQ(values_of<std::uint8_t>(file, "u8")[23], 23);
    const std::vector<std::int32_t> turned = values_of<std::int32_t>(file, "turned");
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 6; ++j) EXPECT_EQ(turned[static_cast<std::size_t>(i * 6 + j)], j * 4 + i);
    EXPECT_THAT(values_of<std::int32_t>(file, "part"), ElementsAre(6, 7, 18, 19));
    EXPECT_THAT(values_of<std::int64_t>(file, "repeated"), ElementsAre(7, 7, 7));
    EXPECT_TRUE(values_of<float>(file, "empty").empty());
    EXPECT_THAT(values_of<float>(file, "f32"), ElementsAre(2.5F));
    EXPECT_EQ(file.tensor(*file.root().find("bf16"), "x").value().dtype, Dtype::kBf16);
    EXPECT_EQ(file.root().find("rank")->integer(), 3);
    EXPECT_TRUE(file.root().find("none")->is(PickleKind::kNone));
    EXPECT_EQ(file.root().find("ordered")->find("x")->integer(), 1);
    EXPECT_THAT(file.tensor(*file.root().find("rank"), "x: rank").error().message,
                HasSubstr("x: rank: 3 is not a tensor"));
  }
}

TEST(ATorchFile, OfTheOldFormatIsRefusedWithWhatToDo) {
  const std::string bytes = fixture("before_1_6.pt");
  EXPECT_THAT(TorchFile::parse(bytes_of_text(bytes), "x.pt").error().message, HasSubstr("before 1.6"));
}

TEST(ATorchFile, WhoseTensorsReachOverTheirStorageIsRefused) {
  const std::string bytes = fixture("tree.pt");
  const auto entries = parse_zip(bytes_of_text(bytes), "x");
  ASSERT_TRUE(entries.ok());
  Members members;
  for (const ZipEntry& entry : entries.value())
    members.emplace_back(entry.name,
                         std::string(reinterpret_cast<const char*>(entry.data.data()), entry.data.size()));
  Members shorter = members, without = members, big = members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].first.ends_with("/data/0")) {
      shorter[i].second.resize(95);
      without[i].first = "tree/data/x";
    }
    if (members[i].first.ends_with("byteorder")) big[i].second = "big";
  }
  const auto message = [](const Members& changed) {
    const std::string file = zip_bytes(changed);
    const auto parsed = TorchFile::parse(bytes_of_text(file), "x.pt");
    if (!parsed.ok()) return parsed.error().message;
    const auto tensor = parsed.value().tensor(*parsed.value().root().find("i32"), "x.pt: i32");
    return tensor.ok() ? std::string("no error") : tensor.error().message;
  };
  EXPECT_EQ(message(members), "no error");
  EXPECT_THAT(message(shorter), HasSubstr("x.pt: i32: its storage has 23 elements, says 24"));
  EXPECT_THAT(message(without), HasSubstr("its storage \"0\" is not in the file"));
  EXPECT_THAT(message(big), HasSubstr("\"big\"-endian"));
  EXPECT_THAT(message({{"a/version", "3"}}), HasSubstr("without a data.pkl"));
}

TEST(ATorchFile, SurvivesAnyByteOfItsPickleTurned) {
  Rng rng(17);
  const std::string bytes = fixture("tree.pt");
  const std::size_t begin = bytes.find("data.pkl"), end = bytes.find("PK", begin);
  ASSERT_NE(end, std::string::npos);
  for (int repeat = 0; repeat < 20'000; ++repeat) {
    std::string broken = bytes;
    for (std::uint64_t i = 0, count = 1 + rng.below(3); i < count; ++i)
      broken[begin + rng.below(end - begin)] = static_cast<char>(rng.below(256));
    const auto parsed = TorchFile::parse(bytes_of_text(broken), "x");
    if (!parsed.ok()) continue;
    const PickleValue root = parsed.value().root();
    for (std::size_t i = 0; root.is(PickleKind::kDict) && i < root.size(); ++i) {
      const auto tensor = parsed.value().tensor(root.value(i), "x");
      if (tensor.ok() && tensor.value().num_elements() < 1000) (void)row_major_bytes(tensor.value()).size();
    }
  }
}

}  // namespace
}  // namespace grace
