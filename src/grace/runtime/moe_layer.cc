#include "grace/runtime/moe_layer.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "grace/base/check.h"
#include "grace/runtime/packing.h"

namespace grace {
namespace {

constexpr int kNotHere = -1;
// Rows of one expert that one thread computes at a time: enough to use a weight often once it is in the
// cache, few enough to share out.
constexpr std::size_t kRowsPerItem = 64;

// Adds the time it lives to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// One exchange, with its wait timed and its bytes added by link level from the transport's own count.
// header_bytes: [D], the part that is no payload.
Status exchange_counted(const RankContext& context, std::span<const std::byte> send,
                        std::span<const std::size_t> offsets, std::span<const std::int64_t> header_bytes,
                        std::vector<std::byte>& received, std::vector<std::size_t>& received_offsets,
                        LevelBytes& bytes, double& wait_s) {
  Transport& transport = context.transport;
  const std::vector<std::int64_t> before = transport.bytes_sent_to();
  {
    const Stopwatch wait(wait_s);
    GRACE_TRY(transport.all_to_all(send, offsets, received, received_offsets));
  }
  const NodeId own_node = context.cluster.node_of(context.device());
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    const std::int64_t sent = transport.bytes_sent_to()[rank] - before[rank];
    GRACE_CHECK(sent == static_cast<std::int64_t>(offsets[rank + 1] - offsets[rank]),
                "the transport counts other bytes than it was handed");
    const bool same_node = context.cluster.node_of(DeviceId{static_cast<std::int32_t>(rank)}) == own_node;
    (same_node ? bytes.intra_node_payload : bytes.cross_node_payload) += sent - header_bytes[rank];
    (same_node ? bytes.intra_node_header : bytes.cross_node_header) += header_bytes[rank];
  }
  return {};
}

}  // namespace

Result<MoeLayer> MoeLayer::make(const RankContext& context, const Plan& plan, MoeOrdinal layer,
                                LayerWeights& weights, std::vector<ExpertWeights> experts) {
  MoeLayer made;
  made.plan_ = plan.layers[layer.idx()];
  made.policy_ = plan.routing;
  made.norm_ = std::move(weights.post_attention_norm);
  made.gate_ = pack_and_free(weights.router);
  made.slot_of_expert_.assign(static_cast<std::size_t>(context.config.num_experts), kNotHere);
  for (ExpertWeights& expert : experts) {
    made.slot_of_expert_[expert.expert.idx()] = static_cast<int>(made.experts_.size());
    made.experts_.push_back(
        {pack_and_free(expert.gate), pack_and_free(expert.up), pack_and_free(expert.down)});
  }
  made.router_ = GRACE_TRY(
      make_router(made.policy_, made.plan_, context.config.num_experts, context.cluster, context.device()));
  return made;
}

void MoeLayer::reset(const RankContext& context) {
  auto router = make_router(policy_, plan_, context.config.num_experts, context.cluster, context.device());
  GRACE_CHECK(router.ok(), "a router that could be made before cannot be made again");
  router_ = std::move(router).value();
}

Status MoeLayer::run(const RankContext& context, std::span<float> h, LayerCounters& counters,
                     Choices& choices) {
  std::vector<float> x(h.size());
  std::vector<std::int32_t> devices;
  {
    const Stopwatch time(counters.gate_s);
    kernels::rms_norm(h, norm_, context.config.rms_norm_eps, x);
    gate(context, x, choices, devices);
  }
  counters.tokens += static_cast<std::int64_t>(h.size() / norm_.size());
  Exchange exchange;
  {
    const Stopwatch time(counters.dispatch_s);
    const RoutedTokens tokens{x, choices.experts, devices, context.config.hidden_size,
                              context.config.experts_per_token};
    GRACE_TRY(dispatch(context, tokens, exchange, counters));
  }
  counters.assignments += static_cast<std::int64_t>(exchange.in.assignments.size());
  {
    const Stopwatch time(counters.experts_s);
    run_experts(context, exchange);
  }
  const Stopwatch time(counters.combine_s);
  return combine(context, exchange, choices, h, counters);
}

