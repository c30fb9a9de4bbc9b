#include "grace/files/json_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::HasSubstr;

std::string message_of(std::string_view text) {
  const auto json = parse_json(text, "x");
  return json.ok() ? "ok" : json.error().message;
}

TEST(AJsonText, KeepsKeysInOrderAndValuesOfEveryKind) {
  const std::string text = R"({"z":[1,-2,2.5,true,null,"é"],"a":{"k":{}},"e":[]})";
  EXPECT_EQ(parse_json(text, "x").value().dump(), text);
  EXPECT_EQ(parse_json("18446744073709551615", "x").value().get<std::uint64_t>(), UINT64_MAX);
}

TEST(AJsonText, IsRefusedWithThePlace) {
  EXPECT_THAT(message_of(""), HasSubstr("x: not JSON at byte"));
  EXPECT_EQ(message_of("{\"a\":}"), "x: not JSON at byte 6");
  EXPECT_THAT(message_of("{} {}"), HasSubstr("x: not JSON at byte 4"));
  EXPECT_THAT(message_of("[1e999]"), HasSubstr("x: not JSON"));
  EXPECT_THAT(message_of("[\"\xff\"]"), HasSubstr("x: not JSON"));
  EXPECT_THAT(message_of("[NaN]"), HasSubstr("x: not JSON"));
  EXPECT_EQ(message_of(R"({"a":{"k":1,"k":2}})"), "x: key \"k\" occurs twice in one object");
  EXPECT_EQ(message_of(R"([{"k":1},{"k":{"k":2}}])"), "ok");
  EXPECT_EQ(message_of(std::string(64, '[') + std::string(64, ']')), "ok");
  EXPECT_EQ(message_of(std::string(65, '[') + std::string(65, ']')), "x: nested deeper than 64");
  EXPECT_EQ(message_of(std::string(1000000, '[')), "x: nested deeper than 64");
}

TEST(AJsonText, OfTheCorpusIsAcceptedOnlyWhenItsNameSaysSo) {
  int seen = 0;
  for (const auto& file : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/json_file")) {
    ++seen;
    const bool good = file.path().filename().string().starts_with("good");
    EXPECT_EQ(read_json(file.path()).ok(), good) << file.path();
  }
  EXPECT_GE(seen, 4);
}

TEST(AJsonFile, GivesBackWhatWasWritten) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / ("grace_round_trip" + std::to_string(::getpid()) + ".json");
  const Json json = {{"b", {1, 2}}, {"a", "x"}};
  ASSERT_TRUE(write_json(path, json, -1).ok());
  EXPECT_EQ(read_text(path).value(), "{\"b\":[1,2],\"a\":\"x\"}\n");
  ASSERT_TRUE(write_json(path, json).ok());
  EXPECT_EQ(read_json(path).value(), json);
  EXPECT_EQ(read_json("/nowhere/x").error().kind, ErrorKind::kIo);
}

TEST(AField, IsReadWithinItsTypeAndBounds) {
  const Json object = {{"i", 7}, {"f", 2.5}, {"b", true}, {"s", "x"}, {"n", nullptr}, {"u", UINT64_MAX}};
  EXPECT_EQ(get_int(object, "i", "p", 0, 7).value(), 7);
  EXPECT_EQ(get_number(object, "i", "p").value(), 7);
  EXPECT_EQ(get_number(object, "f", "p").value(), 2.5);
  EXPECT_TRUE(get_bool(object, "b", "p").value());
  EXPECT_EQ(get_string(object, "s", "p").value(), "x");
  EXPECT_EQ(get_int(object, "i", "p", 0, 6).error().message, "p: i is 7, outside [0, 6]");
  EXPECT_EQ(get_int(object, "u", "p", 0, INT64_MAX).error().message,
            "p: u is 18446744073709551615, outside [0, 9223372036854775807]");
  EXPECT_EQ(get_int(object, "f", "p", 0, 6).error().message, "p: f is 2.5, not a whole number");
  EXPECT_EQ(get_int(object, "x", "p", 0, 6).error().message, "p: x is missing");
  EXPECT_EQ(get_number(object, "n", "p").error().message, "p: n is null, not a number");
  EXPECT_EQ(get_bool(object, "i", "p").error().message, "p: i is 7, not true or false");
  EXPECT_EQ(get_string(object, "b", "p").error().message, "p: b is true, not a string");
  EXPECT_EQ(get_string(Json(3), "b", "p").error().message, "p: 3 is not an object");
}

TEST(AShownValue, FitsOnOneShortLine) {
  EXPECT_EQ(shown(Json("a\nb")), "\"a\\nb\"");
  EXPECT_LT(shown(Json(std::string(1000, 'x'))).size(), 100U);
  EXPECT_EQ(shown(Json(std::vector<int>(9))), "a list of 9");
  EXPECT_NO_THROW(shown(Json("\xff")));
}

}  // namespace
}  // namespace grace
