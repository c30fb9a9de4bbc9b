// Every importer against recordings of known content, and against what is wrong.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/files/zip.h"
#include "grace/interop/import/common.h"
#include "grace/interop/importer.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr char kNewline = '\n';
const std::filesystem::path kFixtures = std::filesystem::path(GRACE_SOURCE_DIR) / "tests/fixtures/interop";

class AnImport : public testing::Test {
 protected:
  AnImport() : folder_(std::filesystem::temp_directory_path() / fmt::format("grace_import_{}", ::getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~AnImport() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  std::filesystem::path out() const { return folder_ / "out"; }
  Result<ImportSummary> run(std::vector<std::filesystem::path> files,
                            const ImportOptions& options = {}) const {
    return import_files(files, out(), options);
  }
  std::string error_of(std::vector<std::filesystem::path> files, const ImportOptions& options = {}) const {
    const auto summary = run(std::move(files), options);
    EXPECT_FALSE(std::filesystem::exists(out()) && !summary.ok());
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      EXPECT_NE(entry.path().extension(), ".tmp");
    if (summary.ok()) return "no error";
    EXPECT_TRUE(summary.error().kind == ErrorKind::kInvalidInput ||
                summary.error().kind == ErrorKind::kUnsupported)
        << summary.error().message;
    EXPECT_EQ(summary.error().message.find('\n'), std::string::npos);
    return summary.error().message;
  }

  std::filesystem::path folder_;
};

ImportOptions with(int num_experts, int top_k = 0) {
  ImportOptions options;
  options.num_experts = num_experts;
  options.experts_per_token = top_k;
  return options;
}

constexpr std::string_view kLine =
    R"({"step":0,"stage":"pre_dispatch","block":"decoder","layer":3,"rank":0,"num_tokens":2,"topk":2,"top_indices":[[0,3],[1,3]]})";

TEST_F(AnImport, OfMegatronsTinyExampleCountsItsLoadAndPairs) {
  const auto summary = run({write("router_trace_rank0.jsonl", kLine)}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  const auto trace = read_trace(out());
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().decoder_layers, std::vector<int>{3});
  EXPECT_EQ(trace.value().topk_ids, (std::vector<std::uint16_t>{0, 3, 1, 3}));
  EXPECT_EQ(load_profile_of(trace.value()).loads[0], (std::vector<std::int64_t>{1, 1, 0, 2}));
}

TEST_F(AnImport, OfAnImatrixMadeFromTheOlderFormatIsRefused) {
  const auto file = MappedFile::open(kFixtures / "llama-imatrix/imatrix.gguf");
  ASSERT_TRUE(file.ok());
  std::string bytes(reinterpret_cast<const char*>(file.value().bytes().data()), file.value().bytes().size());
  constexpr std::string_view kName = "_exps.weight.counts";
  int changed = 0;
  for (std::size_t at = bytes.find(kName); at != std::string::npos; at = bytes.find(kName, at + 1), ++changed)
    bytes[at + kName.size() + 4 + 8] = 1;  // behind how many dimensions there are, and the first of them
  ASSERT_EQ(changed, 6);
  EXPECT_THAT(error_of({write("x.gguf", bytes)}),
              AllOf(HasSubstr("_exps.weight.counts: one count for all experts"), HasSubstr(".dat")));
}

// A .npy file of bytes, in base64, as vLLM returns it.
std::string array_of(std::vector<int> shape, const std::vector<std::uint8_t>& ids) {
  std::string header = fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {}, {}), }}",
                                   shape[0], shape[1], shape[2]);
  header.resize(117, ' ');
  std::string bytes = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + kNewline;
  for (const std::uint8_t id : ids) bytes += static_cast<char>(id);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      bits = bits << 8U | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      text += i + j > bytes.size() ? '=' : kDigits[bits >> (18U - 6U * static_cast<unsigned>(j)) & 63U];
  }
  return text;
}

using Ids = std::vector<std::uint16_t>;

