// The engine on one rank: its share of the sequences (data-parallel attention) and its share of the experts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/comm/transport.h"
#include "grace/cost/cost.h"
#include "grace/kernels/instructions.h"
#include "grace/model/model.h"
#include "grace/plan/plan.h"
#include "grace/trace/trace.h"

namespace grace {

inline constexpr int kMostParts = 4;

// Whether what is here is computed while the rest flies, at the price of reading the weights of an expert
// twice when it is needed for both. What comes out is the same.
enum class Overlap { kOff, kWherePays, kAlways };

struct EngineOptions {
  // What products are calculated with; routers are f32 whatever it is.
  kernels::Arithmetic arithmetic = {};
  Dispatch dispatch = Dispatch::kPerDevice;
  // per_device or two_stage, in each step the quicker one by the cluster's constants, in place of `dispatch`.
  bool choose_dispatch = false;
  Combine combine = Combine::kExact;
  Wire wire = Wire::kF32;
  Overlap overlap = Overlap::kWherePays;
  // In how many parts, one behind the other, a step's tokens go through a layer, so that the experts of one
  // work while another flies: at most kMostParts, 0 for two where that pays by the cluster's constants,
  // which price per_device and two_stage alone. One where messages are padded, and where ranks are aligned.
  int parts = 1;
  // A folder for packed weights, so that a second start maps them; empty: none. PackedCache says how.
  std::filesystem::path packed_cache = {};
  bool record_trace = false;
  bool record_spans = false;
  // For comparing with others: fills in the experts [K] that a token takes in a MoE layer, in place of the
  // gate, which weighs them. position: of the token in its sequence.
  std::function<void(MoeOrdinal layer, int sequence, int position, std::span<std::uint16_t> experts)> choose =
      {};
  // For measuring: ranks wait for one another before and after each exchange, so that an exchange's time
  // holds no other rank's computing.
  bool aligned = false;
};

// What one rank did in one MoE layer, added up over steps.
struct LayerCounters {
  std::int64_t tokens = 0;       // own tokens gated
  std::int64_t assignments = 0;  // (token, expert) pairs computed here
  LevelBytes dispatch;           // sent by this rank, from the transport's own count
  LevelBytes combine;
  // dispatch_s and combine_s are packing, exchange and unpacking; wait_s is the part of both that was spent
  // inside the exchange, which is mostly for others.
  double gate_s = 0, dispatch_s = 0, experts_s = 0, combine_s = 0, wait_s = 0;
  // Processor time of the calling thread: gate and routing; experts; packing, unpacking and adding up outside
  // the exchanges.
  double gate_cpu_s = 0, experts_cpu_s = 0, pack_cpu_s = 0;
  // Seconds of the steady clock, of the last step: each exchange from the first byte sent to the last one
  // taken.
  double dispatch_begin_s = 0, dispatch_end_s = 0, combine_begin_s = 0, combine_end_s = 0;
};

enum class Activity : std::int32_t { kAttention, kGate, kPack, kDispatch, kExperts, kCombine, kAdd, kDense };
std::string_view name_of(Activity activity);

inline constexpr std::int32_t kDenseLayer = -1;

// One stretch of one rank's work, in seconds of the steady clock. kDispatch and kCombine are messages on
// their way, and other phases may go on meanwhile; the rest are the rank's own work, one after the other.
struct Span {
  std::int32_t layer = 0;  // moe ordinal, kDenseLayer of any layer that is not MoE
  Activity activity = Activity::kGate;
  double begin_s = 0, end_s = 0;
};

// One step's input for this rank: new tokens of some of its sequences.
struct StepInput {
  std::vector<int> sequences;           // slots in the KV cache, distinct
  std::vector<std::int32_t> token_ids;  // new tokens, sequence after sequence
  std::vector<int> num_new;             // [sequences.size()], each >= 1
};

// Whether model, plan, cluster and transport speak of the same machine and the same experts. Errors:
// invalid_input, unsupported.
Status check_together(const ModelConfig& config, const Plan& plan, const Cluster& cluster,
                      const Transport& transport);

// Collective: all ranks make it, step it and leave it together. Thread-compatible.
class Engine {
 public:
  // Loads what this rank hosts. Errors: those of the model room; invalid_input when plan, cluster, transport
  // and model disagree (all ranks get it).
  static Result<std::unique_ptr<Engine>> make(const std::filesystem::path& folder, const Plan& plan,
                                              const Cluster& cluster, Transport& transport, ThreadPool& pool,
                                              const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelConfig& config() const = 0;
  // Makes room for sequence slots [0, num_sequences), all empty.
  virtual void reset(int num_sequences) = 0;
  // Frees the cache of a sequence that is not stepped again; what was recorded of it stays.
  virtual void release(int sequence) = 0;
  // Runs the new tokens through the model. logits: for every new token [T, V] when all_logits, else for each
  // sequence's last one [S, V]. A rank with no tokens calls it too. REQUIRES: ids in [0, V), slots below
  // reset()'s, no sequence longer than the model has positions. Errors: the transport's.
  virtual Status step(const StepInput& input, bool all_logits, std::vector<float>& logits) = 0;

  virtual std::span<const LayerCounters> counters() const = 0;  // [M]
  virtual void clear_counters() = 0;
  // What was done since the last call, by when it ended; nothing unless record_spans.
  virtual std::vector<Span> take_spans() = 0;
  // The routing of this rank's tokens since reset(), sequence after sequence in slot order, unused slots left
  // out; a sequence's first step counts as its prompt. What was taken is forgotten. REQUIRES: record_trace.
  virtual Trace take_trace() = 0;
};

}  // namespace grace
