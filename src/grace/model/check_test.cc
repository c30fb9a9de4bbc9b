#include <gmock/gmock.h>

#include "grace/model/model.h"
#include "grace/model/test_model.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::IsEmpty;

TEST(ACheckedModel, IsFineWhenItIs) {
  for (const char* name : {"bf16_published", "f16_shards", "f32_own_head", "bf16_fused"}) {
    EXPECT_THAT(check_model(std::filesystem::path(GRACE_SOURCE_DIR "/tests/fixtures/olmoe") / name),
                IsEmpty());
  }
  for (const auto& folder :
       std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/tests/fixtures/architectures"))
    EXPECT_THAT(check_model(folder.path()), IsEmpty()) << folder.path();
  EXPECT_THAT(check_model(TestModel().write("fine")), IsEmpty());
}

TEST(ACheckedModel, IsToldEveryProblemALineEach) {
  TestModel model;
  model.tensors.erase(TestModel::expert_name(1, 2, "up"));
  model.tensors.erase("model.norm.weight");
  model.tensors[TestModel::expert_name(0, 0, "gate")] = {{1}, {1.0F}};
  EXPECT_THAT(check_model(model.write("three_problems")),
              ElementsAre(EndsWith("no tensor model.norm.weight"),
                          EndsWith("model.layers.0.mlp.experts.0.gate_proj.weight is [1], expected [6, 8]"),
                          EndsWith("no tensor model.layers.1.mlp.experts.2.up_proj.weight")));
}

TEST(ACheckedModel, IsToldOfAFusedTensorOnce) {
  TestModel model;
  model.fuse(false);
  model.tensors["model.layers.1.mlp.experts.down_proj"].shape = {5, 48};
  EXPECT_THAT(check_model(model.write("fused_problem")),
              ElementsAre(EndsWith("model.layers.1.mlp.experts.down_proj is [5, 48], expected [5, 8, 6]")));
}

TEST(ACheckedModel, NeedsAConfigAndWeights) {
  const auto folder = TestModel().write("empty");
  std::filesystem::remove(folder / "model.safetensors");
  std::filesystem::remove(folder / "config.json");
  EXPECT_THAT(check_model(folder),
              ElementsAre(EndsWith("config.json: No such file or directory"),
                          EndsWith("has neither model.safetensors nor model.safetensors.index.json")));
}

TEST(ACheckedModel, IsRefusedForIntegersInPlaceOfWeights) {
  const auto folder = TestModel().write("integers");
  const std::vector<std::int32_t> integers(8);
  const Safetensors file = Safetensors::open(folder / "model.safetensors").value();
  TensorMap tensors = file.tensors();
  tensors["model.norm.weight"] = {Dtype::kI32, {8}, std::as_bytes(std::span(integers))};
  write_safetensors(folder / "model.safetensors", tensors, {}).value();
  EXPECT_THAT(check_model(folder),
              ElementsAre(EndsWith("tensor model.norm.weight is I32, not one of BF16, F16, F32")));
}

TEST(ACheckedModel, IsRefusedForQuantisedWeightsWithWhatTheyAre) {
  TestModel model;
  const std::string up = TestModel::expert_name(1, 2, "up");
  const std::string packed = up.substr(0, up.size() - 7) + ".qweight";
  model.tensors[packed] = model.take(up);
  EXPECT_THAT(check_model(model.write("gptq")),
              ElementsAre(EndsWith("tensor " + up + " is there as " + packed +
                                   ": quantised weights are not supported, only BF16, F16 and F32 are")));
  const auto folder = TestModel().write("fp8");
  const std::vector<std::byte> bytes(8);
  const Safetensors file = Safetensors::open(folder / "model.safetensors").value();
  TensorMap tensors = file.tensors();
  tensors["model.norm.weight"] = {Dtype::kF8E4m3, {8}, bytes};
  write_safetensors(folder / "model.safetensors", tensors, {}).value();
  EXPECT_THAT(check_model(folder),
              ElementsAre(EndsWith("tensor model.norm.weight is F8_E4M3, not one of BF16, F16, F32")));
}

TEST(ACheckedModel, IsToldNoMoreThanAThousandProblems) {
  TestModel model;
  model.config["num_hidden_layers"] = 4096;
  model.config["num_experts"] = 32768;
  const std::vector<std::string> problems = check_model(model.write("too_many"));
  EXPECT_EQ(problems.size(), 1001U);
  EXPECT_EQ(problems.back(), "and more");
}

}  // namespace
}  // namespace grace
