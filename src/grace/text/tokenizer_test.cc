#include "grace/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::HasSubstr;

const std::filesystem::path kSource = GRACE_SOURCE_DIR;
const std::filesystem::path kFixtures = kSource / "tests/fixtures/tokenizer";
const std::filesystem::path kData = kSource / "../shared/data";

Json fixture(const std::string& name) { return read_json(kFixtures / name).value(); }

Tokenizer tokenizer_of(const Json& json) {
  Result<Tokenizer> tokenizer = Tokenizer::parse(json.dump(), "here");
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.error().message;
  return std::move(tokenizer).value();
}

std::vector<std::int32_t> ids_of(const Json& json) { return json.get<std::vector<std::int32_t>>(); }

// What the reference made of each text, and of ids that do not form UTF-8.
void expect_as_the_reference(const Tokenizer& tokenizer, const Json& entry) {
  for (const Json& test : entry["cases"]) {
    const std::string text = test["text"];
    SCOPED_TRACE(entry["name"].get<std::string>() + ": " + text);
    const std::vector<std::int32_t> ids = tokenizer.encode(text).value();
    ASSERT_EQ(ids, ids_of(test["ids"]));
    ASSERT_EQ(tokenizer.decode(ids).value(), test.value("decoded", text));
    if (!test.contains("ids_with_special")) continue;
    ASSERT_EQ(tokenizer.encode(text, true).value(), ids_of(test["ids_with_special"]));
    ASSERT_EQ(tokenizer.decode(ids, true).value(), test["decoded_without_special"].get<std::string>());
  }
  if (!entry.contains("decodes")) return;
  for (const Json& test : entry["decodes"]) {
    SCOPED_TRACE(entry["name"].get<std::string>() + ": " + test["ids"].dump());
    ASSERT_EQ(tokenizer.decode(ids_of(test["ids"])).value(), test["decoded"].get<std::string>());
  }
}

std::uint64_t fnv1a(const std::vector<std::int32_t>& ids) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::int32_t id : ids)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<std::uint32_t>(id) >> shift & 0xFF)) * 1099511628211u;
  return hash;
}

TEST(ATokenizer, AgreesWithTheReferenceOnEveryComponent) {
  const Json tiny = fixture("tiny.json");
  for (const Json& entry : fixture("cases.json")) {
    Json patched = tiny;
    for (const auto& [key, value] : entry["patch"].items()) patched[key] = value;
    expect_as_the_reference(tokenizer_of(patched), entry);
  }
}

TEST(ATokenizer, AgreesWithTheReferenceOnTheDemoModel) {
  const Tokenizer tokenizer = Tokenizer::load(kSource / "models/demo/tokenizer.json").value();
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.id_of("<|endoftext|>"), 0);
  expect_as_the_reference(tokenizer, fixture("demo.json"));
}

TEST(ATokenizer, AgreesWithTheReferenceOnWholeFiles) {
  if (!std::filesystem::exists(kData)) GTEST_SKIP() << "no shared data beside the source";
  for (const Json& entry : fixture("real.json")) {
    const std::string name = entry["name"];
    if (name == "deepseek") continue;  // has to be made first: tests/deepseek_tokenizer_test.py
    const Tokenizer tokenizer = Tokenizer::load(kData / "tokenizers" / name / "tokenizer.json").value();
    expect_as_the_reference(tokenizer, entry);
    for (const auto& [file, expected] : entry["files"].items()) {
      SCOPED_TRACE(name + ": " + file);
      const std::string text = read_text(kData / "text" / file).value();
      const std::vector<std::int32_t> ids = tokenizer.encode(text).value();
      EXPECT_EQ(ids.size(), expected["count"].get<std::size_t>());
      EXPECT_EQ(fnv1a(ids), std::stoull(expected["fnv1a"].get<std::string>(), nullptr, 16));
      EXPECT_EQ(tokenizer.decode(ids).value(), text);
    }
  }
}

TEST(ATokenizer, AgreesWithTheVectorsOfAnotherImplementation) {
  const std::filesystem::path folder = kData / "tokenizers/qwen3";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no shared data beside the source";
  const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json").value();
  const std::string inputs = read_text(folder / "ggml-vocab-qwen2.gguf.inp").value();
  std::istringstream outputs(read_text(folder / "ggml-vocab-qwen2.gguf.out").value());
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::string line;
  int count = 0;
  for (std::size_t at = 0; at < inputs.size() && std::getline(outputs, line); ++count) {
    const std::size_t end = std::min(inputs.find(separator, at), inputs.size());
    std::istringstream numbers(line);
    const std::vector<std::int32_t> expected{std::istream_iterator<std::int32_t>(numbers), {}};
    const std::string text = inputs.substr(at, end - at);
    EXPECT_EQ(tokenizer.encode(text).value(), expected) << count << ": " << text;
    at = end + separator.size();
  }
  EXPECT_GT(count, 40);
}

