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
//            same bits for every plan, rank count, dispatch and transport.
//   reduced  a device weighs and adds what it computed for a vector, by ascending expert; who sent it the
//            vector adds up devices in ascending order, home its own node's and then the others'. The same
//            additions in another order: |reduced - exact| <= 2 (K - 1) u / (1 - (K - 1) u) * sum |w_e y_e|,
//            u = 2^-24 (Higham, Accuracy and Stability, 2nd ed., 4.2).
// What travels as bf16 is rounded: vectors before pack(), for all their experts, and exact results for all,
// also those that stay at home, so that exact stays the same bits for every plan; reduced results once for
// each hop of theirs, which adds at most 2 * 2^-8 * sum |w_e y_e| and a little more for the sums' own
// rounding. Used layer after layer: pack, send; own_rows may be computed at any time from here; when arrived,
// compute foreign_rows and answer; when home, add_up. Thread-compatible; buffers are kept.
class ExpertExchange {
 public:
  // The context must outlive it. Collective, as Transport::open.
  explicit ExpertExchange(const RankContext& context);

  // tokens stay until add_up(); x must be rounded as the wire is.
  void pack(const RoutedTokens& tokens);
  // Bytes are added to `sent`, here and until it has arrived. Errors, here and below: the transport's;
  // peer_lost for a message that cannot be.
  Status send(LevelBytes& sent);
  // Whether all vectors for this rank's experts are here; moves what can be moved, and waits only if it
  // should.
  Result<bool> arrived(bool wait);
  // Own tokens that chose an expert here. Stays until the next pack().
  std::span<const ExpertRow> own_rows() const { return own_rows_; }
  // Others' tokens that did. Stays until the next pack(). REQUIRES: arrived().
  std::span<const ExpertRow> foreign_rows() const { return foreign_rows_; }

  // Sends results. outputs: [foreign_rows(), H], stays until add_up(). Bytes are added to `sent`, here and
  // until it is home.
  Status answer(std::span<const float> outputs, LevelBytes& sent);
  // Whether all results of own tokens are here, as arrived().
  Result<bool> home(bool wait);
  // outputs: [own_rows(), H]; h: [T, H] += the tokens' results. REQUIRES: home().
  void add_up(std::span<const float> outputs, std::span<float> h);

 private:
  // A vector at this rank whose assignments are all served inside the last hop's group. Its parts are
  // parts_[first, last).
  struct Item {
    std::size_t first, last;
    std::size_t num_assignments;
  };
  // Assignments of an item that one device serves, part_assignments_[first, first + count): vector `number`
  // of the last hop's position, or, where that is this rank, its own or foreign rows from `number` on.
  struct Part {
    std::size_t position, number;
    std::size_t first, count;
  };
  // Assignments of an own token that went one way: item `number`, whose parts know them, or vector `number`
  // of the first hop's position, of home_assignments_[first, first + count).
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

  void clear();
  void add_token(std::size_t token);
  void add_home(std::size_t token, std::span<const DeviceId> devices,
                std::span<const WireAssignment> assignments);
  void add_item(std::int32_t row, const float* x, std::span<const Wanted> wanted,
                std::vector<ExpertRow>& rows);
  void add_unwanted(std::int32_t row, const float* x, const Item& item);
  Status pass_on();
  Status collect_rows();
  bool is_own(const Item& item) const { return &item < items_.data() + own_items_; }
  const float* row_of(const Item& item, const Part& part, std::size_t i) const;
  // to[rows, H]: one for each of the item's assignments, or their weighted sum.
  void result_of(const Item& item, float* to) const;
  Status answer_last();
  Status answer_first();
  void weigh(const Home& home);
  void add_exact(std::span<const Home> homes, std::span<float> sum);
  void add_reduced(std::span<const Home> homes, std::span<float> sum);
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
  std::vector<ExpertRow> foreign_rows_;  // those passed on to this rank by itself, then those that arrived
  std::size_t passed_rows_ = 0;
  bool passed_on_ = false, collected_ = false, answered_first_ = false;
  LevelBytes* sent_ = nullptr;
  std::span<const float> own_outputs_, foreign_outputs_;
  std::vector<float> answers_, sum_;
  std::vector<Weighed> weighed_;
};

}  // namespace grace
