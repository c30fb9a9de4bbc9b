#include "grace/interop/slot_map.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "grace/base/rng.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Loads = std::vector<std::vector<std::int64_t>>;

struct Case {
  Plan plan;
  Loads loads;
};

Case random_case(std::uint64_t seed) {
  Rng rng(seed);
  Case made;
  Plan& plan = made.plan;
  plan.model = "m";
  plan.num_experts = 1 + static_cast<int>(rng.below(10));
  for (std::uint64_t n = 0, nodes = 1 + rng.below(2); n < nodes; ++n)
    plan.devices_per_node.push_back(1 + static_cast<int>(rng.below(3)));
  plan.strategy = "random";
  const auto devices = static_cast<std::uint64_t>(plan.num_devices());
  for (int layer = 0, m = 0, count = 1 + static_cast<int>(rng.below(3)); m < count; ++m) {
    plan.decoder_layers.push_back(layer += 1 + static_cast<int>(rng.below(3)));
    LayerPlan& here = plan.layers.emplace_back();
    here.primaries_of_device.resize(devices);
    here.replicas_of_device.resize(devices);
    std::vector<std::int64_t>& loads = made.loads.emplace_back();
    for (int e = 0; e < plan.num_experts; ++e) {
      const std::uint64_t primary = rng.below(devices);
      here.primaries_of_device[primary].push_back(ExpertId(e));
      for (std::uint64_t d = 0; d < devices; ++d)
        if (d != primary && rng.below(4) == 0) here.replicas_of_device[d].push_back(ExpertId(e));
      loads.push_back(static_cast<std::int64_t>(rng.below(3) * rng.below(100)));
    }
    for (std::uint64_t d = 0; d < devices; ++d)
      here.predicted_load.push_back(static_cast<double>(rng.below(50)));
  }
  return made;
}

std::multiset<std::int32_t> on(const SlotMap& map, std::size_t m, int d) {
  const auto slots = map.slots_of(m, DeviceId(d));
  return {slots.begin(), slots.end()};
}

std::set<std::int32_t> planned_on(const Plan& plan, std::size_t m, int d) {
  std::set<std::int32_t> experts;
  for (const ExpertId e : plan.layers[m].experts_on(DeviceId(d))) experts.insert(e.value);
  return experts;
}

// The rule of even_out, spelled out: every expert and every device looked at for each spare slot.
SlotMap even_out_slowly(const Case& made, int slots) {
  const Plan& plan = made.plan;
  SlotMap map{plan.num_experts, plan.num_devices(), plan.decoder_layers, {}};
  for (std::size_t m = 0; m < plan.layers.size(); ++m) {
    std::vector<std::multiset<std::int32_t>> held;
    for (int d = 0; d < map.num_devices; ++d) {
      const auto experts = planned_on(plan, m, d);
      held.emplace_back(experts.begin(), experts.end());
    }
    const auto copies = [&](std::int32_t e) {
      double count = 0;
      for (const auto& device : held) count += device.contains(e) ? 1 : 0;
      return count;
    };
    const auto share = [&](std::int32_t e) {
      return static_cast<double>(made.loads[m][static_cast<std::size_t>(e)]) / copies(e);
    };
    for (;;) {
      std::int32_t best = -1;
      std::size_t host = 0;
      for (std::int32_t e = 0; e < plan.num_experts; ++e) {
        std::size_t lightest = held.size();
        double least = 0;
        for (std::size_t d = 0; d < held.size(); ++d) {
          if (std::cmp_greater_equal(held[d].size(), slots) || held[d].contains(e)) continue;
          double load = 0;
          for (const std::int32_t other : held[d]) load += share(other);
          if (lightest == held.size() || load < least) {
            lightest = d;
            least = load;
          }
        }
        if (lightest == held.size()) continue;
        if (best < 0 || share(e) > share(best) || (share(e) == share(best) && copies(e) < copies(best))) {
          best = e;
          host = lightest;
        }
      }
      if (best < 0) break;
      held[host].insert(best);
    }
    std::vector<std::int32_t>& row = map.expert_of_slot.emplace_back();
    for (auto& device : held) {
      for (std::int32_t again = 0; std::cmp_less(device.size(), slots); ++again)
        device.insert(again % plan.num_experts);
      row.insert(row.end(), device.begin(), device.end());
    }
  }
  return map;
}