void MoeLayer::gate(const RankContext& context, std::span<const float> x, Choices& choices,
                    std::vector<std::int32_t>& devices) {
  const ModelConfig& config = context.config;
  const std::size_t tokens = x.size() / norm_.size();
  std::vector<float> logits(tokens * static_cast<std::size_t>(config.num_experts));
  kernels::matmul(x, gate_, logits, context.pool);
  choices.experts.assign(tokens * static_cast<std::size_t>(config.experts_per_token), kNotChosen);
  choices.weights.assign(choices.experts.size(), 0.0F);
  kernels::gate(logits, config.num_experts, config.experts_per_token, config.norm_topk_prob, choices.experts,
                choices.weights);
  devices.assign(choices.experts.size(), kNoDevice.value);
  router_->route(choices.experts, config.experts_per_token, devices);
}

Status MoeLayer::dispatch(const RankContext& context, const RoutedTokens& tokens, Exchange& exchange,
                          LayerCounters& counters) const {
  const auto num_ranks = static_cast<std::size_t>(context.transport.size());
  const std::size_t own = context.device().idx();
  Outgoing& out = exchange.out;
  Received& in = exchange.in;
  out = pack_dispatch(tokens, context.dispatch, context.transport.size(), context.device());
  std::vector<std::int64_t> header_bytes(num_ranks, 0);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (rank != own)
      header_bytes[rank] = out.counts.vectors[rank] * kBytesPerVectorHeader +
                           out.counts.assignments[rank] * kBytesPerAssignmentHeader;
  }
  std::vector<std::size_t> byte_offsets;
  GRACE_TRY(exchange_counted(context, out.bytes, out.offsets, header_bytes, in.bytes, byte_offsets,
                             counters.dispatch, counters.wait_s));

  in.offsets.assign(1, 0);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const auto message = std::span<const std::byte>(in.bytes).subspan(
        byte_offsets[rank], byte_offsets[rank + 1] - byte_offsets[rank]);
    Status read = unpack_dispatch(message, static_cast<int>(rank), context.config.hidden_size,
                                  context.config.num_experts, in.assignments);
    for (std::size_t i = in.offsets.back(); read.ok() && i < in.assignments.size(); ++i) {
      const ExpertId expert = in.assignments[i].expert;
      if (slot_of_expert_[expert.idx()] == kNotHere) {
        read = peer_lost("rank " + std::to_string(rank) + " sends a token for expert " +
                         std::to_string(expert.value) + ", which rank " + std::to_string(own) +
                         " does not hold: the ranks' plans differ");
      }
    }
    if (!read.ok()) {
      context.transport.abort(read.error().message);
      return read;
    }
    in.offsets.push_back(in.assignments.size());
  }
  for (const std::size_t cell : out.cells_of_rank[own]) {
    const std::size_t token = cell / static_cast<std::size_t>(tokens.experts_per_token);
    in.assignments.push_back({ExpertId{tokens.experts[cell]},
                              tokens.x.data() + token * static_cast<std::size_t>(tokens.hidden_size)});
  }
  return {};
}

