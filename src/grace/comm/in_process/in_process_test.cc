#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "grace/comm/transport.h"
#include "grace/comm/transport_checks.h"

namespace grace {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto kPatience = 60s;  // longer than any healthy wait here, also under sanitizers

TEST(RanksAsThreads, ExchangeWhatWasMeantForThem) {
  for (int ranks : {1, 2, 3, 7}) {
    const Status done = run_in_process(ranks, kPatience, comm::check_exchanges);
    EXPECT_TRUE(done.ok()) << ranks << " ranks: " << done.error().message;
  }
}

TEST(RanksAsThreads, MayRunAheadOfTheirPeers) {
  // Rank 0 reads last: what the others sent meanwhile waits in order.
  for (int ranks : {2, 3, 7}) {
    const Status done = run_in_process(ranks, kPatience, [](Transport& t) -> Status {
      for (int round = 0; round < 50; ++round) {
        if (t.rank() == round % t.size()) std::this_thread::sleep_for(1ms);
        const std::vector<std::byte> mine(1, static_cast<std::byte>(100 * (t.rank() % 2) + round));
        const auto all = GRACE_TRY(t.all_gather(mine));
        for (int from = 0; from < t.size(); ++from)
          if (all[static_cast<std::size_t>(from)] !=
              std::vector<std::byte>(1, static_cast<std::byte>(100 * (from % 2) + round)))
            return internal_error("round " + std::to_string(round) + ": wrong bytes from " +
                                  std::to_string(from));
      }
      return {};
    });
    EXPECT_TRUE(done.ok()) << done.error().message;
  }
}

TEST(RanksAsThreads, LeaveABarrierTogether) {
  std::atomic<int> entered{0};
  const Status done = run_in_process(7, kPatience, [&](Transport& t) -> Status {
    for (int round = 1; round <= 20; ++round) {
      ++entered;
      GRACE_TRY(t.barrier());
      if (entered < 7 * round) return internal_error("left before all had come");
      GRACE_TRY(t.barrier());
    }
    return {};
  });
  EXPECT_TRUE(done.ok()) << done.error().message;
}

TEST(RanksAsThreads, AreWokenByTheOneThatFails) {
  for (int ranks : {2, 3, 7}) {
    std::atomic<int> woken{0};
    const Status done = run_in_process(ranks, kPatience, [&](Transport& t) -> Status {
      if (t.rank() == 1) return invalid_input("expert 64 is outside [0, 64)");
      const Status waited = t.barrier();
      if (!waited.ok() && waited.error().kind == ErrorKind::kPeerLost &&
          waited.error().message.find("rank 1 left: expert 64") != std::string::npos)
        ++woken;
      return waited;
    });
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().kind, ErrorKind::kInvalidInput);
    EXPECT_EQ(done.error().message, "expert 64 is outside [0, 64)");
    EXPECT_EQ(woken, ranks - 1);
  }
}

TEST(RanksAsThreads, AreWokenByAnAbort) {
  const Status done = run_in_process(3, kPatience, [&](Transport& t) -> Status {
    if (t.rank() == 2) {
      t.abort("the disk is full");
      return io_error("the disk is full");
    }
    const Status waited = t.barrier();
    if (waited.ok()) return internal_error("no fault was seen");
    if (t.barrier().ok()) return internal_error("the fault was forgotten");
    return waited;
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().message, "the disk is full");
}

TEST(RanksAsThreads, NameTheRankThatNeverArrives) {
  std::atomic<bool> over{false};
  const Status done = run_in_process(3, 50ms, [&](Transport& t) -> Status {
    if (t.rank() == 2) {
      while (!over) std::this_thread::sleep_for(1ms);
      return {};
    }
    const Status waited = t.barrier();
    if (t.rank() == 0) over = true;
    return waited;
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().kind, ErrorKind::kTimeout);
  EXPECT_THAT(done.error().message, HasSubstr("waited 50 ms for rank 2 in barrier"));
}

TEST(RanksAsThreads, DoNotWaitForOneThatEndedEarly) {
  const Status done = run_in_process(3, kPatience, [&](Transport& t) -> Status {
    if (t.rank() == 1) return {};
    return t.barrier();
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().kind, ErrorKind::kPeerLost);
  EXPECT_THAT(done.error().message, HasSubstr("rank 1 left: it ended"));
}

TEST(RanksAsThreads, NoticeThatTheyAreInDifferentCalls) {
  const Status done = run_in_process(2, kPatience, [&](Transport& t) -> Status {
    if (t.rank() == 0) return t.barrier();
    const auto all = t.all_gather({});
    return all.ok() ? Status() : Status(all.error());
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().kind, ErrorKind::kPeerLost);
}

}  // namespace
}  // namespace grace
