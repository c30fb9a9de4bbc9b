#include "grace/plan/plan.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / ("grace_plan_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::vector<ExpertId> experts(std::initializer_list<int> ids) {
  std::vector<ExpertId> list;
  for (const int id : ids) list.push_back(ExpertId(id));
  return list;
}

// At least 2 experts, 2 devices and 1 layer, so that every corruption below has something to corrupt.
Plan random_plan(Rng& rng) {
  Plan plan;
  plan.model = "m\"o\\d\n\u00e9l";
  plan.num_experts = 2 + static_cast<int>(rng.below(12));
  for (std::uint64_t node = 0, nodes = 1 + rng.below(3); node < nodes; ++node)
    plan.devices_per_node.push_back(1 + static_cast<int>(rng.below(4)));
  if (plan.num_devices() == 1) plan.devices_per_node.push_back(1);
  const auto num_devices = static_cast<std::size_t>(plan.num_devices());
  for (int ordinal = 0, next = 0, count = 1 + static_cast<int>(rng.below(4)); ordinal < count; ++ordinal) {
    next += 1 + static_cast<int>(rng.below(2));
    plan.decoder_layers.push_back(next);
    LayerPlan& layer = plan.layers.emplace_back();
    layer.primaries_of_device.resize(num_devices);
    layer.replicas_of_device.resize(num_devices);
    for (std::size_t device = 0; device < num_devices; ++device)
      layer.predicted_load.push_back(rng.uniform() * 1000);
    for (int expert = 0; expert < plan.num_experts; ++expert) {
      const std::uint64_t primary = rng.below(num_devices);
      layer.primaries_of_device[primary].push_back(ExpertId(expert));
      for (std::size_t device = 0; device < num_devices; ++device)
        if (device != primary && rng.below(4) == 0)
          layer.replicas_of_device[device].push_back(ExpertId(expert));
    }
  }
  if (rng.below(2) == 0)
    for (int expert = 0; expert < plan.num_experts; ++expert)
      plan.layers.back().partners_of_expert.push_back({ExpertId((expert + 1) % plan.num_experts)});
  plan.strategy = "random";
  plan.routing = "wrr";
  plan.provenance = {{"seed", "1"}, {"trace \"hash\"", "00ff"}};
  plan.figures = {{"max_over_mean_heldout", 1 + rng.uniform()}, {"tiny_insample", 5e-324}};
  return plan;
}

Plan small_plan() {
  Plan plan = vanilla_plan("toy", 4, {1, 2}, parse_cluster("2x1").value());
  plan.layers[1].replicas_of_device[0] = experts({2});
  return plan;
}

// The slow twin of violations(): counts copies expert by expert.
bool is_sound_by_counting(const LayerPlan& layer, int num_experts) {
  for (int expert = 0; expert < num_experts; ++expert) {
    std::ptrdiff_t primaries = 0;
    for (std::size_t device = 0; device < layer.primaries_of_device.size(); ++device) {
      const auto here = std::ranges::count(layer.primaries_of_device[device], ExpertId(expert));
      if (here + std::ranges::count(layer.replicas_of_device[device], ExpertId(expert)) > 1) return false;
      primaries += here;
    }
    if (primaries != 1) return false;
  }
  return true;
}

TEST(AVanillaPlan, IsContiguousAndGivesTheFirstDevicesOneMore) {
  const Plan plan = vanilla_plan("toy", 7, {0, 2}, parse_cluster("1x3").value());
  EXPECT_THAT(violations(plan), IsEmpty());
  ASSERT_THAT(plan.layers, SizeIs(2));
  EXPECT_THAT(plan.layers[0].primaries_of_device,
              ElementsAre(experts({0, 1, 2}), experts({3, 4}), experts({5, 6})));
  EXPECT_THAT(plan.layers[0].predicted_load, ElementsAre(3, 2, 2));
  EXPECT_EQ(plan.max_slots(DeviceId(0)), 3);
}

