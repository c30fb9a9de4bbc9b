#include <algorithm>
#include <vector>

#include "grace/base/check.h"
#include "grace/kernels/cpu/expert_panels.h"
#include "grace/kernels/matmul.h"

namespace grace::kernels {
namespace {

// From so many experts a thread on, the last to finish leaves the others waiting for little.
constexpr std::size_t kManyOfThread = 16;
// Panels that one thread takes at a time: two groups of the most that are read at once.
constexpr std::size_t kPanelsOfItem = 8;

// What one expert's rows are turned into between the loops. Kept.
struct Lot {
  OperandMaker in, middle;
  OperandRows x, activated;
  std::vector<float> activations;  // [rows, F]
};

// A loop's items: of each expert its panels, some at a time.
class PanelItems {
 public:
  struct Item {
    std::size_t expert, first, last;
  };
  void clear() { items_.clear(); }
  void add(std::size_t expert, std::size_t panels) {
    for (std::size_t first = 0; first < panels; first += kPanelsOfItem)
      items_.push_back({expert, first, std::min(first + kPanelsOfItem, panels)});
  }
  std::size_t size() const { return items_.size(); }
  const Item& operator[](std::size_t i) const { return items_[i]; }

 private:
  std::vector<Item> items_;
};

std::vector<float>& sums_of_thread() {
  static thread_local std::vector<float> sums;
  return sums;
}

// Both products over the panels of all experts, a loop each.
void share_panels(std::span<const ExpertRows> experts, ThreadPool& pool) {
  static thread_local std::vector<Lot> kept;
  static thread_local PanelItems kept_items;
  std::vector<Lot>& lots = kept;  // the caller's, also in the pool's threads
  PanelItems& items = kept_items;
  if (lots.size() < experts.size()) lots.resize(experts.size());
  items.clear();
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const PackedExpert& expert = *experts[e].expert;
    const std::size_t values = experts[e].rows.size() * static_cast<std::size_t>(expert.ffn);
    if (lots[e].activations.size() < values) lots[e].activations.resize(values);
    lots[e].x = lots[e].in.make(expert.gate_up, experts[e].rows);
    items.add(e, num_panels(expert.gate_up));
  }
  pool.for_each(items.size(), [&](std::size_t i, int) {
    const auto& item = items[i];
    const ExpertRows& rows = experts[item.expert];
    Lot& lot = lots[item.expert];
    activate_into(*rows.expert, lot.x, rows.rows.size(), item.first, item.last, {}, sums_of_thread(),
                  lot.activations.data());
  });
  items.clear();
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const PackedExpert& expert = *experts[e].expert;
    const std::size_t values = experts[e].rows.size() * static_cast<std::size_t>(expert.ffn);
    lots[e].activated = lots[e].middle.make(expert.down, std::span(lots[e].activations).first(values));
    items.add(e, num_panels(expert.down));
  }
  pool.for_each(items.size(), [&](std::size_t i, int) {
    const auto& item = items[i];
    const ExpertRows& rows = experts[item.expert];
    multiply_into(rows.expert->down, lots[item.expert].activated, rows.rows.size(), item.first, item.last,
                  sums_of_thread(), [&](std::size_t r) { return rows.y[r]; });
  });
}

}  // namespace

void expert_ffns(std::span<const ExpertRows> experts, ThreadPool& pool) {
  for (const ExpertRows& rows : experts)
    GRACE_CHECK(rows.rows.size() == rows.y.size() && !rows.rows.empty(), "as many outputs as rows, and some");
  if (pool.num_threads() > 1 &&
      experts.size() < kManyOfThread * static_cast<std::size_t>(pool.num_threads())) {
    share_panels(experts, pool);
    return;
  }
  pool.for_each(experts.size(),
                [&](std::size_t e, int) { expert_ffn(experts[e].rows, *experts[e].expert, experts[e].y); });
}

}  // namespace grace::kernels
