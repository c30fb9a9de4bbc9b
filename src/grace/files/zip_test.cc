#include "grace/files/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "grace/base/rng.h"

namespace grace {
namespace {

using testing::HasSubstr;
using Members = std::vector<std::pair<std::string, std::string>>;

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string message_of(const std::string& file) {
  const auto parsed = parse_zip(bytes_of_text(file), "x.zip");
  return parsed.ok() ? "no error" : parsed.error().message;
}
std::string with(std::string file, std::size_t at, std::initializer_list<int> bytes) {
  for (const int byte : bytes) file.at(at++) = static_cast<char>(byte);
  return file;
}

TEST(AZipArchive, GivesBackItsMembersAsViews) {
  const Members members = {{"a/b", "hello"}, {"empty", ""}, {"c", std::string(1000, 'x')}};
  const std::string file = zip_bytes(members);
  const auto parsed = parse_zip(bytes_of_text(file), "x.zip");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  ASSERT_EQ(parsed.value().size(), members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const ZipEntry& entry = parsed.value()[i];
    EXPECT_EQ(entry.name, members[i].first);
    EXPECT_EQ(text_of(entry.data), members[i].second);
    EXPECT_EQ((entry.data.data() - bytes_of_text(file).data()) % 64, 0);
    EXPECT_EQ(text_of(inflate(entry, "x").value()), members[i].second);
  }
}

TEST(AZipArchive, OfNothingIsOne) { EXPECT_EQ(message_of(zip_bytes({})), "no error"); }

TEST(AZipArchive, MayHaveACommentBehindIt) {
  std::string file = zip_bytes(Members{{"a", "b"}});
  file[file.size() - 2] = 3;
  EXPECT_EQ(message_of(file + "abc"), "no error");
  EXPECT_NE(message_of(file + "ab"), "no error");
}

TEST(AZipArchive, CutShortAnywhereIsRefused) {
  const std::string file = zip_bytes(Members{{"a", "hello"}, {"b", "world"}});
  for (std::size_t length = 0; length < file.size(); ++length)
    EXPECT_NE(message_of(file.substr(0, length)), "no error") << length;
}

TEST(AZipArchive, IsRefusedWithWhatIsWrong) {
  const std::string file = zip_bytes(Members{{"a", "hello"}, {"b", "world"}});
  const std::size_t central = file.find("PK\x01\x02"), end = file.find("PK\x05\x06");
  ASSERT_NE(central, std::string::npos);
  EXPECT_THAT(message_of(with(file, central + 8, {1})), HasSubstr("member \"a\" is encrypted"));
  EXPECT_THAT(message_of(with(file, central + 10, {12})), HasSubstr("method 12"));
  EXPECT_THAT(message_of(with(file, central + 20, {0xf0, 0xff, 0xff, 0x7f, 0xf0, 0xff, 0xff, 0x7f})),
              HasSubstr("reach over the archive's"));
  EXPECT_THAT(message_of(with(file, central + 24, {6})), HasSubstr("stored in 5 bytes, has 6"));
  EXPECT_THAT(message_of(with(file, central + 42, {1})), HasSubstr("no local header at byte 1"));
  EXPECT_THAT(message_of(with(file, central + 42, {0xff, 0xff, 0xff, 0xff})), HasSubstr("zip64 field"));
  EXPECT_THAT(message_of(with(file, end + 10, {0xff, 0xff})), HasSubstr("says 65535 members"));
  EXPECT_THAT(message_of(with(file, end + 16, {0xff, 0xff, 0xff, 0x7f})),
              HasSubstr("the zip directory has bytes"));
  EXPECT_THAT(message_of(with(file, end + 4, {1})), HasSubstr("several disks"));
  EXPECT_THAT(message_of(zip_bytes(Members{{"a", "1"}, {"a", "2"}})), HasSubstr("member \"a\" occurs twice"));
  const std::size_t second = file.find("PK\x01\x02", central + 1);
  EXPECT_THAT(message_of(with(file, second + 42, {0})), HasSubstr("overlap"));
}

TEST(AZipArchive, SurvivesAnyByteTurned) {
  Rng rng(11);
  const std::string file = zip_bytes(Members{{"a", "hello"}, {"b", std::string(100, 'w')}});
  for (int repeat = 0; repeat < 20'000; ++repeat) {
    std::string broken = file;
    for (std::uint64_t i = 0, count = 1 + rng.below(3); i < count; ++i)
      broken[rng.below(broken.size())] = static_cast<char>(rng.below(256));
    const auto parsed = parse_zip(bytes_of_text(broken), "x");
    if (!parsed.ok()) continue;
    for (const ZipEntry& entry : parsed.value()) (void)inflate(entry, "x").ok();
  }
}

TEST(ADeflatedMember, ThatClaimsTooMuchIsRefusedBeforeItIsInflated) {
  ZipEntry entry;
  entry.name = "bomb";
  entry.deflated = true;
  entry.size = std::uint64_t{1} << 40;
  const std::string data("\x03\x00", 2);
  entry.data = bytes_of_text(data);
  EXPECT_THAT(inflate(entry, "x").error().message, HasSubstr("says 1099511627776 bytes, at most 3096"));
  entry.size = 5;
  EXPECT_THAT(inflate(entry, "x").error().message, HasSubstr("does not give 5 bytes"));
  entry.size = 0;
  EXPECT_TRUE(inflate(entry, "x").ok());
}

}  // namespace
}  // namespace grace
