#include "grace/files/mapped_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace grace {
namespace {

namespace fs = std::filesystem;

// A fresh folder of this test's own.
fs::path folder(const std::string& name) {
  const fs::path path = fs::path(testing::TempDir()) / ("grace_mapped_" + std::to_string(::getpid()) + name);
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

std::size_t num_entries(const fs::path& path) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
}

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(AMappedFile, ShowsTheBytesAndKeepsTheirAddressWhenMoved) {
  const fs::path path = folder("bytes") / "f";
  ASSERT_TRUE(write_text_atomically(path, std::string("a\0b", 3)).ok());
  MappedFile file = MappedFile::open(path).value();
  EXPECT_EQ(text_of(file), std::string("a\0b", 3));
  const std::byte* address = file.bytes().data();
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.bytes().data(), address);
  ASSERT_TRUE(write_text_atomically(path, "other").ok());
  EXPECT_EQ(text_of(moved), std::string("a\0b", 3)) << "a replaced file must not change under its readers";
  moved = MappedFile::open(path).value();
  EXPECT_EQ(text_of(moved), "other");
}

TEST(AMappedFile, ShowsTheSameBytesAfterTheirMemoryWasGivenBack) {
  const fs::path path = folder("back") / "f";
  const std::string text(3 * 65536 + 5, 'x');
  ASSERT_TRUE(write_text_atomically(path, text).ok());
  const MappedFile file = MappedFile::open(path).value();
  EXPECT_EQ(text_of(file), text);
  EXPECT_TRUE(file.give_back(file.bytes().subspan(100, 70000)));
  EXPECT_TRUE(file.give_back(file.bytes()));
  EXPECT_EQ(text_of(file), text);
  EXPECT_FALSE(file.give_back(std::as_bytes(std::span(text))));
}

TEST(AMappedFile, MayBeEmpty) {
  const fs::path path = folder("empty") / "f";
  ASSERT_TRUE(write_text_atomically(path, "").ok());
  EXPECT_TRUE(MappedFile::open(path).value().bytes().empty());
  EXPECT_EQ(read_text(path).value(), "");
}

TEST(AMappedFile, GivesThePathAndTheReasonWhenItCannotBeOpened) {
  const fs::path path = folder("errors");
  EXPECT_EQ(MappedFile::open(path / "x").error().message,
            (path / "x").string() + ": No such file or directory");
  EXPECT_EQ(MappedFile::open(path).error().message, path.string() + ": Is a directory");
  EXPECT_EQ(read_text(path).error().message, path.string() + ": Is a directory");
  EXPECT_EQ(read_text(path / "x").error().kind, ErrorKind::kIo);
}

TEST(AnAtomicWrite, LeavesNothingBehindWhenItFails) {
  const fs::path path = folder("failed");
  fs::create_directories(path / "d");
  EXPECT_EQ(write_text_atomically(path / "d", "x").error().message,
            (path / "d").string() + ": Is a directory");
  EXPECT_EQ(write_text_atomically(path / "no" / "f", "x").error().kind, ErrorKind::kIo);
  EXPECT_EQ(num_entries(path), 1U);
}

TEST(AnAtomicWrite, FollowsALinkAndWritesIntoADevice) {
  const fs::path path = folder("links");
  ASSERT_TRUE(write_text_atomically(path / "f", "old").ok());
  fs::create_symlink(path / "f", path / "link");
  ASSERT_TRUE(write_text_atomically(path / "link", "new").ok());
  EXPECT_TRUE(fs::is_symlink(path / "link"));
  EXPECT_EQ(read_text(path / "f").value(), "new");
  EXPECT_TRUE(write_text_atomically("/dev/null", "x").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(AnAtomicWrite, IsSeenWholeByReadersWhileOthersWrite) {
  const fs::path path = folder("race") / "f";
  const std::string a(100000, 'a');
  const std::string b(50000, 'b');
  ASSERT_TRUE(write_text_atomically(path, a).ok());
  std::vector<std::thread> writers;
  for (const std::string* text : {&a, &b, &a}) {
    writers.emplace_back([&path, text] {
      for (int i = 0; i < 50; ++i) ASSERT_TRUE(write_text_atomically(path, *text).ok());
    });
  }
  for (int i = 0; i < 100; ++i) {
    const std::string read = read_text(path).value();
    EXPECT_TRUE(read == a || read == b) << read.size();
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(num_entries(path.parent_path()), 1U);
}

}  // namespace
}  // namespace grace
