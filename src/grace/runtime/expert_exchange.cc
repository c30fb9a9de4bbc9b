#include "grace/runtime/expert_exchange.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "grace/base/check.h"

namespace grace {
namespace {

std::vector<int> everyone(const RankContext& context) {
  std::vector<int> group(static_cast<std::size_t>(context.transport.size()));
  std::iota(group.begin(), group.end(), 0);
  return group;
}

std::vector<int> own_node(const RankContext& context) {
  const NodeId node = context.cluster.node_of(context.device());
  std::vector<int> group(static_cast<std::size_t>(context.cluster.devices_in(node)));
  std::iota(group.begin(), group.end(), context.cluster.first_device_of(node).value);
  return group;
}

// Those that vectors go to and come from between nodes: the ranks of the same local index, where nodes are of
// one size; else a rank may be the entry of several others of a node, and all take part.
std::vector<int> peers(const RankContext& context) {
  const Cluster& cluster = context.cluster;
  std::vector<int> group;
  for (int n = 0; n < cluster.num_nodes(); ++n) {
    if (cluster.devices_in(NodeId(n)) != cluster.devices_in(NodeId(0))) return everyone(context);
    group.push_back(cluster.entry_of(NodeId(n), context.device()).value);
  }
  return group;
}

void add_to(std::span<float> sum, float weight, const float* row) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weight * row[i];
}

void add_to(std::span<float> sum, const float* row) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
}

}  // namespace

ExpertExchange::ExpertExchange(const RankContext& context)
    : context_(context),
      hidden_(static_cast<std::size_t>(context.config.hidden_size)),
      top_k_(static_cast<std::size_t>(context.config.experts_per_token)),
      last_(context, context.dispatch == Dispatch::kTwoStage ? own_node(context) : everyone(context)) {
  const Cluster& cluster = context.cluster;
  for (int d = 0; d < cluster.num_devices(); ++d) {
    local_.push_back(static_cast<std::uint16_t>(cluster.local_index_of(DeviceId(d))));
    node_.push_back(cluster.node_of(DeviceId(d)).idx());
  }
  if (context.dispatch != Dispatch::kTwoStage) return;
  first_.emplace(context, peers(context));
  for (int n = 0; n < cluster.num_nodes(); ++n) {
    const int entry = cluster.entry_of(NodeId(n), context.device()).value;
    const auto at = std::ranges::lower_bound(first_->group(), entry);
    entry_position_.push_back(static_cast<std::size_t>(at - first_->group().begin()));
  }
}

void ExpertExchange::pack(const RoutedTokens& tokens) {
  clear();
  tokens_ = tokens;
  for (std::size_t token = 0; token * top_k_ < tokens.experts.size(); ++token) add_token(token);
  own_items_ = items_.size();
}

Status ExpertExchange::send(LevelBytes& sent) {
  sent_ = &sent;
  return first_.has_value() ? first_->send(sent) : last_.send(sent);
}

void ExpertExchange::clear() {
  if (first_.has_value()) first_->clear();
  last_.clear();
  items_.clear();
  own_items_ = 0;
  parts_.clear();
  part_assignments_.clear();
  part_index_.clear();
  homes_.clear();
  home_assignments_.clear();
  own_rows_.clear();
  foreign_rows_.clear();
  passed_on_ = collected_ = answered_first_ = false;
}

Result<bool> ExpertExchange::arrived(bool wait) {
  if (first_.has_value() && !passed_on_) {
    if (!GRACE_TRY(first_->arrived(wait))) return false;
    GRACE_TRY(pass_on());
    passed_on_ = true;
    GRACE_TRY(last_.send(*sent_));
  }
  if (collected_) return true;
  if (!GRACE_TRY(last_.arrived(wait))) return false;
  GRACE_TRY(collect_rows());
  collected_ = true;
  return true;
}

// Sorts a token's assignments by node, where nodes are entered, and by expert.
void ExpertExchange::add_token(std::size_t token) {
  cells_.clear();
  for (std::size_t cell = token * top_k_; cell < (token + 1) * top_k_; ++cell)
    if (tokens_.device_of_choice[cell] != kNoDevice.value) cells_.push_back(cell);
  const auto node_of = [&](std::size_t cell) {
    return first_.has_value() ? node_[static_cast<std::size_t>(tokens_.device_of_choice[cell])] : 0;
  };
  std::ranges::sort(cells_, [&](std::size_t a, std::size_t b) {
    return std::pair(node_of(a), tokens_.experts[a]) < std::pair(node_of(b), tokens_.experts[b]);
  });
  if (cells_.empty() && context_.dispatch == Dispatch::kAllGather) add_home(token, {}, {});
  for (std::size_t first = 0; first < cells_.size();) {
    std::size_t last = first;
    devices_.clear();
    assignments_.clear();
    for (; last < cells_.size() && node_of(cells_[last]) == node_of(cells_[first]); ++last) {
      const std::size_t cell = cells_[last];
      devices_.emplace_back(tokens_.device_of_choice[cell]);
      assignments_.push_back({tokens_.experts[cell], local_[devices_.back().idx()], tokens_.weights[cell]});
    }
    add_home(token, devices_, assignments_);
    first = last;
  }
}

