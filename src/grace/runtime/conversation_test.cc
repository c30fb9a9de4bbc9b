#include "grace/runtime/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "grace/runtime/test_plans.h"
#include "grace/runtime/tiny_model.h"

namespace grace {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr GenerateOptions kSix{.max_new_tokens = 6};

void on_engines(const TinyModel& model, const std::string& shape,
                const std::function<Status(Engine&, Transport&)>& body) {
  const Cluster cluster = cluster_of(shape);
  const Plan plan = doubled(model, cluster, 7);
  const Status status = run_in_process(cluster.num_devices(), kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(1);
    const auto engine = GRACE_TRY(Engine::make(model.folder(), plan, cluster, transport, pool, {}));
    return body(*engine, transport);
  });
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
}

Tokens generated(const TinyModel& model, const Tokens& ids) {
  Tokens output;
  on_engines(model, "1x1", [&](Engine& engine, Transport& transport) -> Status {
    output = GRACE_TRY(generate(engine, transport, {ids}, kSix, {})).outputs.front();
    return {};
  });
  return output;
}

Tokens joined(const Tokens& a, const Tokens& b, const Tokens& c = {}) {
  Tokens all = a;
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  return all;
}

TEST(AConversation, SaysWhatGenerateSaysOfAllThatWasSaid) {
  const TinyModel model({});
  const Tokens first{1, 2, 3, 4}, second{5, 6};
  const Tokens reply = generated(model, first);
  const Tokens all = joined(first, reply, second), other{9, 8, 7, 1};
  for (const char* shape : {"1x1", "2x2"}) {
    on_engines(model, shape, [&](Engine& engine, Transport& transport) -> Status {
      Conversation conversation(engine, transport, kSix);
      const bool speaks = transport.rank() == 0;
      std::vector<Tokens> replies;
      // The third takes back what was said before.
      for (const Tokens& ids : {first, all, other, first})
        replies.push_back(GRACE_TRY(conversation.reply(speaks ? ids : Tokens{}, {})));
      const std::vector<Tokens> none(replies.size());
      const std::vector<Tokens> expected{reply, generated(model, all), generated(model, other), reply};
      EXPECT_EQ(replies, speaks ? expected : none);
      return {};
    });
  }
}

TEST(AConversation, ReadsOnlyWhatIsNew) {
  const TinyModel model({});
  on_engines(model, "1x1", [&](Engine& engine, Transport& transport) -> Status {
    Conversation conversation(engine, transport, kSix);
    const Tokens first{1, 2, 3, 4}, second{5, 6};
    const Tokens reply = GRACE_TRY(conversation.reply(first, {}));
    EXPECT_EQ(engine.counters()[0].tokens, 4 + 5);  // the last token of a reply is not read
    engine.clear_counters();
    GRACE_TRY(conversation.reply(joined(first, reply, second), {}));
    EXPECT_EQ(engine.counters()[0].tokens, 1 + 2 + 5);
    return {};
  });
}

TEST(AConversation, IsHeardTokenByTokenAndCanBeCutShort) {
  const TinyModel model({});
  const Tokens ids{1, 2, 3};
  const Tokens whole = generated(model, ids);
  on_engines(model, "1x2", [&](Engine& engine, Transport& transport) -> Status {
    Conversation conversation(engine, transport, kSix);
    const bool speaks = transport.rank() == 0;
    std::vector<std::size_t> heard;
    const Tokens reply =
        GRACE_TRY(conversation.reply(speaks ? ids : Tokens{}, [&](std::span<const std::int32_t> so_far) {
          heard.push_back(so_far.size());
          return so_far.size() < 3;
        }));
    if (!speaks) return {};
    EXPECT_EQ(heard, (std::vector<std::size_t>{1, 2, 3}));
    EXPECT_EQ(reply, Tokens(whole.begin(), whole.begin() + 3));
    return {};
  });
}

TEST(AConversation, TellsEveryRankWhatItCannotRead) {
  const TinyModel model({});
  on_engines(model, "1x2", [&](Engine& engine, Transport& transport) -> Status {
    Conversation conversation(engine, transport, kSix);
    const Tokens bad{1, model.shape().vocab};
    const auto reply = conversation.reply(transport.rank() == 0 ? bad : Tokens{}, {});
    EXPECT_FALSE(reply.ok());
    if (reply.ok()) return {};
    EXPECT_THAT(reply.error().message, HasSubstr("token 1: id 61 is outside [0, 61)"));
    return {};
  });
}

}  // namespace
}  // namespace grace
