// `cover`: the cheapest set of devices at the prices of the plan (cover.h). `cover_feedback`: the prices also
// follow the loads that the devices report.
#include <algorithm>
#include <array>
#include <numeric>

#include "grace/base/check.h"
#include "grace/routing/cover.h"
#include "grace/routing/policy.h"

namespace grace::routing {
namespace {

CoverCosts costs_of(const PolicyInput& input) {
  CoverCosts costs = input.cover;
  // A plan that says nothing of costs: nodes dear, devices cheap, nothing to choose among equals.
  if (costs == CoverCosts()) costs = {16, 1, {}};
  return costs;
}

class CoverRouter : public Router {
 public:
  explicit CoverRouter(const PolicyInput& input)
      : costs_(costs_of(input)),
        cover_(input.cluster, static_cast<int>(input.hosts_of_expert.size()), costs_),
        source_(input.source.idx()),
        experts_(input.hosts_of_expert.size()) {
    for (std::size_t e = 0; e < experts_; ++e)
      for (const DeviceId device : input.hosts_of_expert[e])
        cover_.set_host(ExpertId(static_cast<std::int32_t>(e)), device, true);
    has_host_.resize(experts_);
    for (std::size_t e = 0; e < experts_; ++e) has_host_[e] = input.hosts_of_expert[e].empty() ? 0 : 1;
  }

  void route(std::span<const std::uint16_t> choices, int experts_per_token,
             std::span<std::int32_t> device_of_choice) override {
    GRACE_CHECK(choices.size() == device_of_choice.size(), "a device for each choice");
    const auto top_k = static_cast<std::size_t>(experts_per_token);
    GRACE_CHECK(experts_per_token > 0 && choices.size() % top_k == 0, "choices are [T, K]");
    for (std::size_t i = 0; i < choices.size(); i += top_k)
      route_token(choices.subspan(i, top_k), device_of_choice.subspan(i, top_k));
  }

 protected:
  void set_prices(std::span<const double> prices) { cover_.set_prices(prices); }
  const CoverCosts& costs() const { return costs_; }
  std::size_t num_devices() const { return cover_.num_devices(); }

 private:
  void route_token(std::span<const std::uint16_t> choices, std::span<std::int32_t> devices) {
    std::array<std::uint16_t, kMaxExpertsPerToken> experts;
    std::array<std::int32_t, kMaxExpertsPerToken> device_of;
    GRACE_CHECK(choices.size() <= experts.size(), "too many experts for one token");
    std::size_t count = 0;
    for (const std::uint16_t expert : choices) {
      if (expert == kNotChosen) continue;
      GRACE_CHECK(expert < experts_ && has_host_[expert] != 0, "a chosen expert is in [0, E) and has a host");
      experts[count++] = expert;
    }
    cover_.route({experts.data(), count}, source_, device_of.data());
    count = 0;
    for (std::size_t k = 0; k < choices.size(); ++k)
      devices[k] = choices[k] == kNotChosen ? kNoDevice.value : device_of[count++];
  }

  CoverCosts costs_;
  Cover cover_;
  std::size_t source_;
  std::size_t experts_;
  std::vector<std::uint8_t> has_host_;  // [E]
};

// A device that has got more than its share of the pass so far is dearer by kGain of the mean price for each
// kStep of the mean load.
class FeedbackRouter final : public CoverRouter {
 public:
  explicit FeedbackRouter(const PolicyInput& input) : CoverRouter(input), price_(costs().price) {
    if (price_.empty()) price_.assign(num_devices(), 0);
    const double mean =
        std::accumulate(price_.begin(), price_.end(), 0.0) / static_cast<double>(num_devices());
    scale_ = mean > 0 ? mean : std::max(costs().device, costs().node / 16);
    now_.resize(num_devices());
  }

  void observe(std::span<const std::int64_t> load, std::int64_t expected) override {
    GRACE_CHECK(load.size() == price_.size(), "a load for each device");
    const auto devices = static_cast<double>(load.size());
    const double so_far =
        static_cast<double>(std::accumulate(load.begin(), load.end(), std::int64_t{0})) / devices;
    const double whole = static_cast<double>(expected) / devices;
    double least = 0;
    for (std::size_t d = 0; d < load.size(); ++d) {
      const double above = whole > 0 ? (static_cast<double>(load[d]) - so_far) / whole : 0;
      now_[d] = price_[d] + scale_ * kGain * above;
      least = std::min(least, now_[d]);
    }
    for (double& price : now_) price -= least;
    set_prices(now_);
  }

 private:
  static constexpr double kGain = 12;
  std::vector<double> price_;  // [D] the plan's
  std::vector<double> now_;
  double scale_ = 0;
};

}  // namespace

std::unique_ptr<Router> make_cover(const PolicyInput& input) { return std::make_unique<CoverRouter>(input); }
std::unique_ptr<Router> make_cover_feedback(const PolicyInput& input) {
  return std::make_unique<FeedbackRouter>(input);
}

}  // namespace grace::routing