TEST(ATokenizer, SaysWhichByteIsNotUtf8) {
  const Tokenizer tokenizer = tokenizer_of(fixture("tiny.json"));
  const Result<std::vector<std::int32_t>> ids = tokenizer.encode("seventeen bytes, \xFF!");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().kind, ErrorKind::kInvalidInput);
  EXPECT_EQ(ids.error().message, "byte 17 is not UTF-8");
}

TEST(ATokenizer, RefusesIdsItDoesNotHave) {
  const Tokenizer tokenizer = tokenizer_of(fixture("tiny.json"));
  const std::int32_t size = tokenizer.vocab_size();
  for (const std::int32_t id : {-1, size}) {
    const Result<std::string> text = tokenizer.decode(std::vector<std::int32_t>{0, id});
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.error().message,
              "token id " + std::to_string(id) + " is outside [0, " + std::to_string(size) + ")");
  }
  EXPECT_EQ(tokenizer.id_of("no such token"), -1);
}

// Words are remembered within a long text, and not at all in a short one.
TEST(ATokenizer, EncodesARepeatedWordAsTheFirstTime) {
  const Tokenizer tokenizer = tokenizer_of(fixture("tiny.json"));
  const Json demo = fixture("demo.json");
  std::string text;
  std::vector<std::int32_t> expected;
  for (int i = 0; i < 9; ++i) {
    for (const Json& test : demo["cases"]) {
      const std::string part = test["text"].get<std::string>() + "<|end|>";  // across which nothing is merged
      text += part;
      const std::vector<std::int32_t> ids = tokenizer.encode(part).value();
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
  }
  ASSERT_GT(text.size(), 16u * 1024);
  EXPECT_EQ(tokenizer.encode(text).value(), expected);
}

TEST(ATokenizer, SharesNothingBetweenThreadsThatUseIt) {
  const Tokenizer tokenizer = tokenizer_of(fixture("tiny.json"));
  const std::string text = "Hello, world! \xE4\xBD\xA0\xE5\xA5\xBD <|end|> 123";
  const std::vector<std::int32_t> expected = tokenizer.encode(text).value();
  std::vector<std::vector<std::int32_t>> found(7);
  std::vector<std::thread> threads;
  for (auto& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text).value(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(found, testing::Each(expected));
}

// A megabyte of what makes careless tokenizers quadratic; the test's own time limit is the bound.
TEST(ATokenizer, TakesLongRunsInItsStride) {
  const Json tiny = fixture("tiny.json");
  std::vector<Tokenizer> tokenizers;
  for (const Json& entry : fixture("cases.json")) {
    const std::string name = entry["name"];
    if (name != "as it is" && name != "qwen" && name != "o200k" && name != "whole text" && name != "NFKC")
      continue;
    Json patched = tiny;
    for (const auto& [key, value] : entry["patch"].items()) patched[key] = value;
    tokenizers.push_back(tokenizer_of(patched));
  }
  ASSERT_EQ(tokenizers.size(), 5u);
  constexpr std::size_t kBytes = 1 << 20;
  for (const std::string unit :
       {" ", "a", "the", "1", "\n", " \n", "\u0301\u0323", "\u3042", "<", "<mask", "<R> ", "'", "\u0338"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    for (const Tokenizer& tokenizer : tokenizers) EXPECT_TRUE(tokenizer.encode(text).ok()) << unit;
  }
}

struct Refusal {
  std::string pointer;  // where tiny.json is changed
  std::string value;    // to what
  ErrorKind kind;
  std::string message;
};

class ARefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ARefusal, NamesWhatItMeets) {
  Json json = fixture("tiny.json");
  json[Json::json_pointer(GetParam().pointer)] = Json::parse(GetParam().value);
  const Result<Tokenizer> tokenizer = Tokenizer::parse(json.dump(), "t.json");
  ASSERT_FALSE(tokenizer.ok()) << GetParam().value;
  EXPECT_EQ(tokenizer.error().kind, GetParam().kind) << tokenizer.error().message;
  EXPECT_EQ(tokenizer.error().message, GetParam().message);
}

std::string split_with(const std::string& pattern) {
  return Json{
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}}
      .dump();
}

INSTANTIATE_TEST_SUITE_P(
    Components, ARefusal,
    testing::Values(
        Refusal{"/model", R"({"type":"Unigram","vocab":[]})", ErrorKind::kUnsupported,
                "t.json: model: type Unigram"},
        Refusal{"/model/byte_fallback", "true", ErrorKind::kUnsupported, "t.json: model: byte_fallback"},
        Refusal{"/model/dropout", "0.1", ErrorKind::kUnsupported, "t.json: model: dropout"},
        Refusal{"/model/end_of_word_suffix", "\"</w>\"", ErrorKind::kUnsupported,
                "t.json: model: end_of_word_suffix"},
        Refusal{"/model/unk_token", "\"?!\"", ErrorKind::kInvalidInput,
                "t.json: model: unk_token `?!` is not in the vocabulary"},
        Refusal{"/model/vocab/new", "5", ErrorKind::kInvalidInput, "t.json: model: two tokens have id 5"},
        Refusal{"/model/vocab/new", "-5", ErrorKind::kInvalidInput,
                "t.json: model: token `new` has id -5, outside [0, 2147483646]"},
        Refusal{"/model/vocab/new", "\"x\"", ErrorKind::kInvalidInput,
                "t.json: model: token `new` has id \"x\", outside [0, 2147483646]"},
        Refusal{"/model/merges/0", R"(["t","zz"])", ErrorKind::kInvalidInput,
                "t.json: model: merge 0: `zz` is not in the vocabulary"},
        Refusal{"/model/merges/3", R"("a b c")", ErrorKind::kInvalidInput,
                "t.json: model: merge 3 is no pair of tokens"},
        Refusal{"/normalizer", R"({"type":"BertNormalizer"})", ErrorKind::kUnsupported,
                "t.json: normalizer: type BertNormalizer"},
        Refusal{"/pre_tokenizer", R"({"type":"Metaspace"})", ErrorKind::kUnsupported,
                "t.json: pre_tokenizer: type Metaspace"},
        Refusal{"/pre_tokenizer", R"({"kind":"x"})", ErrorKind::kInvalidInput,
                "t.json: pre_tokenizer: no `type`"},
        Refusal{"/decoder", R"({"type":"WordPiece"})", ErrorKind::kUnsupported,
                "t.json: decoder: type WordPiece"},
        Refusal{"/post_processor", R"({"type":"BertProcessing"})", ErrorKind::kUnsupported,
                "t.json: post_processor: type BertProcessing"},
        Refusal{"/added_tokens/0/id", "9999", ErrorKind::kInvalidInput,
                "t.json: added_tokens: token `<|bos|>` has id 9999, but the vocabulary gives it 0"},
        Refusal{"/pre_tokenizer", split_with("a&&b[x&&y]"), ErrorKind::kUnsupported,
                "t.json: pre_tokenizer: pattern `a&&b[x&&y]`: `&&` at byte 6"},
        Refusal{"/pre_tokenizer", split_with("\\w+"), ErrorKind::kUnsupported,
                "t.json: pre_tokenizer: pattern `\\w+`: `\\w` at byte 0"},
        Refusal{"/pre_tokenizer", split_with("a{1,3}+"), ErrorKind::kUnsupported,
                "t.json: pre_tokenizer: pattern `a{1,3}+`: `}+` at byte 6"},
        Refusal{"/pre_tokenizer", split_with("(?m:.)"), ErrorKind::kUnsupported,
                "t.json: pre_tokenizer: pattern `(?m:.)`: `(?m` at byte 0"},
        Refusal{"/pre_tokenizer", split_with("(a"), ErrorKind::kInvalidInput,
                "t.json: pre_tokenizer: pattern `(a`: missing closing parenthesis"}));

TEST(ATokenizer, SaysWhereAPatternDoesNotComeToAnEnd) {
  Json json = fixture("tiny.json");
  json["pre_tokenizer"] = Json::parse(split_with("(?:a|aa|a.)+[!?]"));
  const Result<std::vector<std::int32_t>> ids = tokenizer_of(json).encode(std::string(200, 'a'));
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(ids.error().message,
              HasSubstr("byte 0: the tokenizer's pattern gives up here after 10000000 steps"));
}

TEST(ATokenizer, ReadsOrRefusesEveryFileOfTheCorpusInOneLine) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kSource / "fuzz/corpus/tokenizer_json")) {
    SCOPED_TRACE(file.path().filename().string());
    const Result<Tokenizer> tokenizer = Tokenizer::load(file.path());
    const bool is_good = file.path().filename().string().starts_with("good");
    EXPECT_EQ(tokenizer.ok(), is_good) << (tokenizer.ok() ? "" : tokenizer.error().message);
    if (!tokenizer.ok()) {
      EXPECT_EQ(tokenizer.error().message.find('\n'), std::string::npos);
    }
    ++count;
  }
  EXPECT_GT(count, 5);
}

TEST(ATokenizer, EncodesOrRefusesEveryTextOfTheCorpus) {
  const Tokenizer tokenizer = tokenizer_of(fixture("tiny.json"));
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kSource / "fuzz/corpus/encode")) {
    SCOPED_TRACE(file.path().filename().string());
    const std::string text = read_text(file.path()).value();
    EXPECT_EQ(tokenizer.encode(text).ok(), find_invalid_utf8(text) == std::string::npos);
    ++count;
  }
  EXPECT_GT(count, 3);
}

}  // namespace
}  // namespace grace
