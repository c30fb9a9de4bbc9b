// A whole trace through a plan on a cluster, in seconds: what each MoE layer and device takes, what travels,
// and an estimate of the whole, pass after pass in the runtime's order (replay.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/evaluate.h"
#include "grace/plan/plan.h"
#include "grace/sim/replay.h"
#include "grace/trace/trace.h"

namespace grace {

// A part of the model that every device holds whole and runs for its own tokens. It takes the longer of its
// arithmetic and its memory traffic: weights are read once a pass, the cache of keys and values once a
// decoded token.
struct PartPrice {
  double flops_per_token = 0;
  double prefill_flops_per_key = 0;  // for each key that a token attends to
  double decode_flops_per_key = 0;
  double decode_bytes_per_key = 0;
  double weight_bytes = 0;
};
struct DecoderLayerPrice {
  PartPrice attention;
  PartPrice ffn;  // of a dense layer; of a MoE layer its router and shared experts
  bool is_moe = false;
  bool is_windowed = false;
};
struct ModelPrice {
  std::vector<DecoderLayerPrice>
      layers;      // ascending; the MoE layers among them are the trace's, in its order
  PartPrice head;  // for one token of each sequence in a pass
  int window = 0;  // keys a token of a windowed layer attends to at most
};

struct SimulateOptions {
  int batch = 0;  // sequences that run together, over all devices; 0: all of them
  Dispatch dispatch = Dispatch::kTwoStage;
  Combine combine = Combine::kReduced;
  Workload workload = {};
  LayerSizes sizes;                // not known: no seconds of MoE layers
  ModelPrice model;                // no layers: no seconds of anything else
  int recorded_decode_passes = 2;  // kept for a timeline, after the first prefill pass
  std::function<void(std::int64_t done, std::int64_t total)>
      progress;  // layers; called by the calling thread
};

// One MoE layer over the whole trace.
struct LayerSimulation {
  Figures figures;                          // means over the passes in which the layer has an assignment
  std::int64_t passes = 0;                  // those
  LayerTime prefill, decode;                // summed over passes
  std::vector<double> compute_of_device_s;  // [D] summed over passes
  std::vector<std::int64_t> load;           // [D] assignments, summed
  std::int64_t cross_node_vectors = 0;      // of dispatch, summed
  std::int64_t intra_node_vectors = 0;
  std::int64_t cross_node_results = 0;  // of combine: as many with reduced results
  std::int64_t intra_node_results = 0;
  LayerTime time() const;
};

// The passes of one phase; each part counts as the slowest device takes, and no two overlap.
struct PhaseTime {
  std::int64_t passes = 0;  // with a token
  std::int64_t tokens = 0;
  LayerTime moe;  // exchange and experts of all MoE layers
  double attention_s = 0;
  double dense_ffn_s = 0;
  double beside_experts_s = 0;  // routers and shared experts
  double head_s = 0;
  double moe_layers_s() const { return moe.total_s() + beside_experts_s; }
  double total_s() const { return moe_layers_s() + attention_s + dense_ffn_s + head_s; }
  // Shares in [0, 1]; 0 of nothing.
  double all_to_all_of_moe_layers() const;
  double all_to_all_of_whole() const;
  PhaseTime& operator+=(const PhaseTime& other);
};

// One pass in full, for a timeline.
struct PassRecord {
  std::int64_t pass = 0;  // counted from 0 over all passes
  bool prefill = false;
  std::vector<LayerTime> moe;            // [M]
  std::vector<double> expert_compute_s;  // [M, D]
  std::vector<double> attention_s;       // [layers of the model, D]
  std::vector<double> ffn_s;             // [layers of the model, D]
  std::vector<double> head_s;            // [D]
};

struct Simulation {
  std::vector<LayerSimulation> layers;  // [M]
  PhaseTime prefill, decode;
  std::vector<PassRecord> records;
  PhaseTime whole() const;
};

// Policies with feedback see the loads after every 32 tokens of each source. The same at any thread count.
// Errors: invalid_input when plan, cluster and trace disagree, the routing policy is unknown, or a workload
// has no batch, no decode, or a trace without tokens. The trace is not copied. REQUIRES: violations(trace) is
// empty; as many MoE layers in options.model as in the trace, or no layers.
Result<Simulation> simulate(const Trace& trace, const Plan& plan, const Cluster& cluster,
                            const SimulateOptions& options, ThreadPool& pool);

}  // namespace grace
