// Traces made up from a seed, with what a planner looks for planted in them: for tests of known answer and
// for sizes that nobody has recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/trace/trace.h"

namespace grace {

// How tokens choose. A layer's experts are split into planted clusters of equal size (to within one), each
// layer's in its own way, and have Zipf weights, rank^-zipf, dealt at random. The clusters are dealt to the
// topics; a sequence has a main and a second topic, a token follows one of the two in all layers.
// 1. A token's first expert is drawn by weight: with probability topic_strength from its topic's clusters,
//    else from all experts.
// 2. Each further expert is drawn by weight from those not chosen yet: with probability `strength` from the
//    first expert's cluster while that has any left, else from all.
// So with one topic the first choices follow Zipf's law exactly; that no expert comes twice flattens the
// head of the others.
struct SyntheticOptions {
  int moe_layers = 16;                 // M, [1, 10,000]
  int dense_layers = 0;                // decoder layers before the first MoE layer, [0, 10,000]
  int num_experts = 64;                // E, [1, 65,534]
  int experts_per_token = 8;           // K, [1, E], at most 1,024
  std::int64_t tokens = 100'000;       // T, at least 0; T * M * K is at most 2^33 (16 GiB)
  std::int64_t sequence_length = 512;  // tokens, at least 1; the last sequence takes what is left
  int clusters = 8;                    // planted in each layer, [1, E]
  double strength = 0.5;               // probability, [0, 1]: 0 plants nothing
  double zipf = 0.5;                   // exponent of the weights, [0, 4]: 0 is uniform
  int topics = 4;                      // [1, 4,096]; topic t starts with a popularity of 1 / (1 + t)
  double topic_strength = 0.5;         // probability, [0, 1]: 0 makes topics all alike
  double mixing = 0.25;                // largest share of a sequence that follows its second topic, [0, 1]
  double drift = 0;  // share of the last sequences whose popularities are reversed, growing evenly
                     // from 0 with the first, [0, 1]; needs two topics
  Phase phase = Phase::kPrefill;
  std::int64_t prompt_length = 256;  // of phase mixed: prompts have 1 to this many tokens, evenly; >= 1
  std::uint64_t seed = 0;
  std::string model = "synthetic";
};

// A trace without weights and token ids; its `source` tells the options. The same bytes at any number of
// threads. progress, where given, is called by the caller's thread with tokens done and in all. Errors:
// invalid_input with the option, the value and the bound.
Result<Trace> synthetic_trace(const SyntheticOptions& options, ThreadPool& pool,
                              const std::function<void(std::int64_t, std::int64_t)>& progress = {});

// The truth behind synthetic_trace(options): planted cluster, [0, clusters), of each expert of a layer, [E].
// REQUIRES: options that synthetic_trace takes; layer in [0, M).
std::vector<int> planted_cluster_of_expert(const SyntheticOptions& options, MoeOrdinal layer);
// The main topic, [0, topics), of each sequence, [S]. REQUIRES: as above.
std::vector<int> planted_topic_of_sequence(const SyntheticOptions& options);

}  // namespace grace
