#include "grace/runtime/conversation.h"

#include <algorithm>
#include <string>

#include "grace/runtime/agreement.h"

namespace grace {
namespace {

// Whether what rank 0 says is so, on every rank.
Result<bool> told_by_first(Transport& transport, bool mine) {
  const std::byte answer{mine};
  const auto all = GRACE_TRY(transport.all_gather({&answer, 1}));
  return all.front().size() == 1 && all.front()[0] != std::byte{0};
}

}  // namespace

Conversation::Conversation(Engine& engine, Transport& transport, const GenerateOptions& options)
    : engine_(engine),
      transport_(transport),
      options_(options),
      sampler_(options.temperature, options.top_p, options.seed, 0) {
  engine_.reset(transport.rank() == 0 ? 1 : 0);
}

Result<std::vector<std::int32_t>> Conversation::reply(
    std::span<const std::int32_t> ids, const std::function<bool(std::span<const std::int32_t>)>& said) {
  const bool speaks = transport_.rank() == 0;
  Status valid = speaks ? check_prompt(engine_.config(), ids, options_) : Status();
  GRACE_TRY(agree(transport_, valid));
  std::vector<std::int32_t> reply;
  if (speaks) resume(ids);
  for (bool more = options_.max_new_tokens > 0; more;) {
    GRACE_TRY(step());
    if (speaks) {
      reply.push_back(sampler_.choose(logits_));
      more = (!said || said(reply)) && goes_on(reply);
      input_ = {{0}, {reply.back()}, {1}};
    }
    more = GRACE_TRY(told_by_first(transport_, more));
  }
  return reply;
}

// The next step reads what is new.
void Conversation::resume(std::span<const std::int32_t> ids) {
  const bool goes_on = cached_.size() < ids.size() && std::ranges::equal(cached_, ids.first(cached_.size()));
  if (!goes_on) {
    engine_.reset(1);
    cached_.clear();
  }
  const auto fresh = ids.subspan(cached_.size());
  input_ = {{0}, {fresh.begin(), fresh.end()}, {static_cast<int>(fresh.size())}};
}

Status Conversation::step() {
  GRACE_TRY(engine_.step(input_, false, logits_));
  cached_.insert(cached_.end(), input_.token_ids.begin(), input_.token_ids.end());
  return {};
}

bool Conversation::goes_on(const std::vector<std::int32_t>& reply) const {
  const std::vector<std::int32_t>& ends = engine_.config().eos_token_ids;
  const bool ended = !options_.ignore_eos && std::ranges::find(ends, reply.back()) != ends.end();
  return !ended && reply.size() < static_cast<std::size_t>(options_.max_new_tokens);
}

}  // namespace grace
