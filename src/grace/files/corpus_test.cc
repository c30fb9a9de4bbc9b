// The corpora of the containers' fuzz targets: what they hold is read, or refused in one line.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "grace/files/gguf.h"
#include "grace/files/json_cursor.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/files/npy.h"
#include "grace/files/pickle.h"
#include "grace/files/torch_file.h"
#include "grace/files/zip.h"

namespace grace {
namespace {

using Bytes = std::span<const std::byte>;

// What is wrong with a file, or nothing.
using Parse = std::function<std::string(Bytes)>;

template <typename T>
std::string message_of(const Result<T>& result) {
  return result.ok() ? "" : result.error().message;
}

void replay(const std::string& name, const Parse& parse) {
  int count = 0, refused = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(GRACE_SOURCE_DIR) / "fuzz/corpus" / name)) {
    SCOPED_TRACE(entry.path().string());
    const auto file = read_text(entry.path());
    ASSERT_TRUE(file.ok()) << file.error().message;
    const std::string message = parse(std::as_bytes(std::span(file.value().data(), file.value().size())));
    EXPECT_EQ(message.find('\n'), std::string::npos);
    ++count;
    refused += message.empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 0) << name;
  EXPECT_GT(count, refused) << name;
}

TEST(ACorpus, OfArraysIsReadOrRefused) {
  replay("npy", [](Bytes bytes) {
    const auto array = parse_npy(bytes, "x");
    return array.ok() ? "" : message_of(parse_npz(bytes, "x"));
  });
}

TEST(ACorpus, OfZipArchivesIsReadOrRefused) {
  replay("zip", [](Bytes bytes) {
    const auto entries = parse_zip(bytes, "x");
    if (!entries.ok()) return entries.error().message;
    for (const ZipEntry& entry : entries.value())
      if (const auto content = inflate(entry, "x"); !content.ok()) return content.error().message;
    return std::string();
  });
}

TEST(ACorpus, OfPicklesIsReadOrRefused) {
  replay("pickle", [](Bytes bytes) { return message_of(Pickle::parse(bytes, "x")); });
}

TEST(ACorpus, OfGgufFilesIsReadOrRefused) {
  replay("gguf", [](Bytes bytes) { return message_of(parse_gguf(bytes, "x")); });
}

TEST(ACorpus, OfJsonIsWalkedThroughWhereverItIsJson) {
  replay("json_cursor", [](Bytes bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    JsonCursor at(text);
    at.skip();
    const bool skipped = at.ok() && at.at_end();
    EXPECT_TRUE(skipped || !parse_json(text, "x").ok());
    return std::string(skipped ? "" : "refused");
  });
}

TEST(ACorpus, OfTorchsPicklesIsReadOrRefused) {
  replay("torch_file", [](Bytes bytes) {
    const std::vector<std::pair<std::string, std::string>> members = {
        {"a/data.pkl", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())},
        {"a/data/0", std::string(64, '\1')}};
    const std::string file = zip_bytes(members);
    const auto torch = TorchFile::parse(std::as_bytes(std::span(file.data(), file.size())), "x");
    if (!torch.ok()) return torch.error().message;
    return message_of(torch.value().tensor(torch.value().root(), "x"));
  });
}

}  // namespace
}  // namespace grace