TEST(AVanillaPlan, IsSoundForEveryShape) {
  for (const char* shape : {"1x1", "1x7", "3x2", "2x4", "64x16"})
    for (const int num_experts : {1, 2, 7, 60, 256}) {
      const Cluster cluster = parse_cluster(shape).value();
      EXPECT_THAT(violations(vanilla_plan("toy", num_experts, {0}, cluster), cluster), IsEmpty()) << shape;
    }
}

Plan lossy_plan() {
  Plan plan = small_plan();
  plan.layers[1].partners_of_expert = {experts({3, 1}), experts({0, 2}), experts({0, 1}), experts({2, 1})};
  return plan;
}

TEST(APlanWithPartners, SaysThatItIsLossy) {
  const Folder folder;
  EXPECT_FALSE(small_plan().is_lossy());
  EXPECT_TRUE(lossy_plan().is_lossy());
  ASSERT_TRUE(write_plan(folder / "plan.json", lossy_plan()).ok());
  const std::string text = read_text(folder / "plan.json").value();
  EXPECT_THAT(text, HasSubstr("\"lossy\": true"));
  EXPECT_EQ(parse_plan(text, "p").value(), lossy_plan());
  ASSERT_TRUE(write_plan(folder / "plan.json", small_plan()).ok());
  EXPECT_THAT(read_text(folder / "plan.json").value(), Not(HasSubstr("lossy")));
  const auto refused = [&](std::string_view was, std::string_view is) {
    std::string other = text;
    other.replace(other.find(was), was.size(), is);
    const auto parsed = parse_plan(other, "p");
    return parsed.ok() ? "ok" : parsed.error().message;
  };
  EXPECT_EQ(refused("\"lossy\": true", "\"lossy\": false"), "p: lossy is false, but a layer has partners");
  EXPECT_EQ(refused("\"lossy\": true", "\"lossy\": 1"), "p: lossy is 1, neither true nor false");
  EXPECT_EQ(refused("\"lossy\": true", "\"loss\": true"), "p: lossy is false, but a layer has partners");
  EXPECT_EQ(refused("[3, 1]", "[3, 9]"),
            "p: layer 1: expert 0: partners[1] is 9, not a whole number in [0, 3]");
}

TEST(APlanWithPartners, IsFaultyWhereTheyAreNone) {
  const auto fault = [](auto change) {
    Plan plan = lossy_plan();
    change(plan.layers[1].partners_of_expert);
    const auto found = violations(plan);
    return found.empty() ? "none" : found.front();
  };
  EXPECT_EQ(fault([](auto&) {}), "none");
  EXPECT_EQ(fault([](auto& lists) { lists.pop_back(); }), "layer 1: partners of 3 experts, the plan has 4");
  EXPECT_EQ(fault([](auto& lists) { lists[2].clear(); }), "layer 1: expert 2 has no partner");
  EXPECT_EQ(fault([](auto& lists) { lists[2][0] = ExpertId(2); }), "layer 1: expert 2 is its own partner");
  EXPECT_EQ(fault([](auto& lists) { lists[2][0] = ExpertId(1); }), "layer 1: expert 2 has partner 1 twice");
  EXPECT_EQ(fault([](auto& lists) { lists[2][0] = ExpertId(4); }),
            "layer 1: expert 2 has partner 4, which is outside [0, 4)");
}

TEST(APlanWithPartners, NeedsEnoughForATokensChoices) {
  EXPECT_TRUE(check_partners(small_plan(), 4).ok());
  EXPECT_TRUE(check_partners(lossy_plan(), 3).ok());
  const Status refused = check_partners(lossy_plan(), 4);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "the plan's layer 1: expert 0 has 2 partners, a token chooses 3 besides its best");
}

TEST(APlan, ListsThePrimarysDeviceBeforeTheReplicas) {
  LayerPlan layer;
  layer.primaries_of_device = {experts({1}), experts({}), experts({0})};
  layer.replicas_of_device = {experts({0}), experts({0, 1}), experts({})};
  const auto hosts = layer.hosts_of_expert(2);
  EXPECT_THAT(hosts[0], ElementsAre(DeviceId(2), DeviceId(0), DeviceId(1)));
  EXPECT_THAT(hosts[1], ElementsAre(DeviceId(0), DeviceId(1)));
}

