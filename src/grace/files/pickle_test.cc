#include "grace/files/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::span<const std::byte> bytes_of_text(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string message_of(std::string_view bytes) {
  const auto parsed = Pickle::parse(bytes_of_text(bytes), "x.pkl");
  return parsed.ok() ? "no error" : parsed.error().message;
}
using namespace std::string_literals;
using namespace std::string_view_literals;

// Written by Python: tools/make_interop_fixtures.py.
TEST(APickle, OfEveryProtocolGivesTheSameTree) {
  for (int protocol = 0; protocol <= 5; ++protocol) {
    SCOPED_TRACE(protocol);
    const std::filesystem::path path = std::filesystem::path(GRACE_SOURCE_DIR) /
                                       "tests/fixtures/interop/pickle" /
                                       ("protocol_" + std::to_string(protocol) + ".pkl");
    const auto file = read_text(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    const auto parsed = Pickle::parse(bytes_of_text(file.value()), "x");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    const PickleValue root = parsed.value().root();
    const PickleValue counter = root.find("counters")->at(0);
    ASSERT_EQ(counter.size(), 2U);
    EXPECT_EQ(counter.key(0).integer(), 3);
    EXPECT_EQ(counter.value(0).integer(), 40);
    EXPECT_EQ(counter.value(1).integer(), 2);
    EXPECT_EQ(root.find("default")->find("a")->integer(), 1);
    const PickleValue array = *root.find("array");
    ASSERT_TRUE(array.is(PickleKind::kArray));
    EXPECT_EQ(array.at(0).at(1).integer(), 3);
    EXPECT_EQ(array.dtype(), Dtype::kI32);
    std::int32_t last = 0;
    std::memcpy(&last, array.text().data() + 20, 4);
    EXPECT_EQ(last, 5);
    EXPECT_EQ(root.find("scalar")->number(), 0.5);
    EXPECT_EQ(root.find("big")->integer(), (1LL << 62) + 5);
    EXPECT_EQ(root.find("negative")->integer(), -(1LL << 40));
    EXPECT_EQ(root.find("bytes")->text(), "\x00\xff"sv);
    EXPECT_EQ(root.find("set")->at(0).integer(), 5);
    EXPECT_TRUE(root.find("truth")->at(2).is(PickleKind::kNone));
    EXPECT_EQ(root.find("truth")->at(0).integer(), 1);
    EXPECT_EQ(root.find("long")->size(), 3000U);
    EXPECT_EQ(root.find("long")->at(2999).integer(), 2999);
  }
}

TEST(APickle, CountsWhatItIsToldToSkip) {
  const auto file =
      read_text(std::filesystem::path(GRACE_SOURCE_DIR) / "tests/fixtures/interop/pickle/protocol_2.pkl");
  ASSERT_TRUE(file.ok());
  const auto parsed = Pickle::parse(bytes_of_text(file.value()), "x", {.skipped = {"long"}});
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const PickleValue skipped = *parsed.value().root().find("long");
  EXPECT_TRUE(skipped.is(PickleKind::kSkipped));
  EXPECT_EQ(skipped.size(), 3000U);
}

TEST(APickle, CallsNothingAndNamesWhatItWouldHaveCalled) {
  EXPECT_THAT(
      message_of("cos\nsystem\n(S'rm -rf /'\ntR."),
      AllOf(HasSubstr("x.pkl: pickle byte 0: names \"os.system\""), HasSubstr("nothing is ever called")));
  EXPECT_THAT(message_of("\x80\x04\x8c\x08"
                         "builtins\x8c\x04"
                         "eval\x93\x8c\x01x\x85R."),
              HasSubstr("\"builtins.eval\""));
  EXPECT_THAT(message_of("(S'ls'\nios\nsystem\n."), HasSubstr("would make an object of \"os.system\""));
  EXPECT_THAT(message_of("\x80\x02"
                         "cbuiltins\nint\n)\x81."),
              HasSubstr("would make an object"));
  EXPECT_THAT(message_of("cbuiltins\nint\n(S'1'\ntR."), HasSubstr("would call builtins.int"));
  EXPECT_THAT(message_of("ctorch\nFloatStorage\n)R."), HasSubstr("would call torch.FloatStorage"));
  EXPECT_THAT(message_of("K\x01)R."), HasSubstr("would call 1"));
  EXPECT_THAT(message_of("\x82\x01."), HasSubstr("opcode 0x82"));
  EXPECT_THAT(message_of("\x97."), HasSubstr("opcode 0x97"));
  EXPECT_THAT(message_of("Pid\n."), HasSubstr("opcode 0x50"));
}

TEST(APickle, IsRefusedWithWhatIsWrong) {
  EXPECT_THAT(message_of(""), HasSubstr("pickle byte 0: cut short"));
  EXPECT_THAT(message_of("."), HasSubstr("ends with 0 values"));
  EXPECT_THAT(message_of("NN."), HasSubstr("ends with 2 values"));
  EXPECT_THAT(message_of("a."), HasSubstr("empty stack"));
  EXPECT_THAT(message_of("e."), HasSubstr("no mark"));
  EXPECT_THAT(message_of("N(e."), HasSubstr("appends to None"));
  EXPECT_THAT(message_of("}(K\x01u."), HasSubstr("a key without a value"));
  EXPECT_THAT(message_of("h\x05."), HasSubstr("recalls value 5"));
  EXPECT_THAT(message_of("Nr\xff\xff\xff\x7f."), HasSubstr("remembers value 2147483647"));
  EXPECT_THAT(message_of("X\xff\xff\xff\x7f."), HasSubstr("cut short"));
  EXPECT_THAT(message_of("\x80\x09."), HasSubstr("protocol 9 is outside [0, 5]"));
  EXPECT_THAT(message_of("\x95\xff\xff\xff\xff\xff\xff\xff\xff."), HasSubstr("a frame of"));
  EXPECT_THAT(message_of("\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01."sv), HasSubstr("9 bytes, at most 8"));
  EXPECT_THAT(message_of("I12x\n."), HasSubstr("no whole number"));
  EXPECT_THAT(message_of(std::string(300, '(')), HasSubstr("nested deeper than 256"));
}

TEST(APickle, ThatCopiesAListOverAndOverIsRefused) {
  // A list of 1,000 pairs, remembered, and made an OrderedDict 1,000 times.
  std::string bytes = "](";
  for (int i = 0; i < 1000; ++i) bytes += "NN\x86";
  bytes += "eq";
  bytes += '\0';
  bytes += '0';
  for (int i = 0; i < 1000; ++i) bytes += "ccollections\nOrderedDict\nh"s + '\0' + "\x85R0"s;
  EXPECT_THAT(message_of(bytes + "N."), HasSubstr("copies the same values over and over"));
}

TEST(APickle, SurvivesAnyByteTurned) {
  Rng rng(5);
  const auto file =
      read_text(std::filesystem::path(GRACE_SOURCE_DIR) / "tests/fixtures/interop/pickle/protocol_4.pkl");
  ASSERT_TRUE(file.ok());
  const std::string whole = file.value().substr(0, 700);
  for (int repeat = 0; repeat < 20'000; ++repeat) {
    std::string broken = whole;
    for (std::uint64_t i = 0, count = 1 + rng.below(3); i < count; ++i)
      broken[rng.below(broken.size())] = static_cast<char>(rng.below(256));
    broken[rng.below(broken.size())] = '.';
    (void)Pickle::parse(bytes_of_text(broken), "x").ok();
  }
}

TEST(APickledDict, RefusesAKeyThatStandsTwice) {
  const auto parsed = Pickle::parse(bytes_of_text("}(X\x01\0\0\0aK\x01X\x01\0\0\0aK\x02u."sv), "x");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_THAT(parsed.value().root().field("a", "x.pkl").error().message,
              HasSubstr("x.pkl: key a occurs twice"));
  EXPECT_THAT(parsed.value().root().field("b", "x.pkl").error().message, HasSubstr("b is missing"));
}

}  // namespace
}  // namespace grace
