#include "grace/runtime/shared_experts.h"

#include <algorithm>
#include <cmath>

#include "grace/base/check.h"
#include "grace/runtime/packing.h"

namespace grace {
namespace {

// As many as an expert's rows are computed at a time.
constexpr std::size_t kTokensOfLot = 96;

float sigmoid_of_product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return static_cast<float>(1 / (1 + std::exp(-sum)));
}

}  // namespace

SharedExperts load_shared(const RankContext& context, const Checkpoint& checkpoint,
                          const LayerWeights& weights) {
  SharedExperts experts;
  experts.ffn = pack_ffn(context, checkpoint, weights.shared);
  if (weights.shared_switch.empty()) return experts;
  experts.gate.resize(static_cast<std::size_t>(weights.shared_switch.cols));
  read_row(weights.shared_switch, 0, experts.gate);
  return experts;
}

void SharedWork::set(const SharedExperts* experts, std::span<const float> x) {
  experts_ = experts;
  x_ = x;
  next_ = 0;
  tokens_ = experts == nullptr ? 0 : x.size() / hidden_;
  // Outputs only grow: what is not computed is never read.
  if (outputs_.size() < tokens_ * hidden_) outputs_.resize(tokens_ * hidden_);
}

void SharedWork::run_some(ThreadPool& pool) {
  const std::size_t count = std::min(kTokensOfLot, tokens_ - next_);
  const auto x = x_.subspan(next_ * hidden_, count * hidden_);
  const auto y = std::span(outputs_).subspan(next_ * hidden_, count * hidden_);
  kernels::ffn(x, experts_->ffn, y, pool);
  for (std::size_t t = 0; !experts_->gate.empty() && t < count; ++t) {
    const float weight = sigmoid_of_product(x.subspan(t * hidden_, hidden_), experts_->gate);
    for (float& value : y.subspan(t * hidden_, hidden_)) value *= weight;
  }
  next_ += count;
}

void SharedWork::run_all(ThreadPool& pool) {
  while (!done()) run_some(pool);
}

void SharedWork::add(std::span<float> h) const {
  GRACE_CHECK(done(), "shared experts are added before they are computed");
  for (std::size_t i = 0; i < tokens_ * hidden_; ++i) h[i] += outputs_[i];
}

}  // namespace grace
