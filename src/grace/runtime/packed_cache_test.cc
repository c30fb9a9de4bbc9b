#include "grace/runtime/packed_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <vector>

#include "grace/comm/transport.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/tiny_model.h"

namespace grace {
namespace {

constexpr std::chrono::milliseconds kTimeout{60000};

class APackedCache : public testing::Test {
 protected:
  APackedCache()
      : model_(TinyShape{}),
        checkpoint_(model_.folder()),
        folder_(std::filesystem::temp_directory_path() /
                ("grace_cache_" + std::to_string(::getpid()) + "_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~APackedCache() override { std::filesystem::remove_all(folder_); }

  // The logits of a prompt on one rank of each device; empty where some rank could not load.
  Result<std::vector<float>> logits(const std::filesystem::path& cache, kernels::Numbers numbers,
                                    int devices) {
    const Cluster cluster = parse_cluster("1x" + std::to_string(devices)).value();
    const ModelConfig config = read_model_config(checkpoint_).value();
    const Plan plan = vanilla_plan("tiny", config.num_experts, config.moe_layers, cluster);
    std::vector<float> first;
    const Status status = run_in_process(devices, kTimeout, [&](Transport& transport) -> Status {
      const std::vector<float> own = GRACE_TRY(one_rank(cache, numbers, cluster, plan, transport));
      if (transport.rank() == 0) first = own;
      return {};
    });
    if (!status.ok()) return status.error();
    return first;
  }

  std::map<std::string, std::filesystem::file_time_type> files() const {
    std::map<std::string, std::filesystem::file_time_type> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      if (entry.is_regular_file()) found[entry.path().string()] = entry.last_write_time();
    return found;
  }

  TinyModel model_;
  std::filesystem::path checkpoint_;  // what is loaded
  std::filesystem::path folder_;

 private:
  Result<std::vector<float>> one_rank(const std::filesystem::path& cache, kernels::Numbers numbers,
                                      const Cluster& cluster, const Plan& plan, Transport& transport) const {
    ThreadPool pool(1);
    EngineOptions options;
    options.arithmetic.numbers = numbers;
    options.packed_cache = cache;
    auto made = Engine::make(checkpoint_, plan, cluster, transport, pool, options);
    if (!made.ok()) return made.error();
    Engine& engine = *made.value();
    engine.reset(1);
    std::vector<float> logits;
    StepInput input;
    if (transport.rank() == 0) input = {{0}, {3, 1, 4, 1, 5}, {5}};
    GRACE_TRY(engine.step(input, true, logits));
    return logits;
  }
};

TEST_F(APackedCache, GivesTheSameBitsAsPackingOnTheFirstStartAndOnTheSecond) {
  for (const auto numbers : {kernels::Numbers::kF32, kernels::Numbers::kBf16, kernels::Numbers::kInt8}) {
    const std::vector<float> without = logits({}, numbers, 1).value();
    ASSERT_FALSE(without.empty());
    EXPECT_EQ(logits(folder_, numbers, 1).value(), without);
    const auto kept = files();
    EXPECT_FALSE(kept.empty());
    EXPECT_EQ(logits(folder_, numbers, 1).value(), without);
    EXPECT_EQ(files(), kept);  // nothing was written again
  }
}

TEST_F(APackedCache, KeepsWhatOtherArchitecturesPack) {
  for (const char* name : {"deepseek_v2", "deepseek_v3", "mixtral_fused", "qwen2", "qwen3_fused"}) {
    SCOPED_TRACE(name);
    checkpoint_ = std::filesystem::path(GRACE_SOURCE_DIR) / "tests/fixtures/architectures" / name;
    ASSERT_TRUE(std::filesystem::exists(checkpoint_ / "config.json"));
    const std::vector<float> without = logits({}, kernels::Numbers::kBf16, 2).value();
    ASSERT_EQ(logits(folder_, kernels::Numbers::kBf16, 2).value(), without);
    const auto kept = files();
    EXPECT_EQ(logits(folder_, kernels::Numbers::kBf16, 2).value(), without);
    EXPECT_EQ(files(), kept);
  }
}

TEST_F(APackedCache, IsFilledBySeveralRanksAtOnceAndServesAnyNumberOfThem) {
  const std::vector<float> without = logits({}, kernels::Numbers::kBf16, 1).value();
  EXPECT_EQ(logits(folder_, kernels::Numbers::kBf16, 4).value(), without);
  const auto kept = files();
  EXPECT_EQ(logits(folder_, kernels::Numbers::kBf16, 2).value(), without);
  EXPECT_EQ(logits(folder_, kernels::Numbers::kBf16, 1).value(), without);
  EXPECT_EQ(files(), kept);
}

TEST_F(APackedCache, TakesACheckpointThatChangedForAnother) {
  ASSERT_TRUE(logits(folder_, kernels::Numbers::kF32, 1).ok());
  const auto kept = files();
  const std::filesystem::path shard = model_.folder() / "model.safetensors";
  std::filesystem::last_write_time(shard, std::filesystem::last_write_time(shard) + std::chrono::hours(1));
  ASSERT_TRUE(logits(folder_, kernels::Numbers::kF32, 1).ok());
  EXPECT_EQ(files().size(), 2 * kept.size());
}

TEST_F(APackedCache, RefusesAFileThatIsCutShort) {
  ASSERT_TRUE(logits(folder_, kernels::Numbers::kF32, 1).ok());
  const std::string victim = files().begin()->first;
  std::filesystem::resize_file(victim, 5000);
  const auto refused = logits(folder_, kernels::Numbers::kF32, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  EXPECT_NE(refused.error().message.find(victim + ": 5000 bytes are no packed weight of ["),
            std::string::npos)
      << refused.error().message;
}

TEST_F(APackedCache, SaysThatItsFolderCannotBeMade) {
  std::ofstream(folder_) << "a file";
  const auto refused = logits(folder_ / "inside", kernels::Numbers::kF32, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace grace