// Assignments of one node, or of all where vectors go straight.
void ExpertExchange::add_home(std::size_t token, std::span<const DeviceId> devices,
                              std::span<const WireAssignment> assignments) {
  const auto row = static_cast<std::int32_t>(token);
  const float* x = tokens_.x.data() + token * hidden_;
  Home home{token, true, 0, items_.size(), home_assignments_.size(), 0};
  const std::size_t node = devices.empty() ? 0 : node_[devices.front().idx()];
  if (first_.has_value() && node != node_[context_.device().idx()]) {
    home.is_item = false;
    home.count = assignments.size();
    home_assignments_.insert(home_assignments_.end(), assignments.begin(), assignments.end());
    home.position = entry_position_[node];
    home.number = first_->add(home.position, {row, assignments, x});
  } else {
    wanted_.clear();
    for (std::size_t i = 0; i < assignments.size(); ++i)
      wanted_.push_back({assignments[i], first_.has_value() ? assignments[i].local : devices[i].idx()});
    add_item(row, x, wanted_, own_rows_);
  }
  homes_.push_back(home);
}

// rows: where those that this rank serves itself go.
void ExpertExchange::add_item(std::int32_t row, const float* x, std::span<const Wanted> wanted,
                              std::vector<ExpertRow>& rows) {
  const bool alone = context_.dispatch == Dispatch::kFlat || context_.dispatch == Dispatch::kPadded;
  Item item{parts_.size(), 0, wanted.size()};
  // By device, and of a device by expert.
  places_.resize(wanted.size());
  std::iota(places_.begin(), places_.end(), std::size_t{0});
  std::ranges::sort(places_, {}, [&](std::size_t i) { return std::pair(wanted[i].position, i); });
  for (std::size_t at = 0; at < places_.size();) {
    const std::size_t position = wanted[places_[at]].position;
    Part part{position, 0, part_assignments_.size(), 0};
    while (at < places_.size() && wanted[places_[at]].position == position && (part.count == 0 || !alone)) {
      part_assignments_.push_back(wanted[places_[at]].assignment);
      part_index_.push_back(places_[at]);
      ++part.count;
      ++at;
    }
    const auto assignments = std::span(part_assignments_).subspan(part.first, part.count);
    if (position == last_.own()) {
      part.number = rows.size();
      for (const WireAssignment& assignment : assignments) rows.push_back({ExpertId{assignment.expert}, x});
    } else {
      part.number = last_.add(position, {row, assignments, x});
    }
    parts_.push_back(part);
  }
  if (context_.dispatch == Dispatch::kAllGather) add_unwanted(row, x, item);
  item.last = parts_.size();
  items_.push_back(item);
}

// To the ranks that have no expert of the token.
void ExpertExchange::add_unwanted(std::int32_t row, const float* x, const Item& item) {
  std::size_t part = item.first;
  const std::size_t wanted = parts_.size();
  for (std::size_t position = 0; position < last_.group().size(); ++position) {
    if (part < wanted && parts_[part].position == position) {
      ++part;
    } else if (position != last_.own()) {
      parts_.push_back({position, last_.add(position, {row, {}, x}), part_assignments_.size(), 0});
    }
  }
}

// What came from other nodes goes to its devices in this one.
Status ExpertExchange::pass_on() {
  const ParcelList& parcels = first_->parcels();
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    const Parcel parcel = parcels[i];
    wanted_.clear();
    for (const WireAssignment& assignment : parcel.assignments) {
      if (assignment.local >= last_.group().size()) {
        return lost(context_, "rank " + std::to_string(context_.transport.rank()) +
                                  " is sent a token for device " + std::to_string(assignment.local) +
                                  " of its node, which has " + std::to_string(last_.group().size()));
      }
      wanted_.push_back({assignment, assignment.local});
    }
    add_item(parcel.row, parcel.x, wanted_, foreign_rows_);
  }
  return {};
}

Status ExpertExchange::collect_rows() {
  passed_rows_ = foreign_rows_.size();
  const ParcelList& parcels = last_.parcels();
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    const Parcel parcel = parcels[i];
    for (const WireAssignment& assignment : parcel.assignments) {
      if (assignment.local != local_[context_.device().idx()]) {
        return lost(context_, "rank " + std::to_string(context_.transport.rank()) +
                                  " is sent a token for device " + std::to_string(assignment.local) +
                                  " of its node");
      }
      foreign_rows_.push_back({ExpertId{assignment.expert}, parcel.x});
    }
  }
  return {};
}

Status ExpertExchange::answer(std::span<const float> outputs, LevelBytes& sent) {
  GRACE_CHECK(outputs.size() == foreign_rows_.size() * hidden_, "an output for each row");
  foreign_outputs_ = outputs;
  sent_ = &sent;
  return answer_last();
}

