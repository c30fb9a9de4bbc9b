#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"
#include "grace/files/npy.h"
#include "grace/interop/exporter.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

const Exporter& exporter(std::string_view name) { return *find_exporter(name).value(); }

// Every expert in a slot, no expert twice on a device.
SlotMap random_map(std::uint64_t seed, bool copies) {
  Rng rng(seed);
  SlotMap map;
  map.num_devices = 1 + static_cast<int>(rng.below(4));
  map.num_experts = map.num_devices * (1 + static_cast<int>(rng.below(4)));
  const int each = map.num_experts / map.num_devices;
  const int slots =
      copies ? each + static_cast<int>(rng.below(static_cast<std::uint64_t>(map.num_experts - each + 1)))
             : each;
  std::vector<std::int32_t> experts(static_cast<std::size_t>(map.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  for (int layer = 0, m = 0, count = 1 + static_cast<int>(rng.below(4)); m < count; ++m) {
    map.decoder_layers.push_back(layer += 1 + static_cast<int>(rng.below(2)));
    rng.shuffle(std::span(experts));
    std::vector<std::int32_t>& row = map.expert_of_slot.emplace_back();
    for (int d = 0; d < map.num_devices; ++d)
      for (int s = 0; s < slots; ++s)
        row.push_back(experts[static_cast<std::size_t>((d * each + s) % map.num_experts)]);
  }
  return map;
}

SlotMap tiny_map() { return {4, 2, {1}, {{0, 2, 1, 0, 3, 1}}}; }

class AnExporter : public testing::TestWithParam<std::string_view> {};

TEST_P(AnExporter, ReadsBackWhatItWrote) {
  const Exporter& one = exporter(GetParam());
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SlotMap map = random_map(seed, one.name != "vllm-ranks");
    if (one.name == "vllm-ranks") {
      for (std::vector<std::int32_t>& row : map.expert_of_slot) row = map.expert_of_slot.front();
      const auto each = static_cast<std::ptrdiff_t>(map.slots_per_device());
      for (std::vector<std::int32_t>& row : map.expert_of_slot)
        for (auto at = row.begin(); at != row.end(); at += each) std::sort(at, at + each);
    }
    ASSERT_THAT(violations(map), IsEmpty());
    const Exported written = one.write(map, {}).value();
    EXPECT_EQ(written.bytes, one.write(map, {}).value().bytes);
    PlacementOptions options{std::string(one.name), map.num_devices, map.num_experts, map.decoder_layers};
    const Result<SlotMap> read = parse_placement(written.bytes, "f", options);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), map);
    options.format.clear();
    EXPECT_EQ(parse_placement(written.bytes, "f", options).value(), map) << "not detected";
  }
}

TEST_P(AnExporter, NamesTheFileInItsFlags) {
  const Exporter& one = exporter(GetParam());
  SlotMap map = tiny_map();
  if (one.name == "vllm-ranks") map.expert_of_slot = {{0, 2, 3, 1}};
  const Exported written = one.write(map, {.file = "some/where.x"}).value();
  EXPECT_THAT(written.start_with, Contains(HasSubstr("some/where.x")));
  EXPECT_THAT(written.notes, Not(IsEmpty()));
}