TEST(APlan, CountsReplicasIntoItsSlots) {
  const Plan plan = small_plan();
  EXPECT_EQ(plan.max_slots(DeviceId(0)), 3);
  EXPECT_EQ(plan.max_slots(DeviceId(1)), 2);
}

TEST(APlan, IsSoundExactlyWhenCountingSaysSo) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Plan plan = random_plan(rng);
    ASSERT_THAT(violations(plan), IsEmpty());
    // Copies thrown about at random: sometimes still a plan, mostly not.
    LayerPlan& layer = plan.layers[0];
    for (auto* lists : {&layer.primaries_of_device, &layer.replicas_of_device})
      for (auto& list : *lists) {
        if (!list.empty() && rng.below(6) == 0) list.erase(list.begin());
        if (rng.below(6) == 0)
          list.push_back(ExpertId(static_cast<int>(rng.below(static_cast<std::uint64_t>(plan.num_experts)))));
        std::ranges::sort(list);
      }
    EXPECT_EQ(violations(plan).empty(), is_sound_by_counting(layer, plan.num_experts));
  }
}

struct Corruption {
  const char* expected;
  std::function<void(Plan&)> apply;
};

// On small_plan(): 4 experts, devices 0 {0, 1} and 1 {2, 3}, layer 1 with a replica of 2 on device 0.
const Corruption kCorruptions[] = {
    {"num_experts 0 is outside", [](Plan& p) { p.num_experts = 0; }},
    {"num_experts 65535 is outside", [](Plan& p) { p.num_experts = 65535; }},
    {"there is no node", [](Plan& p) { p.devices_per_node.clear(); }},
    {"node 1 has -1 devices", [](Plan& p) { p.devices_per_node[1] = -1; }},
    {"1025 devices, at most 1024", [](Plan& p) { p.devices_per_node[0] = 1024; }},
    {"there is no layer", [](Plan& p) { p.layers.clear(), p.decoder_layers.clear(); }},
    {"1 layers, but 2 decoder layers", [](Plan& p) { p.layers.pop_back(); }},
    {"layer 1: decoder layer 1 is outside [2, ", [](Plan& p) { p.decoder_layers[1] = 1; }},
    {"layer 0: decoder layer -1 is outside [0, ", [](Plan& p) { p.decoder_layers[0] = -1; }},
    {"layer 0: primaries of 1 devices, the plan has 2",
     [](Plan& p) { p.layers[0].primaries_of_device.pop_back(); }},
    {"layer 0: replicas of 3 devices, the plan has 2",
     [](Plan& p) { p.layers[0].replicas_of_device.emplace_back(); }},
    {"layer 1: predicted loads of 1 devices", [](Plan& p) { p.layers[1].predicted_load.pop_back(); }},
    {"layer 1: device 0 has predicted load nan",
     [](Plan& p) { p.layers[1].predicted_load[0] = std::nan(""); }},
    {"layer 1: device 1 has predicted load -1", [](Plan& p) { p.layers[1].predicted_load[1] = -1; }},
    {"layer 0: expert 1 has no copy", [](Plan& p) { p.layers[0].primaries_of_device[0].pop_back(); }},
    {"layer 1: expert 2 has replicas but no primary copy",
     [](Plan& p) { p.layers[1].primaries_of_device[1] = experts({3}); }},
    {"layer 0: device 1 holds expert 2 twice",
     [](Plan& p) { p.layers[0].replicas_of_device[1] = experts({2}); }},
    {"layer 1: device 0 holds expert 2 twice",
     [](Plan& p) {
       p.layers[1].replicas_of_device[0] = experts({2, 2});
     }},
    {"layer 0: expert 1 has primary copies on devices 0 and 1",
     [](Plan& p) {
       p.layers[0].primaries_of_device[1] = experts({1, 2, 3});
     }},
    {"layer 0: device 0 holds expert 4, which is outside [0, 4)",
     [](Plan& p) { p.layers[0].replicas_of_device[0] = experts({4}); }},
    {"layer 0: device 0 holds expert -1, which is outside [0, 4)",
     [](Plan& p) { p.layers[0].replicas_of_device[0] = experts({-1}); }},
    {"layer 0: device 0 lists expert 0 after 1, must ascend",
     [](Plan& p) {
       p.layers[0].primaries_of_device[0] = experts({1, 0});
     }},
    {"routing is empty", [](Plan& p) { p.routing.clear(); }},
    {"model is not UTF-8", [](Plan& p) { p.model = "\xff"; }},
    {"figure \"x_insample\" is inf",
     [](Plan& p) { p.figures["x_insample"] = std::numeric_limits<double>::infinity(); }},
};

