#include "grace/files/json_cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "grace/base/rng.h"
#include "grace/files/json_file.h"

namespace grace {
namespace {

using testing::ElementsAre;

TEST(AJsonCursor, WalksThroughObjectsAndLists) {
  JsonCursor at(R"( { "a" : 12 , "b":[ true, null ,"x\"y"], "c":{}, "d":[[1, -2],[3,4]], "e":-7 } )");
  std::string_view key;
  ASSERT_TRUE(at.enter('{'));
  ASSERT_TRUE(at.next_key(key));
  EXPECT_EQ(key, "a");
  EXPECT_EQ(at.integer(), 12);
  ASSERT_TRUE(at.next_key(key));
  ASSERT_TRUE(at.enter('['));
  ASSERT_TRUE(at.next_element());
  EXPECT_TRUE(at.boolean());
  ASSERT_TRUE(at.next_element());
  EXPECT_TRUE(at.null());
  ASSERT_TRUE(at.next_element());
  EXPECT_EQ(at.text(), "x\\\"y");
  EXPECT_FALSE(at.next_element());
  ASSERT_TRUE(at.next_key(key));
  at.skip();
  ASSERT_TRUE(at.next_key(key));
  std::vector<std::int32_t> rows;
  std::int64_t num_rows = 0, width = 0;
  at.rows(rows, num_rows, width);
  EXPECT_THAT(rows, ElementsAre(1, -2, 3, 4));
  EXPECT_EQ(num_rows, 2);
  EXPECT_EQ(width, 2);
  ASSERT_TRUE(at.next_key(key));
  EXPECT_EQ(at.integer(), -7);
  EXPECT_FALSE(at.next_key(key));
  EXPECT_TRUE(at.ok()) << at.problem();
  EXPECT_TRUE(at.at_end());
}

TEST(AJsonCursor, SaysWhatIsWrongAndStaysThere) {
  const auto problem_of_rows = [](const char* text) {
    JsonCursor at(text);
    std::vector<std::int32_t> rows;
    std::int64_t num_rows = 0, width = 0;
    at.rows(rows, num_rows, width);
    return std::string(at.problem());
  };
  EXPECT_EQ(problem_of_rows("[[1,2],[3]]"), "rows of unequal length");
  for (const char* text : {"[[1,2],[3.5,1]]", "[[1,2],[\"a\",1]]", "[[1,2],[1,2", "[[1,,2]]", "[[1 2]]",
                           "[[-]]", "[1]", "[[1],]"})
    EXPECT_NE(problem_of_rows(text), "") << text;
  EXPECT_EQ(problem_of_rows("[]"), "");
  EXPECT_EQ(problem_of_rows("[[],[ ]]"), "");
  JsonCursor number("123456789012345678901234567890");
  number.integer();
  EXPECT_EQ(number.problem(), "not a whole number of 64 bits");
  const std::string brackets = std::string(100, '[') + std::string(100, ']');
  JsonCursor deep(brackets);
  deep.skip();
  EXPECT_EQ(deep.problem(), "nested deeper than 64");
  EXPECT_FALSE(deep.enter('['));
}

TEST(AJsonCursor, NumbersThatDoNotFitBecomeTheNearestThatDoes) {
  JsonCursor at("[[99999999999999999999, -99999999999999999999]]");
  std::vector<std::int32_t> rows;
  std::int64_t num_rows = 0, width = 0;
  at.rows(rows, num_rows, width);
  EXPECT_THAT(rows, ElementsAre(2147483647, -2147483648));
}

// Takes at least what a full parser takes.
TEST(AJsonCursor, SkipsWhateverIsJson) {
  Rng rng(9);
  const std::string text = R"({"a":[1,2.5e-3,{"b":[]}],"c":"d\\","e":[[],{}],"f":null,"g":false})";
  for (int repeat = 0; repeat < 50'000; ++repeat) {
    std::string changed = text;
    for (std::uint64_t i = 0, count = rng.below(3); i < count; ++i)
      changed[rng.below(changed.size())] = "{}[],:\"\\01e-.ntfabc "[rng.below(20)];
    JsonCursor at(changed);
    at.skip();
    const bool skipped = at.ok() && at.at_end();
    EXPECT_TRUE(skipped || !Json::accept(changed)) << changed;
  }
}

}  // namespace
}  // namespace grace