class AnEvenPlan : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AnEvenPlan, EqualsTheRuleSpelledOut) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case made = random_case(GetParam());
  ASSERT_THAT(violations(made.plan), IsEmpty());
  for (const int more : {0, 1, 3}) {
    int fullest = 0;
    for (int d = 0; d < made.plan.num_devices(); ++d)
      fullest = std::max(fullest, made.plan.max_slots(DeviceId(d)));
    const EvenPlan even = even_out(made.plan, made.loads, fullest + more).value();
    EXPECT_EQ(even.slots, even_out_slowly(made, fullest + more));
  }
}

TEST_P(AnEvenPlan, HoldsThePlanAndNothingTwiceWhereItNeedNot) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case made = random_case(GetParam());
  const EvenPlan even = even_out(made.plan, {}).value();
  EXPECT_THAT(violations(even.slots), IsEmpty());
  EXPECT_FALSE(has_empty_slots(even.slots));
  EXPECT_EQ(even.padding.empty, 0);  // the fullest device holds an expert once, so every other lacks some
  EXPECT_EQ(second_copies(even.slots), 0);
  std::int64_t copies = 0;
  for (std::size_t m = 0; m < made.plan.layers.size(); ++m)
    for (int d = 0; d < made.plan.num_devices(); ++d) {
      const auto planned = planned_on(made.plan, m, d);
      copies += std::ssize(planned);
      const auto held = on(even.slots, m, d);
      EXPECT_TRUE(std::ranges::includes(held, planned));
    }
  const std::int64_t slots = static_cast<std::int64_t>(even.slots.num_slots()) *
                             static_cast<std::int64_t>(even.slots.expert_of_slot.size());
  EXPECT_EQ(even.padding.added, slots - copies);
  EXPECT_DOUBLE_EQ(even.padding.memory_factor, static_cast<double>(slots) / static_cast<double>(copies));
}

TEST_P(AnEvenPlan, IsThePlanAgainWhereNothingWasAdded) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Case made = random_case(GetParam());
  const EvenPlan padded = even_out(made.plan, made.loads).value();
  int dropped = -1;
  const Plan plan = plan_of(padded.slots, "m", made.plan.devices_per_node, &dropped);
  EXPECT_EQ(dropped, 0);
  EXPECT_THAT(violations(plan), IsEmpty());
  const EvenPlan again = even_out(plan, made.loads).value();
  EXPECT_EQ(again.slots, padded.slots);
  EXPECT_EQ(again.padding.added, 0);
  for (const LayerPlan& layer : plan.layers) {
    double sum = 0;
    for (const double load : layer.predicted_load) sum += load;
    EXPECT_NEAR(sum, plan.num_experts, 1e-9);
  }
}

TEST_P(AnEvenPlan, KeepsTheSlotsOfExpertsThatStay) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case made = random_case(GetParam());
  EvenPlan before = even_out(made.plan, made.loads).value();
  Rng rng(GetParam());
  for (std::vector<std::int32_t>& row : before.slots.expert_of_slot)
    for (int d = 0; d < before.slots.num_devices; ++d) {
      const auto each = static_cast<std::size_t>(before.slots.slots_per_device());
      rng.shuffle(std::span(row).subspan(static_cast<std::size_t>(d) * each, each));
    }
  EXPECT_EQ(even_out(made.plan, made.loads, 0, &before.slots).value().slots, before.slots);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnEvenPlan, testing::Range<std::uint64_t>(0, 200));

Plan uneven_plan() {
  Plan plan = vanilla_plan("toy", 4, {1}, parse_cluster("1x2").value());
  plan.layers[0].primaries_of_device = {{ExpertId(0), ExpertId(1), ExpertId(2)}, {ExpertId(3)}};
  plan.layers[0].predicted_load = {30, 10};
  return plan;
}

TEST(APlanOfUnevenGroups, IsPaddedWithTheExpertsOfMostLoad) {
  const EvenPlan even = even_out(uneven_plan(), Loads{{5, 20, 10, 9}}).value();
  EXPECT_THAT(even.slots.expert_of_slot, ElementsAre(ElementsAre(0, 1, 2, 1, 2, 3)));
  EXPECT_EQ(even.padding.slots_per_device, 3);
  EXPECT_EQ(even.padding.added, 2);
  EXPECT_DOUBLE_EQ(even.padding.memory_factor, 1.5);
}

TEST(APlanOfUnevenGroups, SharesPredictedLoadsWhereNoOthersAreKnown) {
  // 10 an expert on each device: ties to the lower id.
  EXPECT_THAT(even_out(uneven_plan(), {}).value().slots.expert_of_slot,
              ElementsAre(ElementsAre(0, 1, 2, 0, 1, 3)));
}