TEST(APlan, NamesEachCorruption) {
  for (const Corruption& corruption : kCorruptions) {
    Plan plan = small_plan();
    corruption.apply(plan);
    EXPECT_THAT(violations(plan), Contains(HasSubstr(corruption.expected)));
    const Folder folder;
    const Status status = write_plan(folder / "p.json", plan);
    ASSERT_FALSE(status.ok()) << corruption.expected;
    EXPECT_THAT(status.error().message, HasSubstr("p.json: " + violations(plan).front()));
  }
}

TEST(APlan, NamesTheExpertThatARandomPlanLost) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Plan plan = random_plan(rng);
    const std::size_t ordinal = rng.below(plan.layers.size());
    const ExpertId lost(static_cast<int>(rng.below(static_cast<std::uint64_t>(plan.num_experts))));
    bool had_replicas = false;
    for (auto& list : plan.layers[ordinal].primaries_of_device) std::erase(list, lost);
    const bool keep_replicas = rng.below(2) == 0;
    for (auto& list : plan.layers[ordinal].replicas_of_device) {
      had_replicas = had_replicas || (keep_replicas && std::ranges::count(list, lost) > 0);
      if (!keep_replicas) std::erase(list, lost);
    }
    EXPECT_THAT(violations(plan),
                ElementsAre("layer " + std::to_string(ordinal) + ": expert " + std::to_string(lost.value) +
                            (had_replicas ? " has replicas but no primary copy" : " has no copy")));
  }
}

TEST(APlan, NamesEachRandomCorruptionOfRandomPlans) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Plan plan = random_plan(rng);
    const std::size_t ordinal = rng.below(plan.layers.size());
    const std::size_t device = rng.below(plan.layers[ordinal].predicted_load.size());
    LayerPlan& layer = plan.layers[ordinal];
    const std::string place = "layer " + std::to_string(ordinal) + ": ";
    const std::string holder = place + "device " + std::to_string(device);
    const ExpertId expert(static_cast<int>(rng.below(static_cast<std::uint64_t>(plan.num_experts))));
    std::vector<ExpertId>& primaries = layer.primaries_of_device[device];
    std::vector<ExpertId>& replicas = layer.replicas_of_device[device];
    const bool here = std::ranges::count(primaries, expert) + std::ranges::count(replicas, expert) > 0;
    std::string expected;
    switch (rng.below(4)) {
      case 0:
        replicas.push_back(ExpertId(plan.num_experts));
        expected = holder + " holds expert " + std::to_string(plan.num_experts) + ", which is outside";
        break;
      case 1:
        layer.predicted_load[device] = -std::numeric_limits<double>::infinity();
        expected = holder + " has predicted load -inf";
        break;
      case 2:
        replicas.push_back(expert);
        if (!here) replicas.push_back(expert);
        std::ranges::sort(replicas);
        expected = holder + " holds expert " + std::to_string(expert.value) + " twice";
        break;
      default:
        if (here) continue;
        primaries.push_back(expert);
        std::ranges::sort(primaries);
        expected = place + "expert " + std::to_string(expert.value) + " has primary copies on devices ";
    }
    EXPECT_THAT(violations(plan), ElementsAre(StartsWith(expected)));
  }
}

