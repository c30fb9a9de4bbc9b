#include "grace/files/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
void put_text(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}
// A file of one key and one f32 tensor [2, 3], whose fields may be lied about.
struct Parts {
  std::uint32_t version = 3, key_type = 4, tensor_type = 0, dimensions = 2;
  std::uint64_t tensors = 1, extent = 3, offset = 0;
  std::string second_key;
};
std::string file_of(const Parts& parts) {
  std::string out = "GGUF";
  put(out, parts.version);
  put(out, parts.tensors);
  put<std::uint64_t>(out, parts.second_key.empty() ? 1 : 2);
  put_text(out, "answer");
  put(out, parts.key_type);
  put<std::uint32_t>(out, 42);
  if (!parts.second_key.empty()) {
    put_text(out, parts.second_key);
    put<std::uint32_t>(out, 4);
    put<std::uint32_t>(out, 64);
  }
  put_text(out, "t");
  put(out, parts.dimensions);
  put(out, parts.extent);
  put<std::uint64_t>(out, 2);
  put(out, parts.tensor_type);
  put(out, parts.offset);
  const std::size_t alignment = parts.second_key == "general.alignment" ? 64 : 32;
  out.resize((out.size() + alignment - 1) / alignment * alignment);
  for (int i = 0; i < 6; ++i) put<float>(out, static_cast<float>(i));
  return out;
}
std::string message_of(const std::string& file) {
  const auto parsed = parse_gguf(bytes_of_text(file), "x.gguf");
  return parsed.ok() ? "no error" : parsed.error().message;
}

TEST(AGgufFile, GivesItsKeysAndTensors) {
  for (const char* key : {"", "general.alignment"}) {
    Parts parts;
    parts.second_key = key;
    const std::string file = file_of(parts);
    const auto parsed = parse_gguf(bytes_of_text(file), "x.gguf");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(std::get<std::int64_t>(parsed.value().metadata.at("answer")), 42);
    const TensorView& tensor = parsed.value().tensors.at("t");
    EXPECT_THAT(tensor.shape, ElementsAre(2, 3));
    float last = 0;
    std::memcpy(&last, tensor.bytes.data() + 20, sizeof(last));
    EXPECT_EQ(last, 5);
  }
}

TEST(AGgufFile, LeavesOutQuantisedTensorsByName) {
  Parts parts;
  parts.tensor_type = 12;
  const std::string file = file_of(parts);
  const auto parsed = parse_gguf(bytes_of_text(file), "x.gguf");
  ASSERT_TRUE(parsed.ok());
  EXPECT_THAT(parsed.value().quantised, ElementsAre("t"));
}

TEST(AGgufFile, IsRefusedWithWhatIsWrong) {
  EXPECT_THAT(message_of("GGML"), HasSubstr("does not begin with GGUF"));
  Parts parts;
  parts.version = 1;
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("GGUF version 1 is outside [2, 3]"));
  parts = {};
  parts.key_type = 13;
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("a value of type 13"));
  parts = {};
  parts.extent = 4;
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("tensor \"t\": F32 [2, 4]"));
  parts.extent = std::uint64_t{1} << 62;
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("reaches over the file's"));
  parts = {};
  parts.offset = ~std::uint64_t{0};
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("reaches over the file's"));
  parts = {};
  parts.dimensions = 9;
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("9 dimensions, at most 4"));
  parts = {};
  parts.tensors = std::uint64_t{1} << 60;
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("do not fit"));
  parts = {};
  parts.second_key = "answer";
  EXPECT_THAT(message_of(file_of(parts)), HasSubstr("key \"answer\" occurs twice"));
  const std::string whole = file_of({});
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(message_of(whole.substr(0, length)), "no error") << length;
}

}  // namespace
}  // namespace grace