TEST(APlanOfUnevenGroups, RepeatsAnExpertOnlyWhereADeviceHoldsAll) {
  const EvenPlan even = even_out(uneven_plan(), Loads{{5, 20, 10, 9}}, 5).value();
  EXPECT_THAT(even.slots.expert_of_slot, ElementsAre(ElementsAre(0, 0, 1, 2, 3, 0, 0, 1, 2, 3)));
  EXPECT_EQ(even.padding.empty, 2);
  EXPECT_EQ(second_copies(even.slots), 2);
  int dropped = 0;
  EXPECT_THAT(violations(plan_of(even.slots, "toy", {2}, &dropped)), IsEmpty());
  EXPECT_EQ(dropped, 2);
}

TEST(APlanOfUnevenGroups, IsRefusedFewerSlotsThanItHolds) {
  const auto refused = even_out(uneven_plan(), {}, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "2 slots on every device, the plan's fullest holds 3");
  EXPECT_FALSE(even_out(uneven_plan(), {}, 70000).ok());
}

TEST(APlanOfALayerWithoutLoad, IsPaddedEvenly) {
  Plan plan = vanilla_plan("toy", 4, {0}, parse_cluster("1x4").value());
  plan.layers[0].predicted_load.assign(4, 0);
  EXPECT_THAT(even_out(plan, Loads{{0, 0, 0, 0}}, 2).value().slots.expert_of_slot,
              ElementsAre(ElementsAre(0, 1, 0, 1, 2, 3, 2, 3)));
}

TEST(APlanOfUnevenGroups, For256ExpertsOnThreeDevicesHas86SlotsEach) {
  const Plan plan = vanilla_plan("toy", 256, {3}, parse_cluster("1x3").value());
  const EvenPlan even = even_out(plan, {}).value();
  EXPECT_EQ(even.slots.slots_per_device(), 86);
  EXPECT_EQ(even.slots.num_slots() - 256, 2);
  EXPECT_EQ(second_copies(even.slots), 0);
}

TEST(APlanOfUnevenGroups, OfOneDeviceNeedsNothing) {
  const EvenPlan even = even_out(vanilla_plan("toy", 5, {0, 2}, parse_cluster("1x1").value()), {}).value();
  EXPECT_EQ(even.padding.added, 0);
  EXPECT_EQ(even.padding.memory_factor, 1);
}

TEST(APlanWithFewerExpertsThanDevices, IsPaddedFromEmptyDevices) {
  const EvenPlan even = even_out(vanilla_plan("toy", 4, {0}, parse_cluster("1x8").value()), {}).value();
  EXPECT_EQ(even.slots.num_slots(), 8);
  EXPECT_THAT(violations(even.slots), IsEmpty());
  EXPECT_THAT(even.slots.expert_of_slot.front(), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
}

TEST(ASlotMap, NamesWhatIsWrongWithIt) {
  const SlotMap good{3, 2, {1}, {{0, 1, 2, 0}}};
  EXPECT_THAT(violations(good), IsEmpty());
  SlotMap map = good;
  map.expert_of_slot = {{0, 1, 3, 0}};
  EXPECT_THAT(violations(map), ElementsAre("layer 0: slot 2 has expert 3, which is outside [0, 3)",
                                           "layer 0: expert 2 has no slot"));
  map = good;
  map.num_devices = 3;
  EXPECT_THAT(violations(map), ElementsAre("4 slots do not divide among 3 devices"));
  map = {3, 2, {1, 2}, {{0, 1, 2, 0}, {0, 1, 2}}};
  EXPECT_THAT(violations(map), ElementsAre("layer 1: 3 slots, layer 0 has 4"));
  map = {3, 2, {2, 1}, {{0, 1, 2, 0}, {0, 1, 2, 0}}};
  EXPECT_THAT(violations(map), ElementsAre("layer 1: decoder layer 1 is outside [3, 1000000]"));
  EXPECT_THAT(violations(SlotMap{}), ElementsAre("0 experts, outside [1, 65534]",
                                                 "0 devices, outside [1, 1024]", "there is no layer"));
}

TEST(ASlotMap, MayHaveEmptySlotsThatNoPlanHas) {
  const SlotMap map{3, 2, {1}, {{0, 1, 2, kEmptySlot}}};
  EXPECT_THAT(violations(map), IsEmpty());
  EXPECT_TRUE(has_empty_slots(map));
  const Plan plan = plan_of(map, "toy", {1, 1});
  EXPECT_THAT(violations(plan), IsEmpty());
  EXPECT_EQ(plan.max_slots(DeviceId(1)), 1);
}

}  // namespace
}  // namespace grace