TEST(APlan, StopsCountingFaultsAtAHundred) {
  Plan plan = vanilla_plan("toy", 1000, {0, 1}, parse_cluster("1x2").value());
  for (LayerPlan& layer : plan.layers) layer.primaries_of_device.assign(2, {});
  EXPECT_THAT(violations(plan), SizeIs(100));
}

TEST(APlan, MustHaveTheClustersShapeAndItsSlots) {
  const Plan plan = small_plan();
  Cluster cluster = parse_cluster("2x1").value();
  EXPECT_THAT(violations(plan, cluster), IsEmpty());
  cluster.devices_of_node[0][0].slots = 2;
  EXPECT_THAT(violations(plan, cluster), ElementsAre("layer 1: device 0 holds 3 copies, has 2 slots"));
  EXPECT_THAT(violations(plan, parse_cluster("1x2").value()),
              ElementsAre("the plan is for nodes of 1+1 devices, the cluster has nodes of 2"));
}

TEST(APlanFile, ReadsBackAsItWasWritten) {
  const Folder folder;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Plan plan = random_plan(rng);
    ASSERT_TRUE(write_plan(folder / "p.json", plan).ok());
    const Result<Plan> read = read_plan(folder / "p.json");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), plan);
    // And once more: the same plan gives the same bytes.
    ASSERT_TRUE(write_plan(folder / "q.json", read.value()).ok());
    EXPECT_EQ(read_text(folder / "p.json").value(), read_text(folder / "q.json").value());
  }
}

TEST(APlanFile, IsLaidOutForAReader) {
  const Folder folder;
  ASSERT_TRUE(write_plan(folder / "p.json", small_plan()).ok());
  EXPECT_EQ(read_text(folder / "p.json").value(), R"({
 "format_version": 1,
 "model": "toy",
 "num_experts": 4,
 "numbering": "moe_ordinal",
 "decoder_layers": [1, 2],
 "cluster": {"devices_per_node": [1, 1]},
 "strategy": "vanilla",
 "routing": "tar",
 "provenance": {},
 "figures": {},
 "layers": [
  {"layer": 0, "decoder_layer": 1, "devices": [
   {"primaries": [0, 1], "replicas": [], "predicted_load": 2},
   {"primaries": [2, 3], "replicas": [], "predicted_load": 2}]},
  {"layer": 1, "decoder_layer": 2, "devices": [
   {"primaries": [0, 1], "replicas": [2], "predicted_load": 2},
   {"primaries": [2, 3], "replicas": [], "predicted_load": 2}]}
 ]
}
)");
}

TEST(APlanFile, SaysWhereItsFaultIs) {
  const Folder folder;
  ASSERT_TRUE(write_plan(folder / "p.json", small_plan()).ok());
  const std::string sound = read_text(folder / "p.json").value();
  const auto error_after = [&](std::string_view from, std::string_view to) {
    std::string text = sound;
    text.replace(text.find(from), from.size(), to);
    const Result<Plan> plan = parse_plan(text, "p.json");
    return plan.ok() ? "ok" : plan.error().message;
  };
  EXPECT_EQ(error_after("[0, 1], \"replicas\": []", "[0], \"replicas\": []"),
            "p.json: layer 0: expert 1 has no copy");
  EXPECT_EQ(error_after("[0, 1], \"replicas\": []", "[0, 1], \"replicas\": [1]"),
            "p.json: layer 0: device 0 holds expert 1 twice");
  EXPECT_EQ(error_after("[0, 1], \"replicas\": []", "[0, 17], \"replicas\": []"),
            "p.json: layer 0: device 0: primaries[1] is 17, not a whole number in [0, 3]");
  EXPECT_EQ(error_after("moe_ordinal", "decoder_layer"),
            "p.json: numbering is \"decoder_layer\", must be \"moe_ordinal\"");
  EXPECT_THAT(error_after("\"decoder_layer\": 1", "\"decoder_layer\": 0"), StartsWith("p.json: layer 0"));
  EXPECT_EQ(error_after("\"decoder_layers\": [1, 2]", "\"decoder_layers\": [1]"),
            "p.json: 2 layers, but 1 decoder layers");
  EXPECT_THAT(error_after("\"predicted_load\": 2", "\"predicted_load\": \"2\""),
              StartsWith("p.json: layer 0: device 0"));
}

