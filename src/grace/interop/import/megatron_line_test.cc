#include "grace/interop/import/megatron_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string message_of(std::string_view text) {
  MegatronLine line;
  const Status status = parse_megatron_line(text, "t.jsonl:1", line);
  return status.ok() ? "" : status.error().message;
}

TEST(AMegatronLine, GivesItsFieldsInAnyOrderAndSkipsTheRest) {
  MegatronLine line;
  ASSERT_TRUE(
      parse_megatron_line(
          R"({"hs_shape":[2,8],"top_indices": [[0, 3], [1,3]],"topk":2,"num_tokens":2,"layer":3,"block":"decoder","step":7,"x":{"y":[]}})",
          "t", line)
          .ok());
  EXPECT_EQ(line.step, 7);
  EXPECT_EQ(line.layer, 3);
  EXPECT_EQ(line.block, "decoder");
  EXPECT_THAT(line.ids, ElementsAre(0, 3, 1, 3));
  // The next line starts anew.
  ASSERT_TRUE(
      parse_megatron_line(R"({"step":8,"layer":0,"num_tokens":0,"topk":2,"top_indices":[]})", "t", line)
          .ok());
  EXPECT_TRUE(line.ids.empty());
  EXPECT_TRUE(line.block.empty());
}

TEST(AMegatronLine, IsRefusedWithWhatIsWrong) {
  EXPECT_THAT(message_of("[]"), HasSubstr("t.jsonl:1: not JSON at byte 0"));
  EXPECT_THAT(message_of(R"({"step":0})"), HasSubstr("layer is missing"));
  EXPECT_THAT(message_of(R"({"step":-1,"layer":0,"num_tokens":0,"topk":2,"top_indices":[]})"),
              HasSubstr("step is -1, outside [0, "));
  EXPECT_THAT(message_of(R"({"step":0,"layer":0,"num_tokens":0,"topk":0,"top_indices":[]})"),
              HasSubstr("topk is 0, outside [1, 1024]"));
  EXPECT_THAT(message_of(R"({"step":0,"layer":"a","num_tokens":0,"topk":2,"top_indices":[]})"),
              HasSubstr("layer: not a whole number"));
  EXPECT_THAT(message_of(R"({"step":0,"layer":0,"num_tokens":1,"num_valid":2,"topk":1,"top_indices":[[0]]})"),
              HasSubstr("num_valid is 2, outside [-1, 1]"));
  EXPECT_THAT(message_of(R"({"step":0,"layer":0,"num_tokens":0,"topk":2,"top_indices":[]}x)"),
              HasSubstr("not JSON"));
}

TEST(AMegatronLine, OfTheCorpusIsReadOrRefused) {
  int refused = 0, count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(GRACE_SOURCE_DIR) /
                                                               "fuzz/corpus/megatron_line")) {
    const auto file = read_text(entry.path());
    ASSERT_TRUE(file.ok());
    refused += message_of(file.value()).empty() ? 0 : 1;
    ++count;
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(count, refused);
}

}  // namespace
}  // namespace grace
