#include "grace/sim/spans.h"

#include <algorithm>
#include <span>

namespace grace {
namespace {

// Draws one pass; the time runs on from pass to pass.
class Drawing {
 public:
  Drawing(std::vector<SimulatedSpan>& spans, double& now) : spans_(spans), now_(now) {}

  void begin(std::int64_t pass) { pass_ = pass; }
  void begin_layer(int layer) { layer_ = layer; }

  // seconds: [D].
  void part(SpanPart part, std::span<const double> seconds, bool show_wait = false) {
    if (seconds.empty()) return;
    const double slowest = *std::ranges::max_element(seconds);
    for (std::size_t d = 0; d < seconds.size(); ++d) {
      add(d, part, now_, now_ + seconds[d]);
      if (show_wait) add(d, SpanPart::kWait, now_ + seconds[d], now_ + slowest);
    }
    now_ += slowest;
  }

  void moe(const LayerTime& time, std::span<const double> compute_s) {
    const std::vector<double> half(compute_s.size(), time.all_to_all_s() / 2);
    part(SpanPart::kDispatch, half);
    part(SpanPart::kExperts, compute_s, true);
    part(SpanPart::kCombine, half);
  }

 private:
  void add(std::size_t device, SpanPart part, double begin, double end) {
    if (end > begin) spans_.push_back({static_cast<int>(device), pass_, layer_, part, begin, end});
  }

  std::vector<SimulatedSpan>& spans_;
  double& now_;
  std::int64_t pass_ = 0;
  int layer_ = -1;
};

// Attention, feed-forward, dispatch, experts, wait, combine.
constexpr std::size_t kMostSpansOfLayer = 6;

}  // namespace

std::string_view name_of(SpanPart part) {
  switch (part) {
    case SpanPart::kAttention:
      return "attention";
    case SpanPart::kDenseFfn:
      return "dense FFN";
    case SpanPart::kBesideExperts:
      return "router and shared experts";
    case SpanPart::kDispatch:
      return "dispatch";
    case SpanPart::kExperts:
      return "experts";
    case SpanPart::kWait:
      return "wait";
    case SpanPart::kCombine:
      return "combine";
    case SpanPart::kHead:
      break;
  }
  return "head";
}

SimulatedSpans spans_of(const Simulation& simulation, const ModelPrice& model, std::size_t max_spans) {
  SimulatedSpans drawn;
  double now = 0;
  Drawing drawing(drawn.spans, now);
  for (const PassRecord& record : simulation.records) {
    const std::size_t num_devices =
        record.moe.empty() ? record.head_s.size() : record.expert_compute_s.size() / record.moe.size();
    const std::size_t num_layers = model.layers.empty() ? record.moe.size() : model.layers.size();
    const auto row = [&](const std::vector<double>& seconds, std::size_t i) {
      return std::span(seconds).subspan(i * num_devices, num_devices);
    };
    drawing.begin(record.pass);
    std::size_t moe_ordinal = 0;
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      if (drawn.spans.size() + kMostSpansOfLayer * num_devices > max_spans) {
        drawn.all = false;
        return drawn;
      }
      drawing.begin_layer(static_cast<int>(layer));
      const bool is_moe = model.layers.empty() || model.layers[layer].is_moe;
      if (!model.layers.empty()) {
        drawing.part(SpanPart::kAttention, row(record.attention_s, layer));
        drawing.part(is_moe ? SpanPart::kBesideExperts : SpanPart::kDenseFfn, row(record.ffn_s, layer));
      }
      if (!is_moe) continue;
      drawing.moe(record.moe[moe_ordinal], row(record.expert_compute_s, moe_ordinal));
      ++moe_ordinal;
    }
    drawing.begin_layer(-1);
    if (drawn.spans.size() + record.head_s.size() > max_spans) {
      drawn.all = false;
      return drawn;
    }
    drawing.part(SpanPart::kHead, record.head_s);
  }
  return drawn;
}

}  // namespace grace
