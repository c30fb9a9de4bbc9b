#include "grace/trace/trace_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "grace/trace/trace_test_util.h"

namespace grace {
namespace {

// A folder of its own that goes with the test.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::temp_directory_path() / ("trace_writer_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  std::size_t num_files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

// As an importer writes it: in pieces of a few tokens.
Status write_in_pieces(const std::filesystem::path& path, const Trace& trace, int known_experts, Rng& rng) {
  TraceWriter writer = GRACE_TRY(TraceWriter::create(
      path, {trace.model, trace.source, known_experts, trace.experts_per_token, trace.decoder_layers}));
  const auto per_token = static_cast<std::int64_t>(trace.decoder_layers.size()) * trace.experts_per_token;
  for (int s = 0; s < trace.num_sequences(); ++s) {
    writer.begin_sequence();
    const std::int64_t begin = trace.sequence_offsets[static_cast<std::size_t>(s)];
    const std::int64_t end = trace.sequence_offsets[static_cast<std::size_t>(s) + 1];
    for (std::int64_t token = begin; token < end;) {
      const bool prompt = token < begin + trace.prompt_length(s);
      const std::int64_t stop = prompt ? begin + trace.prompt_length(s) : end;
      const auto count = std::min<std::int64_t>(stop - token, 1 + static_cast<std::int64_t>(rng.below(3)));
      GRACE_TRY(writer.add_tokens(std::span(trace.topk_ids)
                                      .subspan(static_cast<std::size_t>(token * per_token),
                                               static_cast<std::size_t>(count * per_token)),
                                  prompt ? Phase::kPrefill : Phase::kDecode));
      token += count;
    }
  }
  return writer.finish(trace.num_experts);
}

TEST(ATraceWriter, WritesWhatWriteTraceWouldHave) {
  const Scratch scratch;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Trace trace = random_trace(rng);
    trace.topk_weights.clear();
    trace.token_ids.clear();
    const auto path = scratch / "t.trace";
    const bool known = rng.below(2) == 0;
    const Status written = write_in_pieces(path, trace, known ? trace.num_experts : 0, rng);
    ASSERT_TRUE(written.ok()) << written.error().message;
    const auto read = read_trace(path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    // A mixed trace whose prompts are all or nothing of it is written as what it is.
    if (read.value().phase != trace.phase) {
      for (int s = 0; s < trace.num_sequences(); ++s)
        EXPECT_EQ(read.value().prompt_length(s), trace.prompt_length(s));
      trace.phase = read.value().phase;
      trace.prompt_lengths = read.value().prompt_lengths;
    }
    EXPECT_TRUE(read.value() == trace);
    EXPECT_EQ(scratch.num_files(), 1U);
  }
}

TEST(ATraceWriter, LeavesNothingWhereItIsNotFinished) {
  const Scratch scratch;
  {
    auto writer = TraceWriter::create(scratch / "t.trace", {"m", "s", 4, 2, {0}});
    ASSERT_TRUE(writer.ok());
    writer.value().begin_sequence();
    const std::uint16_t ids[] = {0, 1};
    ASSERT_TRUE(writer.value().add_tokens(ids, Phase::kPrefill).ok());
    EXPECT_EQ(scratch.num_files(), 1U);
  }
  EXPECT_EQ(scratch.num_files(), 0U);
  EXPECT_FALSE(TraceWriter::create(scratch / "no/t.trace", {"m", "s", 4, 2, {0}}).ok());
}

}  // namespace
}  // namespace grace
