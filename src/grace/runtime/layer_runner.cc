#include "grace/runtime/layer_runner.h"

#include <algorithm>
#include <string>

#include "grace/base/check.h"
#include "grace/runtime/stopwatch.h"
#include "grace/runtime/wire_values.h"

namespace grace {
namespace {

// Adds what it lives to a counter of time and one of processor time, and notes the span.
class Timed {
 public:
  Timed(const RankContext& context, Activity activity, double& seconds, double& processor)
      : context_(context), activity_(activity), seconds_(seconds), work_(processor) {}
  ~Timed() {
    const double end = now_s();
    seconds_ += end - begin_;
    context_.spans.add(activity_, begin_, end);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  const RankContext& context_;
  Activity activity_;
  double& seconds_;
  double begin_ = now_s();
  CpuStopwatch work_;
};

}  // namespace

LayerRunner::LayerRunner(const RankContext& context, std::size_t parts)
    : context_(context),
      hidden_(static_cast<std::size_t>(context.config.hidden_size)),
      top_k_(static_cast<std::size_t>(context.config.experts_per_token)),
      shared_(hidden_) {
  for (std::size_t p = 0; p < parts; ++p) parts_.push_back(std::make_unique<Part>(context, hidden_));
}

Status LayerRunner::run(RoutedTokens tokens, std::span<float> x, const LayerExperts& experts,
                        std::size_t parts, bool overlap, std::span<float> h, LayerCounters& counters) {
  GRACE_CHECK(parts >= 1 && parts <= parts_.size(), "as many parts as there can be");
  running_ = std::span(parts_).first(parts);
  overlap_ = overlap;
  experts_ = &experts.hosted;
  counters_ = &counters;
  round_values(context_.wire, x);
  tokens.x = x;
  shared_.set(experts.shared, x);
  const std::size_t count = h.size() / hidden_;
  counters.tokens += static_cast<std::int64_t>(count);
  for (std::size_t p = 0; p < parts; ++p) {
    Part& part = *running_[p];
    part.first_token = count * p / parts;
    part.tokens = count * (p + 1) / parts - part.first_token;
    part.answered = false;
  }
  for (const auto& part : running_) GRACE_TRY(start(*part, tokens));
  for (const auto& part : running_) {
    GRACE_TRY(await(*part, Leg::kDispatch));
    if (context_.aligned) GRACE_TRY(context_.transport.barrier());
    GRACE_TRY(compute(*part));
    GRACE_TRY(answer(*part));
  }
  for (const auto& part : running_) GRACE_TRY(await(*part, Leg::kCombine));
  if (context_.aligned) GRACE_TRY(context_.transport.barrier());
  for (const auto& part : running_) finish(*part, h);
  finish_shared(h);
  return {};
}

Status LayerRunner::start(Part& part, const RoutedTokens& tokens) {
  const std::size_t cell = part.first_token * top_k_, cells = part.tokens * top_k_;
  const RoutedTokens own{tokens.x.subspan(part.first_token * hidden_, part.tokens * hidden_),
                         tokens.experts.subspan(cell, cells), tokens.weights.subspan(cell, cells),
                         tokens.device_of_choice.subspan(cell, cells)};
  {
    const Timed time(context_, Activity::kPack, counters_->dispatch_s, counters_->pack_cpu_s);
    part.exchange.pack(own);
  }
  const Stopwatch time(counters_->dispatch_s);
  if (context_.aligned) GRACE_TRY(context_.transport.barrier());
  part.sent_s = now_s();
  if (&part == running_.front().get()) counters_->dispatch_begin_s = part.sent_s;
  GRACE_TRY(part.exchange.send(counters_->dispatch));
  GRACE_TRY(check_hosted(part.exchange.own_rows()));
  part.own.set(overlap_ ? part.exchange.own_rows() : std::span<const ExpertRow>(), {}, *experts_);
  return {};
}

Result<bool> LayerRunner::look(Part& part, Leg leg, bool wait) {
  return leg == Leg::kDispatch ? part.exchange.arrived(wait) : part.exchange.home(wait);
}

// Until the part has come to the leg's end: computes what is here already, then waits.
Status LayerRunner::await(Part& part, Leg leg) {
  double& seconds = leg == Leg::kDispatch ? counters_->dispatch_s : counters_->combine_s;
  for (;;) {
    {
      const Stopwatch time(seconds);
      if (GRACE_TRY(look(part, leg, false))) break;
      for (const auto& other : running_)
        if (other.get() != &part)
          GRACE_TRY(look(*other, other->answered ? Leg::kCombine : Leg::kDispatch, false));
    }
    if (run_some_own()) continue;
    const Stopwatch time(seconds);
    const Stopwatch wait(counters_->wait_s);
    GRACE_TRY(look(part, leg, true));
    break;
  }
  const double end = now_s();
  context_.spans.add(leg == Leg::kDispatch ? Activity::kDispatch : Activity::kCombine, part.sent_s, end);
  (leg == Leg::kDispatch ? counters_->dispatch_end_s : counters_->combine_end_s) = end;
  return {};
}

// Whether there was any left.
bool LayerRunner::run_some_own() {
  if (fills_waits() && !shared_.done()) {
    const Timed time(context_, Activity::kExperts, counters_->experts_s, counters_->experts_cpu_s);
    shared_.run_some(context_.pool);
    return true;
  }
  for (const auto& part : running_) {
    if (part->own.done()) continue;
    const Timed time(context_, Activity::kExperts, counters_->experts_s, counters_->experts_cpu_s);
    part->own.run_some(*experts_, context_.pool);
    return true;
  }
  return false;
}

// The others' rows, and the own ones with them where nothing was computed meanwhile.
Status LayerRunner::compute(Part& part) {
  GRACE_TRY(check_hosted(part.exchange.foreign_rows()));
  const Timed time(context_, Activity::kExperts, counters_->experts_s, counters_->experts_cpu_s);
  part.foreign.set(part.exchange.foreign_rows(),
                   overlap_ ? std::span<const ExpertRow>() : part.exchange.own_rows(), *experts_);
  part.foreign.run_all(*experts_, context_.pool);
  return {};
}

Status LayerRunner::answer(Part& part) {
  const std::size_t foreign = part.exchange.foreign_rows().size();
  counters_->assignments += static_cast<std::int64_t>(foreign + part.exchange.own_rows().size());
  const Stopwatch time(counters_->combine_s);
  if (context_.aligned) GRACE_TRY(context_.transport.barrier());
  part.sent_s = now_s();
  if (&part == running_.front().get()) counters_->combine_begin_s = part.sent_s;
  part.answered = true;
  return part.exchange.answer(part.foreign.outputs().first(foreign * hidden_), counters_->combine);
}

void LayerRunner::finish(Part& part, std::span<float> h) {
  std::span<float> outputs;
  {
    const Timed time(context_, Activity::kExperts, counters_->experts_s, counters_->experts_cpu_s);
    part.own.run_all(*experts_, context_.pool);
    outputs = overlap_ ? part.own.outputs()
                       : part.foreign.outputs().subspan(part.exchange.foreign_rows().size() * hidden_);
  }
  const Timed time(context_, Activity::kAdd, counters_->combine_s, counters_->pack_cpu_s);
  // What stays at home is rounded as what comes from elsewhere, so that it does not matter where it was.
  if (context_.combine == Combine::kExact) round_values(context_.wire, outputs);
  part.exchange.add_up(outputs, h.subspan(part.first_token * hidden_, part.tokens * hidden_));
}

void LayerRunner::finish_shared(std::span<float> h) {
  {
    const Timed time(context_, Activity::kExperts, counters_->experts_s, counters_->experts_cpu_s);
    shared_.run_all(context_.pool);
  }
  const Timed time(context_, Activity::kAdd, counters_->combine_s, counters_->pack_cpu_s);
  shared_.add(h);
}

Status LayerRunner::check_hosted(std::span<const ExpertRow> rows) const {
  for (const ExpertRow& row : rows) {
    if (experts_->slot_of_expert[row.expert.idx()] != kNotHere) continue;
    return lost(context_, "rank " + std::to_string(context_.transport.rank()) +
                              " is sent a token for expert " + std::to_string(row.expert.value) +
                              ", which it does not hold: the ranks' plans differ");
  }
  return {};
}

}  // namespace grace