TEST(APlanFile, ThatIsAbsentIsAnIoError) {
  EXPECT_EQ(read_plan("/no/such/plan.json").error().kind, ErrorKind::kIo);
}

TEST(APlanFile, OfItsFormatPageIsRead) {
  const std::string page = read_text(GRACE_SOURCE_DIR "/docs/formats/plan.md").value();
  const std::size_t begin = page.find("```json\n") + 8;
  const auto read = parse_plan(page.substr(begin, page.find("```", begin) - begin), "page");
  EXPECT_TRUE(read.ok()) << read.error().message;
}

TEST(APlanFile, OfTheCorpusIsReadOrRefusedInOneLine) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/plan")) {
    const std::string name = entry.path().filename();
    const Result<Plan> plan = parse_plan(read_text(entry.path()).value(), name);
    EXPECT_EQ(plan.ok(), name.starts_with("good")) << name << (plan.ok() ? "" : plan.error().message);
    if (!plan.ok()) {
      EXPECT_THAT(plan.error().message, AllOf(StartsWith(name + ": "), Not(HasSubstr("\n"))));
    }
    ++files;
  }
  EXPECT_GT(files, 20);
}

TEST(APlanForAModel, FitsItsOwn) { EXPECT_TRUE(check_fits(small_plan(), 4, {1, 2}, "toy").ok()); }

TEST(APlanForAModel, IsGivenTheLayersThatItLacks) {
  Plan plan = small_plan();
  const Plan before = plan;
  const Cluster cluster = parse_cluster("1x" + std::to_string(plan.num_devices())).value();
  EXPECT_THAT(cover_layers(plan, {1, 2}, cluster), testing::IsEmpty());
  EXPECT_EQ(plan, before);
  EXPECT_THAT(cover_layers(plan, {0, 1, 2, 5}, cluster), testing::ElementsAre(0, 5));
  EXPECT_THAT(plan.decoder_layers, testing::ElementsAre(0, 1, 2, 5));
  EXPECT_EQ(plan.layers[1], before.layers[0]);
  EXPECT_EQ(plan.layers[2], before.layers[1]);
  const LayerPlan vanilla = vanilla_plan("toy", 4, {5}, cluster).layers[0];
  EXPECT_EQ(plan.layers[0], vanilla);
  EXPECT_EQ(plan.layers[3], vanilla);
  EXPECT_THAT(violations(plan), testing::IsEmpty());
}

TEST(APlanForAModel, IsRefusedByAnother) {
  const auto error = [](int num_experts, const std::vector<int>& decoder_layers) {
    const Status status = check_fits(small_plan(), num_experts, decoder_layers, "other");
    return status.ok() ? "ok" : status.error().message;
  };
  EXPECT_EQ(error(8, {1, 2}), "the plan is for 4 experts a layer, other has 8");
  // Written for MoE ordinals, read as decoder layers: the first layer is dense.
  EXPECT_EQ(error(4, {0, 1}), "the plan's MoE layer 0 is decoder layer 1, that of other is decoder layer 0");
  EXPECT_EQ(error(4, {1, 2, 3}),
            "the plan is for 2 MoE layers, other has 3: decoder layer 3 is not in the plan");
  EXPECT_EQ(error(4, {1}),
            "the plan is for 2 MoE layers, other has 1: decoder layer 2 is no MoE layer of it");
  EXPECT_EQ(error(4, {}), "the plan is for 2 MoE layers, other has 0: decoder layer 1 is no MoE layer of it");
}

}  // namespace
}  // namespace grace
