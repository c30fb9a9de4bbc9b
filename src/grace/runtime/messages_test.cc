#include "grace/runtime/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// T=2, K=3, H=2; rank 0 of 3.
struct Example {
  std::vector<float> x{1, 2, 3, 4};
  std::vector<std::uint16_t> experts{5, 1, 4, 0, 2, 3};
  std::vector<std::int32_t> devices{2, 1, 2, 0, 2, kNoDevice.value};
  RoutedTokens tokens() const { return {x, experts, devices, 2, 3}; }
};

std::vector<IncomingAssignment> unpack(const Outgoing& out, std::size_t rank) {
  std::vector<IncomingAssignment> assignments;
  const auto message =
      std::span(out.bytes).subspan(out.offsets[rank], out.offsets[rank + 1] - out.offsets[rank]);
  EXPECT_TRUE(unpack_dispatch(message, 0, 2, 6, assignments).ok());
  return assignments;
}

TEST(ADispatchMessage, CarriesOneVectorPerAssignmentWhenFlat) {
  const Example example;
  const Outgoing out = pack_dispatch(example.tokens(), Dispatch::kFlat, 3, DeviceId{0});
  EXPECT_THAT(out.offsets, ElementsAre(0, 0, 20, 80));
  EXPECT_THAT(out.counts.vectors, ElementsAre(1, 1, 3));
  EXPECT_THAT(out.counts.assignments, ElementsAre(1, 1, 3));
}

TEST(ADispatchMessage, CarriesOneVectorPerTokenAndDeviceOtherwise) {
  const Example example;
  const Outgoing out = pack_dispatch(example.tokens(), Dispatch::kPerDevice, 3, DeviceId{0});
  EXPECT_THAT(out.offsets, ElementsAre(0, 0, 20, 20 + 24 + 20));
  EXPECT_THAT(out.counts.vectors, ElementsAre(1, 1, 2));
  EXPECT_THAT(out.cells_of_rank[2], ElementsAre(2, 0, 4));
  const auto in = unpack(out, 2);
  ASSERT_EQ(in.size(), 3u);
  EXPECT_EQ(in[0].expert, ExpertId{4});
  EXPECT_EQ(in[1].expert, ExpertId{5});
  EXPECT_EQ(in[1].x, in[0].x);
  EXPECT_EQ(in[2].expert, ExpertId{2});
  EXPECT_EQ(in[2].x[1], 4);
}

TEST(ADispatchMessage, CountsWhatTheCostRoomCountsAndArrivesWholeForRandomRoutes) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const int top = 1 + static_cast<int>(rng.below(4));
    const int devices = 1 + static_cast<int>(rng.below(5));
    const std::size_t tokens = rng.below(9);
    std::vector<float> x;
    std::vector<std::uint16_t> experts;
    std::vector<std::int32_t> device_of_choice;
    for (std::size_t t = 0; t < tokens; ++t) {
      std::vector<std::uint16_t> all{0, 1, 2, 3, 4, 5};
      rng.shuffle(std::span(all));
      experts.insert(experts.end(), all.begin(), all.begin() + top);
      x.push_back(static_cast<float>(t));
      x.push_back(-static_cast<float>(t));
      for (int k = 0; k < top; ++k)
        device_of_choice.push_back(
            static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(devices) + 1)) - 1);
    }
    const RoutedTokens routed{x, experts, device_of_choice, 2, top};
    for (const Dispatch dispatch : {Dispatch::kFlat, Dispatch::kPerDevice}) {
      const Outgoing out = pack_dispatch(routed, dispatch, devices, DeviceId{0});
      const SendCounts expected = count_sends(device_of_choice, top, dispatch, devices);
      EXPECT_EQ(out.counts.vectors, expected.vectors);
      EXPECT_EQ(out.counts.assignments, expected.assignments);
      for (std::size_t rank = 1; rank < static_cast<std::size_t>(devices); ++rank) {
        const auto in = unpack(out, rank);
        ASSERT_EQ(in.size(), out.cells_of_rank[rank].size());
        for (std::size_t i = 0; i < in.size(); ++i) {
          const std::size_t cell = out.cells_of_rank[rank][i];
          EXPECT_EQ(in[i].expert.value, experts[cell]);
          EXPECT_EQ(in[i].x[0], static_cast<float>(cell / static_cast<std::size_t>(top)));
          EXPECT_EQ(device_of_choice[cell], static_cast<std::int32_t>(rank));
        }
      }
    }
  }
}

std::string error_of(const std::vector<std::int32_t>& words) {
  std::vector<IncomingAssignment> assignments;
  const Status status = unpack_dispatch(std::as_bytes(std::span(words)), 3, 2, 6, assignments);
  return status.ok() ? "" : status.error().message;
}

TEST(ADispatchMessage, IsRefusedWithTheRankAndTheByteWhenItCannotBe) {
  EXPECT_EQ(error_of({0, 1, 5, 0, 0}), "");
  EXPECT_EQ(error_of({0}), "rank 3: byte 0 of its dispatch message: a header that is cut short");
  EXPECT_THAT(error_of({-1, 1, 5, 0, 0}), HasSubstr("row -1 is below 0"));
  EXPECT_THAT(error_of({0, 0, 5, 0, 0}), HasSubstr("0 experts are outside [1, 6]"));
  EXPECT_THAT(error_of({0, 7, 5, 0, 0}), HasSubstr("7 experts are outside [1, 6]"));
  EXPECT_THAT(error_of({0, 1, 6, 0, 0}),
              HasSubstr("byte 8 of its dispatch message: expert 6 is outside [0, 6)"));
  EXPECT_THAT(error_of({0, 1, -1, 0, 0}), HasSubstr("expert -1 is outside [0, 6)"));
  EXPECT_THAT(error_of({0, 1, 5, 0, 0, 0, 2, 1, 2}),
              HasSubstr("byte 20 of its dispatch message: 8 bytes are left of 16"));
}

TEST(ADispatchMessage, OfTheCorpusIsReadOrRefused) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/dispatch_message")) {
    const std::string text = read_text(entry.path()).value();
    std::vector<IncomingAssignment> assignments;
    const bool good = entry.path().filename().string().starts_with("good");
    EXPECT_EQ(unpack_dispatch(std::as_bytes(std::span(text)), 0, 2, 6, assignments).ok(), good)
        << entry.path();
    ++files;
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace grace