TEST_F(AnImport, OfArraysTakesLayersOfZerosAsDenseUnlessATokenChoosesOne) {
  const auto two =
      write("two.json", fmt::format(R"({{"usage": {{"completion_tokens": 1}}, "routed_experts": "{}"}})",
                                    array_of({2, 3, 2}, {0, 0, 1, 2, 0, 3, 0, 0, 0, 3, 1, 2})));
  auto summary = run({two}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(summary.value().warnings, Contains(HasSubstr("taken as dense")));
  EXPECT_EQ(read_trace(out()).value().decoder_layers, (std::vector<int>{1, 2}));
  EXPECT_EQ(read_trace(out()).value().topk_ids, (Ids{1, 2, 0, 3, 0, 3, 1, 2}));

  const auto one =
      write("one.json", fmt::format(R"({{"usage": {{"completion_tokens": 1}}, "routed_experts": "{}"}})",
                                    array_of({2, 2, 1}, {0, 3, 0, 2})));
  summary = run({one}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(summary.value().warnings, testing::IsEmpty());
  EXPECT_EQ(read_trace(out()).value().decoder_layers, (std::vector<int>{0, 1}));
  ImportOptions options = with(4);
  options.dense_layers = 1;
  ASSERT_TRUE(run({one}, options).ok());
  EXPECT_EQ(read_trace(out()).value().decoder_layers, std::vector<int>{1});
  EXPECT_EQ(read_trace(out()).value().topk_ids, (Ids{3, 2}));
}

TEST_F(AnImport, OfArraysWithoutDenseLayersGoesByWhatItIsTold) {
  const auto file =
      write("x.json", fmt::format(R"({{"usage": {{"completion_tokens": 1}}, "routed_experts": "{}"}})",
                                  array_of({1, 2, 2}, {0, 1, 1, 2})));
  auto summary = run({file}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(summary.value().warnings, testing::IsEmpty());
  EXPECT_EQ(read_trace(out()).value().decoder_layers, (std::vector<int>{0, 1}));
  ImportOptions options = with(4);
  options.dense_layers = 3;  // of a writer that leaves them away
  ASSERT_TRUE(run({file}, options).ok());
  EXPECT_EQ(read_trace(out()).value().decoder_layers, (std::vector<int>{3, 4}));
}

TEST_F(AnImport, OfArraysRunsAPromptOnceHoweverManyAnswersThereAreToIt) {
  const std::string a = array_of({3, 1, 2}, {0, 1, 0, 2, 1, 3}), b = array_of({2, 1, 2}, {0, 1, 0, 2}),
                    c = array_of({2, 1, 2}, {2, 3, 0, 3}), d = array_of({3, 1, 2}, {2, 3, 0, 3, 1, 2});
  // Prompts of two tokens and two answers to each: of two tokens, one, one and two.
  const auto file = write(
      "x.json",
      fmt::format(
          R"({{"usage": {{"prompt_tokens": 4, "completion_tokens": 6}}, "choices": [)"
          R"({{"token_ids": [7, 7], "routed_experts": "{}"}}, {{"token_ids": [7], "routed_experts": "{}"}},)"
          R"({{"token_ids": [7], "routed_experts": "{}"}}, {{"token_ids": [7, 7], "routed_experts": "{}"}}]}})",
          a, b, c, d));
  const auto summary = run({file}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  const Trace trace = read_trace(out()).value();
  EXPECT_EQ(trace.topk_ids, (Ids{0, 1, 0, 2, 1, 3, 2, 3, 0, 3, 1, 2}));
  EXPECT_EQ(trace.sequence_offsets, (std::vector<std::int64_t>{0, 3, 5, 6}));
}

TEST_F(AnImport, OfArraysSaysWhereAnAnswerDoesNotTellItsPrompt) {
  const auto file =
      write("x.json", fmt::format(R"({{"routed_experts": "{}"}})", array_of({2, 1, 2}, {0, 1, 0, 2})));
  const auto summary = run({file}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(summary.value().warnings,
              Contains(HasSubstr("do not tell prompt from answer: all taken as prefill")));
}

TEST_F(AnImport, OfArraysWithoutLayersOrChoicesIsRefused) {
  for (const std::vector<int>& shape : {std::vector{2, 0, 2}, {2, 1, 0}}) {
    const auto file = write("x.json", fmt::format(R"([{{"routed_experts": "{}"}}])", array_of(shape, {})));
    EXPECT_THAT(error_of({file}),
                HasSubstr(fmt::format("x.json: [0]: routed_experts: 2 tokens of {} layers of {} choices",
                                      shape[1], shape[2])));
  }
}

TEST_F(AnImport, OfAListOfAnswersTakesOneAfterAnother) {
  const std::string answers = R"( [{"routed_experts": [[[0, 1]]]},
 {"routed_experts": [[[1, 2]], [[0, 2]]]} ] )";
  ASSERT_TRUE(run({write("x.json", answers)}, with(4)).ok());
  EXPECT_EQ(read_trace(out()).value().sequence_offsets, (std::vector<std::int64_t>{0, 1, 3}));
  std::filesystem::remove(out());
  const auto said = [&](std::string_view content) { return error_of({write("x.json", content)}, with(4)); };
  EXPECT_THAT(said(R"([{"routed_experts": [[[0, 1]]]}, {"routed_experts": [[[1, 1]]]}])"),
              HasSubstr("x.json: [1]"));
  EXPECT_THAT(said(R"([{"routed_experts": [[[0, 1]]]}, {"routed_experts": )"),
              HasSubstr("x.json: not JSON at byte"));
  EXPECT_THAT(said(R"([{"routed_experts": [[[0, 1]]]}] 5)"), HasSubstr("x.json: not JSON at byte"));
  EXPECT_THAT(said(R"([{"routed_experts": [[[0, 01]]]}])"), HasSubstr("x.json: [0]: not JSON at byte"));
}

// Sentinels, ids outside and twice.
TEST_F(AnImport, SkipsSentinelsAndRefusesBadIdsWithFileLineAndToken) {
  const auto line = [](const std::string& rows) {
    return fmt::format(R"({{"step":0,"layer":3,"num_tokens":2,"topk":2,"top_indices":{}}})", rows);
  };
  const auto path = write("t.jsonl", line("[[3,-1],[0,5]]"));
  const auto summary = run({path}, with(64));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ(summary.value().not_routed, 1);
  EXPECT_EQ(summary.value().assignments, 3);
  std::filesystem::remove(out());
  EXPECT_THAT(error_of({write("t.jsonl", "\n" + line("[[3,-1],[0,64]]"))}, with(64)),
              HasSubstr("t.jsonl:2: token 1, layer 3: expert 64 is outside [0, 64)"));
  EXPECT_THAT(error_of({write("t.jsonl", line("[[5,5],[0,1]]"))}, with(64)),
              HasSubstr("t.jsonl:1: token 0, layer 3: expert 5 is chosen twice"));
  EXPECT_THAT(error_of({write("t.jsonl", line("[[1,2],[-25536,1]]"))}, with(64)),
              HasSubstr("expert -25536 is outside [0, 64) (40000 in 16 bits?)"));
  EXPECT_THAT(error_of({write("t.jsonl", line("[[1,2],[3]]"))}),
              HasSubstr("t.jsonl:1: top_indices: rows of unequal length"));
  EXPECT_THAT(error_of({write("t.jsonl", line("[[1,2]]"))}),
              HasSubstr("top_indices has 1 rows, num_tokens is 2"));
  EXPECT_THAT(error_of({write("t.jsonl", line("[[1],[2]]"))}), HasSubstr("topk is 2"));
}

// Padding and warm-up rows.
TEST_F(AnImport, CountsNoPaddingAndNoWarmUp) {
  const std::string padded =
      R"({"step":1,"layer":0,"num_tokens":8,"num_valid":5,"topk":2,"top_indices":[[1,2],[1,3],[2,3],[1,2],[3,2],[0,1],[0,1],[0,1]]})";
  const std::string dummy =
      R"({"step":0,"dummy":true,"layer":0,"num_tokens":1,"topk":2,"top_indices":[[0,1]]})";
  const auto summary = run({write("t.jsonl", dummy + "\n" + padded + "\n")}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ(summary.value().assignments, 10);
  EXPECT_EQ(load_profile_of(read_trace(out()).value()).loads[0][0], 0);
}

TEST_F(AnImport, JoinsPipelineStagesAndTellsRanksOfTheSameTokens) {
  const auto line = [](int layer, const char* rows) {
    return fmt::format(R"({{"step":0,"layer":{},"num_tokens":1,"topk":2,"top_indices":{}}})", layer, rows);
  };
  const auto a = write("router_trace_rank0.jsonl", line(0, "[[0,1]]")),
             b = write("router_trace_rank1.jsonl", line(1, "[[2,3]]"));
  const auto joined = run({a, b}, with(4));
  ASSERT_TRUE(joined.ok()) << joined.error().message;
  EXPECT_EQ(read_trace(out()).value().topk_ids, (std::vector<std::uint16_t>{0, 1, 2, 3}));
  const auto c = write("router_trace_rank2.jsonl", line(0, "[[0,1]]"));
  const auto twice = run({a, c}, with(4));
  ASSERT_TRUE(twice.ok());
  EXPECT_EQ(twice.value().tokens, 2);
  EXPECT_THAT(twice.value().warnings, Contains(HasSubstr("recorded the same tokens")));
  ImportOptions once = with(4);
  once.same_tokens = 2;
  EXPECT_EQ(run({a, c}, once).value().tokens, 1);
  std::filesystem::remove(out());
  EXPECT_THAT(error_of({a, b, c}, with(4)), HasSubstr("ranks have its layers, other stages have"));
}

TEST_F(AnImport, TellsLayersThatWereRecordedAgain) {
  const std::string twice = std::string(kLine) + "\n" + std::string(kLine) + "\n";
  const auto summary = run({write("t.jsonl", twice)}, with(4));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ(summary.value().sequences, 2);
  EXPECT_THAT(summary.value().warnings, Contains(HasSubstr("two micro-batches of a step are the same")));
}

// Physical or logical ids.
TEST_F(AnImport, MapsPhysicalLoadsAndRefusesThemWithoutAMap) {
  const std::string record =
      R"({"record_type":"eplb_load_stats","version":1,"step":7,"num_ranks":2,"num_layers":1,"expert_load":[[10,1,5,2]],"p2l_map":[[0,1,2,0]]})";
  const auto path = write("a.jsonl", record + "\n");
  const auto summary = run({path});
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ(read_load_profile(out()).value().loads[0], (std::vector<std::int64_t>{12, 1, 5}));
  const auto twice = run({path, write("b.jsonl", record + "\n")});
  ASSERT_TRUE(twice.ok());
  EXPECT_THAT(twice.value().warnings,
              Contains(AllOf(HasSubstr("the same counts"), HasSubstr("--same-tokens"))));
  ImportOptions shared;
  shared.same_tokens = 2;
  ASSERT_TRUE(run({path, folder_ / "b.jsonl"}, shared).ok());
  EXPECT_EQ(read_load_profile(out()).value().loads[0], (std::vector<std::int64_t>{12, 1, 5}));
  std::filesystem::remove(out());
  std::string without = record;
  without.replace(without.find(R"(,"p2l_map":[[0,1,2,0]])"), 22, "");
  EXPECT_THAT(error_of({write("a.jsonl", without)}),
              AllOf(HasSubstr("p2l_map is missing"), HasSubstr("physical")));
  std::string outside = record;
  outside.replace(outside.find("[[0,1,2,0]]"), 11, "[[0,1,-2,0]]");
  EXPECT_THAT(error_of({write("a.jsonl", outside)}), HasSubstr("-2, not a count"));
}

// Everything in layer 0: the torch file is a dictionary of zeros but for its first row.
TEST_F(AnImport, FlagsLayersThatHoldMoreOrLessThanTheOthers) {
  const auto summary = run({write("c.csv", "0,0,16\n0,1,16\n1,0,8\n1,1,0\n2,0,4\n2,1,4\n")}, with(2));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(summary.value().warnings, Contains(HasSubstr("layer 0 has 32 assignments, 4 times the 8")));
  const auto zero = run({write("c.csv", "0,0,16\n1,0,0\n2,0,16\n")}, with(2));
  EXPECT_THAT(zero.value().warnings, Contains(HasSubstr("layer 1 has no assignment")));
  const auto odd = run({write("c.csv", "0,0,17\n")}, with(2, 2));
  EXPECT_THAT(odd.value().warnings, Contains(HasSubstr("no multiple of 2 a token")));
}

TEST_F(AnImport, TellsSglangsDenseLayersAndACounterThatFilledOneRow) {
  struct Warned : RecordingSink {
    Status begin_tokens(int, int, std::vector<int>) override { return {}; }
    Status begin_sequence() override { return {}; }
    Status add_tokens(std::span<const std::int32_t>, Phase, const TokenPlace&) override { return {}; }
    Status set_loads(LoadProfile) override { return {}; }
    void warn(std::string line) override { lines.push_back(std::move(line)); }
    Status read_bytes(std::int64_t) override { return {}; }
    std::vector<std::string> lines;
  } sink;
  const auto rows = moe_rows({true, false, false}, {}, "x.pt", sink);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows.value(), (std::vector<int>{1, 2}));
  EXPECT_THAT(sink.lines, Contains(HasSubstr("nothing was recorded in 1 of 3 layers (0): taken as dense")));
  EXPECT_EQ(moe_rows({false, true, true}, {}, "x.pt", sink).value(), std::vector<int>{0});
  EXPECT_THAT(sink.lines,
              Contains(HasSubstr("all assignments are in layer 0, the other 2 layers have none")));
  ImportOptions known;
  known.dense_layers = 1;
  EXPECT_EQ(moe_rows({true, true, false}, known, "x.pt", sink).value(), (std::vector<int>{1, 2}));
  EXPECT_FALSE(moe_rows({true, true}, {}, "x.pt", sink).ok());
}

TEST_F(AnImport, ReadsOurOwnTracesAndProfilesAndJoinsThem) {
  ASSERT_TRUE(run({write("t.jsonl", kLine)}, with(4)).ok());
  std::filesystem::rename(out(), folder_ / "a.trace");
  const auto joined = run({folder_ / "a.trace", folder_ / "a.trace"});
  ASSERT_TRUE(joined.ok()) << joined.error().message;
  EXPECT_EQ(joined.value().format, "grace");
  EXPECT_EQ(joined.value().tokens, 4);
  ASSERT_TRUE(run({write("c.csv", "0,0,16\n1,0,16\n")}, with(2)).ok());
  std::filesystem::rename(out(), folder_ / "a.load.json");
  const auto summed = run({folder_ / "a.load.json", folder_ / "a.load.json"});
  ASSERT_TRUE(summed.ok()) << summed.error().message;
  EXPECT_EQ(summed.value().assignments, 64);
}

TEST_F(AnImport, SaysWhatItCannotTell) {
  EXPECT_THAT(error_of({write("x.bin", "nothing")}),
              AllOf(HasSubstr("x.bin: looks like no format"), HasSubstr("sglang, vllm")));
  ImportOptions wrong;
  wrong.format = "torch";
  EXPECT_THAT(error_of({write("x.bin", "nothing")}, wrong), HasSubstr("--from: 'torch' is none of sglang"));
  const auto guessed = run({write("t.jsonl", kLine)});
  ASSERT_TRUE(guessed.ok());
  EXPECT_THAT(guessed.value().warnings, Contains(HasSubstr("largest id + 1, 4")));
  const auto absent = run({folder_ / "absent"});
  EXPECT_EQ(absent.error().kind, ErrorKind::kIo);
}

TEST_F(AnImport, ThatIsStoppedLeavesNothing) {
  ImportOptions options = with(4);
  options.progress = [](std::int64_t, std::int64_t) { return false; };
  const auto stopped = run({write("t.jsonl", kLine)}, options);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().kind, ErrorKind::kIo);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(AnImport, RefusesCountsThatAreNone) {
  EXPECT_THAT(error_of({write("c.csv", "0,0,-1\n")}), HasSubstr("c.csv:1: count is -1, outside [0, "));
  EXPECT_THAT(error_of({write("c.csv", "0,0,nan\n")}), HasSubstr("c.csv:1"));
  EXPECT_THAT(error_of({write("c.csv", "0,0\n")}), HasSubstr("is not layer_id,expert_id,count"));
  EXPECT_THAT(error_of({write("c.csv", "0,0,1\n0,0,2\n")}), HasSubstr("stands in line 1 already"));
  EXPECT_THAT(error_of({write("c.csv", "0,99999999,1\n")}), HasSubstr("expert_id is 99999999, outside"));
  EXPECT_THAT(error_of({write("c.csv", "0,5,1\n")}, with(4)), HasSubstr("expert 5 is outside [0, 4)"));
}

// Wherever a file of any format is cut, there is one line, and no file.
TEST_F(AnImport, OfAnyFixtureCutShortIsOneLineOrAWholeResult) {
  int cut = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kFixtures)) {
    const std::filesystem::path& path = entry.path();
    if (!entry.is_regular_file() || path.string().ends_with(".expected.json") ||
        path.filename() == "meta_info.json")
      continue;
    const auto content = read_text(path);
    ASSERT_TRUE(content.ok());
    for (int part = 0; part < 12; ++part) {
      const std::size_t length = content.value().size() * static_cast<std::size_t>(part) / 12;
      const auto copy = write("cut/" + path.filename().string(), content.value().substr(0, length));
      std::filesystem::remove(out());
      for (const int top_k : {0, 2}) {
        const auto summary = run({copy}, with(0, top_k));
        EXPECT_TRUE(summary.ok() || summary.error().message.find(kNewline) == std::string::npos);
        ++cut;
      }
    }
    std::filesystem::remove_all(folder_ / "cut");
  }
  EXPECT_GT(cut, 100);
}

// Any few bytes turned in any file.
TEST_F(AnImport, SurvivesAnyByteTurned) {
  std::uint64_t state = 1;
  const auto next = [&](std::uint64_t bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % bound;
  };
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kFixtures)) {
    const std::filesystem::path& path = entry.path();
    const bool skipped =
        path.string().find("/pickle/") != std::string::npos || path.string().ends_with(".expected.json");
    if (!entry.is_regular_file() || skipped) continue;
    const auto content = read_text(path);
    ASSERT_TRUE(content.ok());
    for (int repeat = 0; repeat < 40; ++repeat) {
      std::string changed = content.value();
      for (std::uint64_t i = 0, count = 1 + next(4); i < count && !changed.empty(); ++i)
        changed[next(changed.size())] = static_cast<char>(next(256));
      const auto copy = write("turned/" + path.filename().string(), changed);
      if (path.string().find("rank") != std::string::npos && path.extension() == ".safetensors")
        write("turned/meta_info.json", R"({"num_experts": 4, "num_experts_per_token": 2})");
      const auto summary = run({folder_ / "turned"}, with(0, 2));
      EXPECT_TRUE(summary.ok() || summary.error().message.find(kNewline) == std::string::npos);
      std::filesystem::remove(out());
      std::filesystem::remove_all(folder_ / "turned");
    }
  }
}

}  // namespace
}  // namespace grace