// A file cut short anywhere is refused in a line, or is another sound placement.
TEST_P(AnExporter, RefusesWhatIsCutShort) {
  const Exporter& one = exporter(GetParam());
  SlotMap map = tiny_map();
  if (one.name == "vllm-ranks") map.expert_of_slot = {{0, 2, 3, 1}};
  const std::string bytes = one.write(map, {}).value().bytes;
  for (std::size_t length = 0; length + 1 < bytes.size(); ++length) {
    const Result<SlotMap> read = one.read(std::string_view(bytes).substr(0, length), "f", 2);
    if (read.ok()) {
      EXPECT_THAT(violations(read.value()), IsEmpty());
      EXPECT_EQ(one.name, "tensorrt-llm") << length;  // its last line is not needed
      continue;
    }
    EXPECT_THAT(read.error().message, AllOf(StartsWith("f"), Not(HasSubstr("\n"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, AnExporter,
                         testing::Values("sglang", "vllm", "vllm-ranks", "tensorrt-llm", "ascend", "eplb"),
                         [](const auto& engine) {
                           std::string name(engine.param);
                           std::erase(name, '-');
                           return name;
                         });

TEST(TheSglangFile, HasARowForEveryDecoderLayer) {
  const Exporter& one = exporter("sglang");
  EXPECT_EQ(one.write(tiny_map(), {.num_decoder_layers = 3}).value().bytes,
            "{\"physical_to_logical_map\": [\n [0, 1, 2, 3, 0, 1],\n [0, 2, 1, 0, 3, 1],\n [0, 1, 2, 3, 0, "
            "1]\n]}\n");
  const auto refused = one.write(tiny_map(), {.num_decoder_layers = 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "1 decoder layers, but the plan's last MoE layer is decoder layer 1");
  // Without the model's MoE layers every row counts as one.
  const std::string bytes = one.write(tiny_map(), {}).value().bytes;
  EXPECT_THAT(parse_placement(bytes, "f", {"", 2, 0, {}}).value().decoder_layers, ElementsAre(0, 1));
  const auto lacks = parse_placement(bytes, "f", {"", 2, 0, {1, 2}});
  ASSERT_FALSE(lacks.ok());
  EXPECT_EQ(lacks.error().message, "f: has no row for decoder layer 2, which the model has");
}

TEST(TheVllmFile, IsTheRecordOfThePullRequest) {
  EXPECT_EQ(
      exporter("vllm").write({3, 2, {1, 2}, {{0, 1, 2, 0}, {1, 2, 0, 1}}}, {}).value().bytes,
      "{\"record_type\": \"eplb_initial_mapping\", \"version\": 1, \"num_redundant_experts\": 1, "
      "\"num_slots\": 4, \"initial_global_assignments\": {\"0\": [0, 1, 2, 0], \"1\": [1, 2, 0, 1]}}\n");
  const Exported with_mtp = exporter("vllm").write(tiny_map(), {.mtp_layers = 1}).value();
  EXPECT_THAT(with_mtp.bytes, HasSubstr("\"1\": [0, 1, 2, 3, 0, 1]"));
  EXPECT_THAT(with_mtp.notes.front(), HasSubstr("41141"));
}

TEST(TheVllmRanksFile, IsRefusedForCopiesAndForLayersThatDiffer) {
  const Exporter& one = exporter("vllm-ranks");
  EXPECT_EQ(one.write(tiny_map(), {}).error().message,
            "vllm-ranks: 6 slots of 4 experts; it holds one copy of each");
  EXPECT_EQ(
      one.write({2, 2, {0, 1}, {{0, 1}, {1, 0}}}, {}).error().message,
      "vllm-ranks: expert 1 is on device 1 in layer 0 and on 0 in layer 1; the file has one rank for all "
      "layers");
  EXPECT_EQ(one.write({2, 2, {0}, {{1, 0}}}, {}).value().bytes, "{\"expert_to_ep_rank\": [1, 0]}\n");
}

TEST(TheTensorRtLlmFile, NamesDecoderLayers) {
  EXPECT_EQ(
      exporter("tensorrt-llm").write(tiny_map(), {.num_decoder_layers = 4, .mtp_layers = 1}).value().bytes,
      "num_slots: 6\ninitial_global_assignments:\n  1: [0, 2, 1, 0, 3, 1]\n  4: [0, 1, 2, 3, 0, 1]\n"
      "layer_updates_per_iter: 0\n");
}

TEST(TheTensorRtLlmFile, IsReadInEveryStyleItsToolsWrite) {
  const SlotMap map{4, 2, {3, 10}, {{0, 1, 2, 0, 3, 1}, {0, 1, 2, 3, 0, 2}}};
  for (const char* text :
       {"initial_global_assignments:\n  3: [0, 1, 2, 0, 3, 1]\n  10: [0, 1, 2, 3, 0, "
        "2]\nlayer_updates_per_iter: "
        "0\nnum_slots: 6\n",
        "---\n# a comment\nnum_slots: 6   # six\ninitial_global_assignments:\n    10: [0, 1, 2,\n      3, 0, "
        "2]\n\n    3: [0,1,2,0,3,1,]\n",
        "num_slots: 6\r\ninitial_global_assignments:\r\n  3:\r\n  - 0\r\n  - 1\r\n  - 2\r\n  - 0\r\n  - "
        "3\r\n  - "
        "1\r\n  10:\r\n    - 0\r\n    - 1\r\n    - 2\r\n    - 3\r\n    - 0\r\n    - 2\r\n"}) {
    const Result<SlotMap> read = parse_placement(text, "f", {"", 2, 0, {}});
    ASSERT_TRUE(read.ok()) << read.error().message << "\n" << text;
    EXPECT_EQ(read.value(), map) << text;
  }
}

TEST(TheAscendFile, IsRefusedAnExpertTwiceOnADevice) {
  EXPECT_EQ(
      exporter("ascend").write({1, 1, {0}, {{0, 0}}}, {}).error().message,
      "ascend: 1 slots repeat an expert of their device, which it does not allow: 2 slots a device of 1 "
      "experts");
  EXPECT_EQ(exporter("ascend").write(tiny_map(), {}).value().bytes,
            "{\"moe_layer_count\": 1, \"layer_list\": [\n {\"layer_id\": 0, \"device_count\": 2, "
            "\"device_list\": [\n  {\"device_id\": 0, \"device_expert\": [0, 2, 1]},\n  {\"device_id\": 1, "
            "\"device_expert\": [0, 3, 1]}]}\n]}\n");
}

std::vector<std::int64_t> numbers_in(const NpzArrays& file, const char* name) {
  const TensorView& tensor = file.arrays.find(name)->second.tensor;
  std::vector<std::int64_t> values(tensor.bytes.size() / 8);
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

TEST(TheEplbFile, HoldsTheThreeArraysOfItsReadme) {
  const std::string bytes = exporter("eplb").write(tiny_map(), {}).value().bytes;
  const NpzArrays file =
      parse_npz({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "f").value();
  EXPECT_THAT(numbers_in(file, "physical_to_logical_map"), ElementsAre(0, 2, 1, 0, 3, 1));
  EXPECT_THAT(numbers_in(file, "logical_to_physical_map"), ElementsAre(0, 3, 2, 5, 1, -1, 4, -1));
  EXPECT_THAT(numbers_in(file, "expert_count"), ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(file.arrays.find("logical_to_physical_map")->second.tensor.shape, ElementsAre(1, 4, 2));
}

TEST(APlacementArray, MayLeaveSlotsEmpty) {
  // [2 devices, 2 layers, 3 experts]
  const std::vector<std::uint8_t> held = {1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0};
  const std::string bytes = npy_bytes({Dtype::kU8, {2, 2, 3}, std::as_bytes(std::span(held))});
  const SlotMap map = parse_placement(bytes, "f", {}).value();
  EXPECT_THAT(map.expert_of_slot,
              ElementsAre(ElementsAre(0, 1, 2, kEmptySlot), ElementsAre(1, 2, 0, kEmptySlot)));
  std::vector<float> broken(12, 1);
  broken[7] = 0.5F;
  const auto refused =
      parse_placement(npy_bytes({Dtype::kF32, {2, 2, 3}, std::as_bytes(std::span(broken))}), "f", {});
  EXPECT_EQ(refused.error().message, "f: element 7 is 0.5, not a whole number in [-1, 65534]");
  broken[7] = 2;
  EXPECT_EQ(parse_placement(npy_bytes({Dtype::kF32, {2, 2, 3}, std::as_bytes(std::span(broken))}), "f", {})
                .error()
                .message,
            "f: device 1, layer 0, expert 1: 2 is neither 0 nor 1");
}

TEST(APlacement, ThatNoOneKnowsIsRefusedWithTheNames) {
  const auto refused = parse_placement("{\"a\": 1}", "f", {});
  EXPECT_EQ(refused.error().message,
            "f: no placement of sglang, vllm, vllm-ranks, tensorrt-llm, ascend, eplb, placement-array");
  EXPECT_EQ(
      find_exporter("tgi").error().message,
      "format: 'tgi' is not one of sglang, vllm, vllm-ranks, tensorrt-llm, ascend, eplb, placement-array");
  EXPECT_EQ(find_exporter("tgi", true).error().message,
            "format: 'tgi' is not one of sglang, vllm, vllm-ranks, tensorrt-llm, ascend, eplb");
  EXPECT_EQ(
      find_exporter("placement-array", true).error().message,
      "format: placement-array is only read, not written; one of sglang, vllm, vllm-ranks, tensorrt-llm, "
      "ascend, eplb");
  EXPECT_TRUE(find_exporter("placement-array").ok());
}

TEST(APlacement, BecomesAPlan) {
  const std::filesystem::path corpus = GRACE_SOURCE_DIR "/fuzz/corpus/placement";
  EXPECT_TRUE(is_placement(corpus / "good_ascend.json"));
  EXPECT_FALSE(is_placement(corpus / "neither.json"));
  EXPECT_FALSE(is_placement(corpus));
  const ImportedPlan made = import_placement(corpus / "good_ascend.json", {}, "m", {}).value();
  EXPECT_THAT(violations(made.plan), IsEmpty());
  EXPECT_EQ(made.format, "ascend");
  EXPECT_THAT(made.plan.devices_per_node, ElementsAre(2));
  EXPECT_EQ(made.plan.strategy, "imported");
  EXPECT_EQ(
      import_placement(corpus / "good_sglang.json", {}, "m", {}).error().message,
      (corpus / "good_sglang.json").string() + ": does not say for how many devices it is; name the cluster");
}

TEST(APlacement, LeavesOutMtpRowsAndChecksWhatTheModelHas) {
  const Exported written = exporter("vllm").write(tiny_map(), {.mtp_layers = 1}).value();
  EXPECT_EQ(parse_placement(written.bytes, "f", {"", 2, 0, {1}, 1}).value(), tiny_map());
  EXPECT_EQ(parse_placement(written.bytes, "f", {"", 2, 0, {1}}).error().message,
            "f: 2 MoE layers, the model has 1");
  EXPECT_EQ(parse_placement(written.bytes, "f", {"", 2, 5, {}}).error().message, "f: 4 experts, must be 5");
}

TEST(APlacement, OfTheCorpusIsReadOrRefusedInOneLine) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/placement")) {
    const std::string name = entry.path().filename();
    const Result<SlotMap> map = parse_placement(read_text(entry.path()).value(), name, {"", 2, 0, {}});
    EXPECT_EQ(map.ok(), name.starts_with("good")) << name << (map.ok() ? "" : ": " + map.error().message);
    if (!map.ok()) {
      EXPECT_THAT(map.error().message, AllOf(StartsWith(name), Not(HasSubstr("\n"))));
    }
    ++files;
  }
  EXPECT_GT(files, 30);
}

}  // namespace
}  // namespace grace
