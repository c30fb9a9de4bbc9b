// Tokens to the experts and results home, over one hop or two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/runtime/context.h"
#include "grace/runtime/hop.h"
#include "grace/runtime/messages.h"

namespace grace {

// The tokens of one rank in one layer, gated and routed.
struct RoutedTokens {
  std::span<const float> x;                        // [T, H]
  std::span<const std::uint16_t> experts;          // [T, K]
  std::span<const float> weights;                  // [T, K] the gate's
  std::span<const std::int32_t> device_of_choice;  // [T, K], kNoDevice.value where nothing was chosen
};

// One row that this rank computes.
struct ExpertRow {
  ExpertId expert;
  const float* x = nullptr;  // [H]
};

// With dispatch two_stage a vector first travels to the entry of each other node that wants it, the entry
// passes it on inside its node and gathers the node's results; with flat and per_device it goes straight to
// each device. How results are added up:
//   exact    each (token, expert) comes home and is weighed and added there in f32, by ascending expert: the
//   same
//            bits for every plan, rank count, dispatch and transport.
//   reduced  a device weighs and adds what it computed for a vector, by ascending expert; who sent it the
//   vector
//            adds up devices in ascending order, home its own node's and then the others'. The same additions
//            in another order: |reduced - exact| <= 2 (K - 1) u / (1 - (K - 1) u) * sum |w_e y_e|, u = 2^-24
//            (Higham, Accuracy and Stability, 2nd ed., 4.2).
// Used layer after layer: dispatch, compute rows(), combine. Thread-compatible; buffers are kept.
class ExpertExchange {
 public:
  // The context must outlive it.
  explicit ExpertExchange(const RankContext& context);

  // Collective. tokens stay until combine(). Errors: the transport's; peer_lost for a message that cannot be.
  Status dispatch(const RoutedTokens& tokens, HopCost& cost);
  // Of all tokens that chose an expert here. Stays until the next dispatch().
  std::span<const ExpertRow> rows() const { return rows_; }
  // Collective. outputs: [rows(), H]; h: [T, H] += the tokens' results.
  Status combine(std::span<const float> outputs, std::span<float> h, HopCost& cost);

 private:
  // A vector at this rank whose assignments are all served inside the last hop's group. Its parts are
  // parts_[first, last).
  struct Item {
    std::size_t first, last;
    std::size_t num_assignments;
  };
  // Assignments of an item that one device serves, part_assignments_[first, first + count): vector `number`
  // of the last hop's position, or this rank's own rows from `number` on.
  struct Part {
    std::size_t position, number;
    std::size_t first, count;
  };
  // Assignments of an own token that went one way: item `number`, whose parts know them, or vector `number` of
  // the first hop's position, of home_assignments_[first, first + count).
  struct Home {
    std::size_t token;
    bool is_item;
    std::size_t position, number;
    std::size_t first, count;
  };
  // Who serves an assignment, of those that are being added: its place in the last hop's group.
  struct Wanted {
    WireAssignment assignment;
    std::size_t position;
  };
  // One result on its way home.
  struct Weighed {
    std::uint16_t expert;
    float weight;
    const float* row;
  };

  void start(const RoutedTokens& tokens);
  void add_token(std::size_t token);
  void add_home(std::size_t token, std::span<const DeviceId> devices,
                std::span<const WireAssignment> assignments);
  void add_item(std::int32_t row, const float* x, std::span<const Wanted> wanted);
  void add_unwanted(std::int32_t row, const float* x, const Item& item);
  Status pass_on();
  Status collect_rows();

  const float* row_of(const Part& part, std::size_t i, std::span<const float> outputs) const;
  // to[rows, H]: one for each of the item's assignments, or their weighted sum.
  void result_of(const Item& item, std::span<const float> outputs, float* to) const;
  Status answer_last(std::span<const float> outputs, HopCost& cost);
  Status answer_first(std::span<const float> outputs, HopCost& cost);
  void weigh(const Home& home, std::span<const float> outputs);
  void add_exact(std::span<const Home> homes, std::span<const float> outputs, std::span<float> sum);
  void add_reduced(std::span<const Home> homes, std::span<const float> outputs, std::span<float> sum);

  bool exact() const { return context_.combine == Combine::kExact; }

  const RankContext& context_;
  std::size_t hidden_, top_k_;
  std::vector<std::uint16_t> local_;         // [D] index inside its node
  std::vector<std::size_t> node_;            // [D]
  std::vector<std::size_t> entry_position_;  // [N] of the node's entry in the first hop's group
  std::optional<Hop> first_;                 // between nodes; none where vectors go straight
  Hop last_;

  RoutedTokens tokens_;
  std::vector<std::size_t> cells_;
  std::vector<DeviceId> devices_;
  std::vector<WireAssignment> assignments_;
  std::vector<Wanted> wanted_;
  std::vector<std::size_t> places_;

  std::vector<Item> items_;  // of own tokens; then, from own_items_ on, of what arrived by the first hop
  std::size_t own_items_ = 0;
  std::vector<Part> parts_;
  std::vector<WireAssignment> part_assignments_;
  std::vector<std::size_t> part_index_;  // as part_assignments_: which of its item's
  std::vector<Home> homes_;              // by token
  std::vector<WireAssignment> home_assignments_;
  std::vector<ExpertRow> own_rows_;
  std::vector<ExpertRow> rows_;  // those of the last hop's parcels, then the own ones
  std::size_t arrived_rows_ = 0;
  std::vector<float> answers_;
  std::vector<Weighed> weighed_;
};

}  // namespace grace