Status ExpertExchange::answer_last() {
  const std::span<const float> outputs = foreign_outputs_.subspan(passed_rows_ * hidden_);
  if (exact()) return last_.answer(outputs, *sent_);
  const ParcelList& parcels = last_.parcels();
  answers_.assign(parcels.size() * hidden_, 0.0F);
  const float* row = outputs.data();
  for (std::size_t i = 0; i < parcels.size(); ++i)
    for (const WireAssignment& assignment : parcels[i].assignments) {
      add_to(std::span(answers_).subspan(i * hidden_, hidden_), assignment.weight, row);
      row += hidden_;
    }
  return last_.answer(answers_, *sent_);
}

Result<bool> ExpertExchange::home(bool wait) {
  if (!GRACE_TRY(last_.answered(wait))) return false;
  if (!first_.has_value()) return true;
  if (!answered_first_) GRACE_TRY(answer_first());
  answered_first_ = true;
  return first_->answered(wait);
}

Status ExpertExchange::answer_first() {
  std::size_t rows = 0;
  for (std::size_t i = own_items_; i < items_.size(); ++i) rows += exact() ? items_[i].num_assignments : 1;
  answers_.resize(rows * hidden_);
  float* to = answers_.data();
  for (std::size_t i = own_items_; i < items_.size(); ++i) {
    result_of(items_[i], to);
    to += (exact() ? items_[i].num_assignments : 1) * hidden_;
  }
  return first_->answer(answers_, *sent_);
}

const float* ExpertExchange::row_of(const Item& item, const Part& part, std::size_t i) const {
  if (part.position != last_.own()) return last_.result(part.position, part.number) + i * hidden_;
  const std::span<const float> outputs = is_own(item) ? own_outputs_ : foreign_outputs_;
  return outputs.data() + (part.number + i) * hidden_;
}

void ExpertExchange::result_of(const Item& item, float* to) const {
  if (!exact()) std::fill_n(to, hidden_, 0.0F);
  for (std::size_t p = item.first; p < item.last; ++p) {
    const Part& part = parts_[p];
    if (exact()) {
      for (std::size_t i = 0; i < part.count; ++i)
        std::copy_n(row_of(item, part, i), hidden_, to + part_index_[part.first + i] * hidden_);
    } else if (part.position == last_.own()) {
      for (std::size_t i = 0; i < part.count; ++i)
        add_to({to, hidden_}, part_assignments_[part.first + i].weight, row_of(item, part, i));
    } else {
      add_to({to, hidden_}, row_of(item, part, 0));
    }
  }
}

void ExpertExchange::add_up(std::span<const float> outputs, std::span<float> h) {
  GRACE_CHECK(outputs.size() == own_rows_.size() * hidden_, "an output for each row");
  own_outputs_ = outputs;
  sum_.resize(hidden_);
  for (std::size_t first = 0; first < homes_.size();) {
    std::size_t last = first;
    while (last < homes_.size() && homes_[last].token == homes_[first].token) ++last;
    const std::span<const Home> homes = std::span(homes_).subspan(first, last - first);
    std::ranges::fill(sum_, 0.0F);
    exact() ? add_exact(homes, sum_) : add_reduced(homes, sum_);
    add_to(h.subspan(homes_[first].token * hidden_, hidden_), sum_.data());
    first = last;
  }
}

void ExpertExchange::add_exact(std::span<const Home> homes, std::span<float> sum) {
  weighed_.clear();
  for (const Home& home : homes) weigh(home);
  std::ranges::sort(weighed_, {}, &Weighed::expert);
  for (const Weighed& one : weighed_) add_to(sum, one.weight, one.row);
}

void ExpertExchange::weigh(const Home& home) {
  if (!home.is_item) {
    const float* rows = first_->result(home.position, home.number);
    for (std::size_t i = 0; i < home.count; ++i) {
      const WireAssignment& assignment = home_assignments_[home.first + i];
      weighed_.push_back({assignment.expert, assignment.weight, rows + i * hidden_});
    }
    return;
  }
  const Item& item = items_[home.number];
  for (std::size_t p = item.first; p < item.last; ++p)
    for (std::size_t i = 0; i < parts_[p].count; ++i) {
      const WireAssignment& assignment = part_assignments_[parts_[p].first + i];
      weighed_.push_back({assignment.expert, assignment.weight, row_of(item, parts_[p], i)});
    }
}

void ExpertExchange::add_reduced(std::span<const Home> homes, std::span<float> sum) {
  answers_.resize(hidden_);
  // The own node's first, then the others as they ascend.
  for (const bool own : {true, false})
    for (const Home& home : homes) {
      if (home.is_item != own) continue;
      if (own) {
        result_of(items_[home.number], answers_.data());
        add_to(sum, answers_.data());
      } else {
        add_to(sum, first_->result(home.position, home.number));
      }
    }
}

}  // namespace grace
