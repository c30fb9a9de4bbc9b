// Strategies side by side on tokens that had no part in making their plans: what `grace compare` prints.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/evaluate.h"
#include "grace/planner/budget.h"
#include "grace/planner/certify.h"
#include "grace/planner/planner.h"
#include "grace/trace/trace.h"

namespace grace {

// What is run: a strategy of the planner, perhaps with another routing or another r.
struct Contender {
  std::string name;      // "joint-slow-feedback"
  std::string strategy;  // "joint-slow"
  std::string routing;   // in place of the plan's; empty: the plan's
  double r = 0.15;       // negative: the knee
  Dispatch dispatch = Dispatch::kTwoStage;
  bool takes_slots = false;  // heeds a budget
};
// A strategy's name; with `-feedback` behind it, its plan routed with global feedback; `grace-knee` is grace
// with r at the knee, `padded` and `allgather` are vanilla under these dispatches. Errors: invalid_input.
Result<Contender> parse_contender(std::string_view name);
// What is compared when nothing else is asked for: with sizes known also the strategies that minimise
// seconds.
std::vector<std::string> default_contenders(bool sizes_known);

struct CompareOptions {
  std::vector<Contender> contenders;
  std::vector<SlotsSpec> slots = {SlotsSpec{}};
  int splits = 5;
  std::uint64_t seed = 0;
  std::int64_t batch = 2048;
  double effort = 1;
  LayerSizes sizes = {};
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

// A figure over splits.
struct Spread {
  double mean = 0;
  double deviation = 0;  // sample standard deviation; 0 for one split
};

// How far from the best possible, on the first judge batch of the first split, and how much the search fooled
// itself.
struct RowCertificate {
  Aim aim = Aim::kJudgeSlow;  // the yardstick of the figures
  Certificate bounds;
  double overfit = 0;  // the plan's objective, held out minus in-sample, over the in-sample one; 0 where the
                       // strategy has none
};

struct CompareRow {
  std::string name;
  bool lossy = false;  // the plan changes the text, so that it is never what is recommended
  std::string slots;   // as asked; empty for contenders that take what they take
  std::map<std::string, Spread> figures;      // by the names of kFigureNames
  std::vector<std::vector<Figures>> judged;   // [splits][M]
  std::optional<RowCertificate> certificate;  // of contenders that heed a budget
  double second_copies_moved = 0;             // a plan, that EPLB would have put beside the same expert
};
// slots_per_device_max, copies_per_layer, remote_nodes_per_token, devices_per_token, forwards_per_token,
// load_max_over_mean, judge_slow, judge_fast, layer_time (s), idle (s), load_std, bytes_cross_node,
// bytes_intra_node (a layer's batch, dispatch and combine), plan_seconds. Those in seconds and bytes only
// where sizes are known.

struct Comparison {
  std::vector<CompareRow> rows;
  std::string measure;   // the figure that decides: layer_time, or judge_slow without sizes
  std::size_t best = 0;  // row with the lowest measure
  std::size_t recommended =
      0;  // the cheapest in memory among the rows within a standard deviation of the best
  std::string recommendation;  // one sentence
};

// Each split holds half of the sequences out; plans are made on the other half. Errors: invalid_input for a
// trace of fewer than two sequences, or what make_plan refuses.
Result<Comparison> compare(const Trace& trace, const Cluster& cluster, const CompareOptions& options,
                           ThreadPool& pool);

// Plans from one trace serving another: row i is planned on trace i (the last on all of them together),
// column j judged on held-out sequences of trace j.
struct Transfer {
  std::string contender;
  std::vector<std::vector<Spread>> value;  // [traces + 1][traces] of the measure
};
// Errors: also when the traces are not of one model.
Result<std::vector<Transfer>> transfer(std::span<const Trace> traces, const Cluster& cluster,
                                       const CompareOptions& options, ThreadPool& pool);

}  // namespace grace
