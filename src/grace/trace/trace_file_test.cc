#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>

#include "grace/files/mapped_file.h"
#include "grace/files/safetensors.h"
#include "grace/trace/trace.h"
#include "grace/trace/trace_test_util.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / ("grace_trace_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string error_of(const std::string& corpus_file) {
  const Result<MappedFile> file =
      MappedFile::open(std::string(GRACE_SOURCE_DIR "/fuzz/corpus/trace/") + corpus_file + ".safetensors");
  if (!file.ok()) return file.error().message;
  const Result<Trace> trace = parse_trace(file.value().bytes(), "t");
  return trace.ok() ? "ok" : trace.error().message;
}

TEST(ATraceFile, ReadsBackAsItWasWritten) {
  const Folder folder;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Trace trace = random_trace(rng);
    ASSERT_TRUE(write_trace(folder / "a", trace).ok());
    const Result<Trace> read = read_trace(folder / "a");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), trace);
    ASSERT_TRUE(write_trace(folder / "b", read.value()).ok());
    EXPECT_EQ(read_text(folder / "a").value(), read_text(folder / "b").value());
  }
}

TEST(ATraceFile, IsNarrowWhereEveryIdFitsBesideNotRouted) {
  const Folder folder;
  for (const int num_experts : {4, 255, 256}) {
    Trace trace = small_trace();
    trace.num_experts = num_experts;
    ASSERT_TRUE(write_trace(folder / "t", trace).ok());
    const Safetensors file = Safetensors::open(folder / "t").value();
    EXPECT_EQ(file.find("topk_ids").value().dtype, num_experts <= 255 ? Dtype::kU8 : Dtype::kU16);
    EXPECT_EQ(read_trace(folder / "t").value(), trace);
  }
}

TEST(ATraceFile, IsReadInBothWidths) {
  for (const char* name : {"good_u8", "good_u16"}) {
    const Result<Trace> trace =
        read_trace(std::string(GRACE_SOURCE_DIR "/fuzz/corpus/trace/") + name + ".safetensors");
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_EQ(trace.value().choices(1, MoeOrdinal(0))[1], kNotRouted);
    EXPECT_THAT(trace.value().choices(2, MoeOrdinal(0)), testing::ElementsAre(3, 2));
  }
}

TEST(ATraceFile, SaysWhereItsFaultIs) {
  EXPECT_EQ(error_of("expert_out_of_range"), "t: token 0, layer 1: expert 4 is outside [0, 4)");
  EXPECT_EQ(error_of("expert_chosen_twice"), "t: token 0, layer 1: expert 2 is chosen twice");
  EXPECT_EQ(error_of("offsets_short"), "t: sequence_offsets ends with 2, topk_ids has 3 tokens");
  EXPECT_EQ(error_of("offsets_descend"), "t: sequence_offsets[2] is 1, below the 3 before it");
  EXPECT_EQ(error_of("ids_absent"), "t: no tensor topk_ids");
  EXPECT_EQ(error_of("metadata_without_phase"), "t: metadata has no phase");
  EXPECT_EQ(error_of("experts_with_a_letter"), "t: num_experts is \"4x\", not a whole number in [1, 65534]");
  EXPECT_EQ(error_of("ids_u8_for_256_experts"),
            "t: topk_ids is U8, which is for at most 255 experts, num_experts is 256");
  EXPECT_THAT(error_of("layers_disagree"), StartsWith("t: topk_ids is U8 [3, 2, 2], must be [T, 1, 2]"));
}

TEST(ATraceFile, ThatIsAbsentIsAnIoError) {
  EXPECT_EQ(read_trace("/no/such/trace").error().kind, ErrorKind::kIo);
}

TEST(ATraceFile, OfTheCorpusIsReadOrRefusedInOneLine) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/trace")) {
    const std::string name = entry.path().filename();
    const std::string text = read_text(entry.path()).value();
    const Result<Trace> trace = parse_trace(std::as_bytes(std::span(text)), name);
    EXPECT_EQ(trace.ok(), name.starts_with("good")) << name << (trace.ok() ? "" : trace.error().message);
    if (!trace.ok()) {
      EXPECT_THAT(trace.error().message, AllOf(StartsWith(name + ": "), Not(HasSubstr("\n"))));
    }
    ++files;
  }
  EXPECT_GT(files, 30);
}

// Every byte that can be cut off or flipped leaves an error or a sound trace.
TEST(ATraceFile, SurvivesEveryCutAndEveryFlippedBit) {
  const std::string whole =
      read_text(GRACE_SOURCE_DIR "/fuzz/corpus/trace/good_everything.safetensors").value();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);
    EXPECT_FALSE(parse_trace(std::as_bytes(std::span(cut)), "t").ok()) << length << " bytes";
  }
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const Result<Trace> trace = parse_trace(std::as_bytes(std::span(flipped)), "t");
    if (trace.ok()) {
      EXPECT_THAT(violations(trace.value()), IsEmpty()) << "bit " << bit;
    }
  }
}

TEST(ATraceFile, ComesOutOfRecordedArrays) {
  const std::filesystem::path data = GRACE_SOURCE_DIR "/../shared/data/routing/deepseek-v2-lite";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << "no recorded routing at " << data;
  if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0) GTEST_SKIP() << "python3 has no numpy";
  const Folder folder;
  const std::string out = (folder / "t").string();
  const std::string intent = (data / "intent").string();
  const std::string law = (data / "law").string();
  const std::string command =
      "python3 " GRACE_SOURCE_DIR "/tools/npy_to_trace.py " + intent + ".topk_ids.npy " + law +
      ".topk_ids.npy --sequences " + intent + ".sequences.json " + law + ".sequences.json --weights " +
      intent + ".topk_weights_e4.npy " + law +
      ".topk_weights_e4.npy --num-experts 64 --model deepseek-v2-lite --first-decoder-layer 1 "
      "--phase prefill --out " +
      out + " > " + out + ".log";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const Result<Trace> read = read_trace(out);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const Trace& trace = read.value();
  EXPECT_EQ(trace.num_tokens(), 8222 + 8327);
  EXPECT_EQ(trace.num_moe_layers(), 26);
  EXPECT_EQ(trace.experts_per_token, 6);
  EXPECT_EQ(trace.decoder_layers.front(), 1);
  EXPECT_EQ(trace.decoder_layers.back(), 26);
  EXPECT_EQ(trace.sequence_offsets[1], 64);
  EXPECT_EQ(trace.topk_weights.size(), trace.topk_ids.size());
}

}  // namespace
}  // namespace grace
