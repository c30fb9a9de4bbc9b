#include "grace/sim/spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "grace/sim/test_workload.h"

namespace grace {
namespace {

class ADrawnSimulation : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ADrawnSimulation, IsAsLongAsItTakes) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case given(GetParam());
  ThreadPool pool(1);
  SimulateOptions options = some_options(given.batch, Dispatch::kTwoStage);
  options.recorded_decode_passes = 3;
  const Simulation all = simulate(given.trace, given.plan, given.cluster, options, pool).value();
  EXPECT_LE(all.records.size(), 4U);
  double total_s = 0;
  for (const PassRecord& record : all.records) {
    for (const LayerTime& time : record.moe) total_s += time.total_s();
    const auto devices = record.head_s.size();
    for (const auto* parts : {&record.attention_s, &record.ffn_s, &record.head_s})
      for (std::size_t i = 0; i < parts->size(); i += devices)
        total_s += *std::max_element(parts->begin() + static_cast<std::ptrdiff_t>(i),
                                     parts->begin() + static_cast<std::ptrdiff_t>(i + devices));
  }
  const SimulatedSpans drawn = spans_of(all, options.model, 1'000'000);
  EXPECT_TRUE(drawn.all);
  double end_s = 0;
  std::map<int, double> free_at;
  for (const SimulatedSpan& span : drawn.spans) {
    EXPECT_LT(span.begin_s, span.end_s);
    EXPECT_GE(span.begin_s, free_at[span.device] - 1e-12) << "two parts at once on device " << span.device;
    free_at[span.device] = span.end_s;
    end_s = std::max(end_s, span.end_s);
  }
  EXPECT_NEAR(end_s, total_s, 1e-9 * (1 + total_s));
  const SimulatedSpans few = spans_of(all, options.model, 40);
  EXPECT_LE(few.spans.size(), 40U);
  EXPECT_EQ(few.all, drawn.spans.size() <= few.spans.size());
}
INSTANTIATE_TEST_SUITE_P(Seeds, ADrawnSimulation, testing::Range<std::uint64_t>(0, 60));

TEST(ADrawnSimulationOfNothing, IsEmpty) {
  const SimulatedSpans drawn = spans_of(Simulation(), some_model(), 100);
  EXPECT_TRUE(drawn.spans.empty());
  EXPECT_TRUE(drawn.all);
}

TEST(ADrawnSimulation, NamesItsParts) {
  EXPECT_EQ(name_of(SpanPart::kBesideExperts), "router and shared experts");
  EXPECT_EQ(name_of(SpanPart::kHead), "head");
}

}  // namespace
}  // namespace grace
