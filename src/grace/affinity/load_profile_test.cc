#include "grace/affinity/load_profile.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <string>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

LoadProfile small_profile() { return {"toy", "counted by hand", 3, 2, {1, 4}, {{5, 0, 7}, {0, 0, 0}}}; }

LoadProfile random_profile(Rng& rng) {
  LoadProfile profile;
  profile.model = "m\"\\\n\u00e9";
  profile.num_experts = 1 + static_cast<int>(rng.below(40));
  profile.experts_per_token =
      static_cast<int>(rng.below(static_cast<std::uint64_t>(profile.num_experts) + 1));
  for (int layer = 0, m = 0; m < 1 + static_cast<int>(rng.below(4)); ++m) {
    profile.decoder_layers.push_back(layer += 1 + static_cast<int>(rng.below(3)));
    std::vector<std::int64_t>& loads = profile.loads.emplace_back();
    for (int e = 0; e < profile.num_experts; ++e)
      loads.push_back(rng.below(8) == 0 ? kMaxLoad : static_cast<std::int64_t>(rng.below(1'000'000)));
  }
  return profile;
}

TEST(ALoadProfile, ComesBackFromItsFileAsItWas) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("grace_load_profile_test." + std::to_string(::getpid()));
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const LoadProfile profile = random_profile(rng);
    ASSERT_THAT(violations(profile), IsEmpty());
    ASSERT_TRUE(write_load_profile(path, profile).ok());
    const Result<LoadProfile> read = read_load_profile(path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), profile);
    EXPECT_TRUE(is_load_profile(path));
  }
  std::filesystem::remove(path);
}

TEST(ALoadProfile, NamesWhatIsWrongWithIt) {
  LoadProfile profile = small_profile();
  profile.loads[1][2] = -1;
  EXPECT_THAT(violations(profile),
              ElementsAre("layer 1: expert 2 has a load of -1, outside [0, 70368744177664]"));
  profile.loads[1].pop_back();
  EXPECT_THAT(violations(profile), ElementsAre("layer 1: loads of 2 experts, the profile has 3"));
  profile = small_profile();
  profile.decoder_layers = {4, 1};
  EXPECT_THAT(violations(profile), ElementsAre("layer 1: decoder layer 1 is outside [5, 1000000]"));
  profile = small_profile();
  profile.experts_per_token = 4;
  EXPECT_THAT(violations(profile), ElementsAre("experts_per_token 4 is outside [0, 3]"));
  const Status refused = write_load_profile("/nowhere", profile);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "/nowhere: experts_per_token 4 is outside [0, 3]");
}

TEST(ALoadProfile, OfATraceCountsEveryRoutedChoice) {
  Trace trace;
  trace.model = "toy";
  trace.num_experts = 4;
  trace.experts_per_token = 2;
  trace.decoder_layers = {1, 3};
  trace.sequence_offsets = {0, 3};
  trace.topk_ids = {0, 1, 2, 3, 0, kNotRouted, 2, 1, 3, 0, kNotRouted, kNotRouted};
  const LoadProfile profile = load_profile_of(trace);
  EXPECT_THAT(violations(profile), IsEmpty());
  EXPECT_THAT(profile.loads, ElementsAre(ElementsAre(3, 1, 0, 1), ElementsAre(0, 1, 2, 1)));
  ThreadPool pool(1);
  const std::vector<LayerStats> counted = count_layers(trace, pool);
  const std::vector<LayerStats> stats = stats_of(profile);
  ASSERT_EQ(stats.size(), counted.size());
  for (std::size_t m = 0; m < stats.size(); ++m) {
    EXPECT_EQ(stats[m].num_experts, counted[m].num_experts);
    EXPECT_EQ(stats[m].load, counted[m].load);
    EXPECT_THAT(stats[m].affinity, IsEmpty());
  }
}

TEST(ALoadProfile, IsHashedByWhatItCounts) {
  LoadProfile profile = small_profile();
  const std::string hash = hash_of(profile);
  EXPECT_EQ(hash.size(), 16U);
  profile.source = "elsewhere";
  EXPECT_EQ(hash_of(profile), hash);
  ++profile.loads[0][1];
  EXPECT_NE(hash_of(profile), hash);
}

TEST(ALoadProfile, OfItsFormatPageIsRead) {
  const std::string page = read_text(GRACE_SOURCE_DIR "/docs/formats/load-profile.md").value();
  const std::size_t begin = page.find("```json\n") + 8;
  const auto read = parse_load_profile(page.substr(begin, page.find("```", begin) - begin), "page");
  EXPECT_TRUE(read.ok()) << read.error().message;
}

TEST(ALoadProfile, OfTheCorpusIsReadOrRefusedInOneLine) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/load_profile")) {
    const std::string name = entry.path().filename();
    const Result<LoadProfile> profile = parse_load_profile(read_text(entry.path()).value(), name);
    EXPECT_EQ(profile.ok(), name.starts_with("good"))
        << name << (profile.ok() ? "" : profile.error().message);
    if (!profile.ok()) {
      EXPECT_THAT(profile.error().message, AllOf(StartsWith(name + ": "), Not(HasSubstr("\n"))));
    }
    ++files;
  }
  EXPECT_GT(files, 10);
}

}  // namespace
}  // namespace grace