void MoeLayer::run_experts(const RankContext& context, Exchange& exchange) const {
  const auto hidden = static_cast<std::size_t>(context.config.hidden_size);
  const std::vector<IncomingAssignment>& assignments = exchange.in.assignments;
  std::vector<std::vector<std::size_t>> rows_of_slot(experts_.size());
  for (std::size_t row = 0; row < assignments.size(); ++row) {
    rows_of_slot[static_cast<std::size_t>(slot_of_expert_[assignments[row].expert.idx()])].push_back(row);
  }
  struct Item {
    std::size_t slot;
    std::span<const std::size_t> rows;
  };
  std::vector<Item> items;
  for (std::size_t slot = 0; slot < rows_of_slot.size(); ++slot) {
    const std::span<const std::size_t> rows = rows_of_slot[slot];
    for (std::size_t first = 0; first < rows.size(); first += kRowsPerItem) {
      items.push_back({slot, rows.subspan(first, std::min(kRowsPerItem, rows.size() - first))});
    }
  }
  exchange.outputs.resize(assignments.size() * hidden);
  context.pool.for_each(items.size(), [&](std::size_t i, int) {
    const std::span<const std::size_t> rows = items[i].rows;
    std::vector<float> x(rows.size() * hidden);
    std::vector<float> y(x.size());
    for (std::size_t r = 0; r < rows.size(); ++r)
      std::copy_n(assignments[rows[r]].x, hidden, x.data() + r * hidden);
    kernels::expert_ffn(x, experts_[items[i].slot], y);
    for (std::size_t r = 0; r < rows.size(); ++r)
      std::copy_n(y.data() + r * hidden, hidden, exchange.outputs.data() + rows[r] * hidden);
  });
}

Status MoeLayer::combine(const RankContext& context, const Exchange& exchange, const Choices& choices,
                         std::span<float> h, LayerCounters& counters) const {
  const auto hidden = static_cast<std::size_t>(context.config.hidden_size);
  const std::size_t row_bytes = hidden * sizeof(float);
  const auto num_ranks = static_cast<std::size_t>(context.transport.size());
  std::vector<std::size_t> send_offsets;
  for (const std::size_t offset : exchange.in.offsets) send_offsets.push_back(offset * row_bytes);
  const std::vector<std::int64_t> no_headers(num_ranks, 0);
  std::vector<std::byte> received;
  std::vector<std::size_t> offsets;
  const auto send = std::as_bytes(std::span(exchange.outputs)).first(send_offsets.back());
  GRACE_TRY(exchange_counted(context, send, send_offsets, no_headers, received, offsets, counters.combine,
                             counters.wait_s));

  // Where each cell's output lies: in what came back, or at the end of what was computed here.
  std::vector<const float*> output_of_cell(choices.experts.size(), nullptr);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const std::vector<std::size_t>& cells = exchange.out.cells_of_rank[rank];
    const bool own = rank == context.device().idx();
    const std::size_t bytes = offsets[rank + 1] - offsets[rank];
    if (bytes != (own ? 0 : cells.size() * row_bytes)) {
      const std::string what = "rank " + std::to_string(rank) + " returns " + std::to_string(bytes) +
                               " bytes for " + std::to_string(cells.size()) + " vectors";
      context.transport.abort(what);
      return peer_lost(what);
    }
    const float* rows = own ? exchange.outputs.data() + exchange.in.offsets.back() * hidden
                            : reinterpret_cast<const float*>(received.data() + offsets[rank]);
    for (std::size_t i = 0; i < cells.size(); ++i) output_of_cell[cells[i]] = rows + i * hidden;
  }
  add_outputs(context, choices, output_of_cell, h);
  return {};
}

void MoeLayer::add_outputs(const RankContext& context, const Choices& choices,
                           std::span<const float* const> output_of_cell, std::span<float> h) {
  const auto hidden = static_cast<std::size_t>(context.config.hidden_size);
  const auto top = static_cast<std::size_t>(context.config.experts_per_token);
  std::vector<std::size_t> cells(top);
  std::vector<float> sum(hidden);
  for (std::size_t token = 0; token * top < choices.experts.size(); ++token) {
    for (std::size_t k = 0; k < top; ++k) cells[k] = token * top + k;
    std::ranges::sort(cells,
                      [&](std::size_t a, std::size_t b) { return choices.experts[a] < choices.experts[b]; });
    std::ranges::fill(sum, 0.0F);
    for (const std::size_t cell : cells) {
      const float* output = output_of_cell[cell];
      if (output == nullptr) continue;
      for (std::size_t i = 0; i < hidden; ++i) sum[i] += choices.weights[cell] * output[i];
    }
    for (std::size_t i = 0; i < hidden; ++i) h[token * hidden + i] += sum[i];
  }
}

}  // namespace grace
