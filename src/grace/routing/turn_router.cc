// Smooth weighted round-robin, as nginx does it: every candidate gains its weight, the richest is taken and
// pays the sum of all weights.
#include <algorithm>
#include <cmath>
#include <limits>

#include "grace/base/check.h"
#include "grace/routing/policy.h"

namespace grace::routing {
namespace {

// Weights are whole numbers, so that turns neither drift nor depend on the compiler's floating point: the
// least loaded device weighs 2^32.
constexpr double kFullWeight = 4294967296.0;
// A device that was predicted (almost) no load weighs as one with this share of the largest prediction.
constexpr double kTinyShare = 1e-6;

class TurnRouter final : public Router {
 public:
  TurnRouter(const PolicyInput& input, CandidatesOf candidates_of) {
    const std::vector<std::int64_t> weights = weights_of(input.predicted_load, input.cluster.num_devices());
    for (const std::vector<DeviceId>& hosts : input.hosts_of_expert) {
      if (hosts.empty()) {
        answer_.push_back(kNoHost);
        continue;
      }
      std::vector<DeviceId> candidates = candidates_of(hosts, input);
      if (candidates.size() == 1) {
        answer_.push_back(candidates.front().value);
        continue;
      }
      std::ranges::sort(candidates);  // so that a tie goes to the lower device
      answer_.push_back(kFirstTurn - static_cast<std::int32_t>(turns_.size()));
      Turn turn{candidates_.size(), candidates_.size() + candidates.size(), 0};
      for (const DeviceId device : candidates) {
        candidates_.push_back({device.value, weights[device.idx()], 0});
        turn.sum += weights[device.idx()];
      }
      turns_.push_back(turn);
    }
  }

  void route(std::span<const std::uint16_t> choices, int experts_per_token,
             std::span<std::int32_t> device_of_choice) override {
    GRACE_CHECK(choices.size() == device_of_choice.size(), "a device for each choice");
    GRACE_CHECK(experts_per_token > 0 && choices.size() % static_cast<std::size_t>(experts_per_token) == 0,
                "choices are [T, K]");
    for (std::size_t i = 0; i < choices.size(); ++i) device_of_choice[i] = device_for(choices[i]);
  }

 private:
  struct Turn {
    std::size_t begin, end;  // its candidates
    std::int64_t sum;        // of their weights
  };
  struct Candidate {
    std::int32_t device;
    std::int64_t weight;
    std::int64_t credit;
  };
  static constexpr std::int32_t kNoHost = -1;
  static constexpr std::int32_t kFirstTurn = -2;  // turn t is kFirstTurn - t

  std::int32_t device_for(std::uint16_t expert) {
    if (expert == kNotChosen) return kNoDevice.value;
    GRACE_CHECK(expert < answer_.size(), "a chosen expert is in [0, E)");
    const std::int32_t answer = answer_[expert];
    if (answer >= 0) return answer;
    GRACE_CHECK(answer != kNoHost, "a chosen expert has a host");
    return take_turn(turns_[static_cast<std::size_t>(kFirstTurn - answer)]);
  }

  std::int32_t take_turn(const Turn& turn) {
    Candidate* richest = nullptr;
    for (std::size_t c = turn.begin; c < turn.end; ++c) {
      Candidate& candidate = candidates_[c];
      candidate.credit += candidate.weight;
      if (richest == nullptr || candidate.credit > richest->credit) richest = &candidate;
    }
    richest->credit -= turn.sum;
    return richest->device;
  }

  std::vector<std::int32_t> answer_;  // [E]: the only candidate, or its turn
  std::vector<Turn> turns_;
  std::vector<Candidate> candidates_;
};

}  // namespace

std::vector<std::int64_t> weights_of(std::span<const double> predicted_load, int num_devices) {
  const auto devices = static_cast<std::size_t>(num_devices);
  std::vector<std::int64_t> weights(devices, 1);
  double largest = 0;
  for (const double load : predicted_load) largest = std::max(largest, std::isfinite(load) ? load : 0.0);
  if (predicted_load.empty() || largest <= 0) return weights;
  GRACE_CHECK(predicted_load.size() == devices, "predicted_load has a value for each device");
  const double tiny = largest * kTinyShare;
  std::vector<double> loads;
  for (const double load : predicted_load)
    loads.push_back(std::isfinite(load) ? std::max(load, tiny) : largest);
  const double least = *std::ranges::min_element(loads);
  for (std::size_t d = 0; d < devices; ++d)
    weights[d] = std::max<std::int64_t>(1, std::llround(kFullWeight * (least / loads[d])));
  return weights;
}

std::unique_ptr<Router> make_turn_router(const PolicyInput& input, CandidatesOf candidates_of) {
  return std::make_unique<TurnRouter>(input, candidates_of);
}

}  // namespace grace::routing
