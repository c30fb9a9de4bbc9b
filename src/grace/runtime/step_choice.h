// How a step's tokens travel where nobody has said it: straight or in two stages, whole or in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "grace/base/result.h"
#include "grace/cluster/cluster.h"
#include "grace/comm/transport.h"
#include "grace/cost/cost.h"
#include "grace/model/model.h"

namespace grace {

// Where a token's experts are, as sums over `tokens` tokens; what a device serves its own tokens with is in
// none but `tokens`.
struct FanOut {
  double tokens = 0;
  double nodes = 0;        // other nodes
  double devices_out = 0;  // devices in other nodes
  double devices_in = 0;   // other devices in the own node
  double forwards = 0;     // devices_in, and of devices_out those that are not their node's entry
  double out = 0;          // (token, expert) in other nodes
  double in = 0;           // on other devices in the own node
  double passed = 0;       // of `out` those that are not on their node's entry
  FanOut& operator+=(const FanOut& other);
};
// device_of_choice: [T, K], kNoDevice.value where nothing was chosen.
FanOut fan_out_of(const Cluster& cluster, DeviceId source, std::span<const std::int32_t> device_of_choice,
                  int experts_per_token);
// What to expect before anything was seen: K choices of a token on devices drawn evenly.
FanOut even_fan_out(const Cluster& cluster, int experts_per_token);

// Seconds of dispatch and combine of one layer in which each device has `tokens` tokens, by the cluster's
// rates and latencies: what leaves the largest node over its link, then what one device sends inside it.
// REQUIRES: dispatch is per_device or two_stage.
double exchange_seconds(const Cluster& cluster, const FanOut& fan_out, double tokens, Dispatch dispatch,
                        Combine combine, double bytes_per_vector);

struct StepChoice {
  Dispatch dispatch = Dispatch::kPerDevice;
  std::size_t parts = 1;
};

// Chooses before each step the same on all ranks: the quicker dispatch by exchange_seconds for what the last
// step's fan-out was and for the rank with most tokens; and two parts where each still has rows enough for
// every expert and what can be hidden, the shorter of exchange and experts, is worth another pair of
// latencies. Depends on tokens and the cluster's constants alone: the same run chooses the same again.
class StepChooser {
 public:
  // dispatches: those to choose from. parts: 0 to choose. The references must outlive it. REQUIRES: where
  // there is anything to choose, dispatches are of exchange_seconds'.
  StepChooser(const ModelConfig& config, const Cluster& cluster, Transport& transport,
              std::span<const Dispatch> dispatches, int parts, Combine combine, Wire wire);

  // Collective. tokens: this rank's. Errors: the transport's.
  Result<StepChoice> choose(std::size_t tokens);
  // What a layer of the present step did.
  void saw(std::span<const std::int32_t> device_of_choice);

 private:
  const ModelConfig& config_;
  const Cluster& cluster_;
  Transport& transport_;
  std::span<const Dispatch> dispatches_;
  int parts_;
  Combine combine_;
  double bytes_per_vector_;
  FanOut seen_;
};

}  // namespace grace
