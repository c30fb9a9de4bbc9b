#include "grace/cost/evaluate.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "grace/base/rng.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

using testing::ElementsAre;

Cluster cluster_of(const std::vector<std::size_t>& devices_per_node) {
  Cluster cluster;
  for (const std::size_t devices : devices_per_node) cluster.devices_of_node.emplace_back(devices);
  cluster.between_devices = {1000, 0.25};
  cluster.between_nodes = {100, 2};
  cluster.flops_per_s = 600;
  cluster.memory_bytes_per_s = 50;
  return cluster;
}

struct Token {
  int source;
  std::vector<std::uint16_t> experts;  // [K], kNotChosen for none
  std::vector<std::int32_t> devices;   // [K], -1 for none
};

std::vector<Token> random_tokens(Rng& rng, int num_devices, int num_experts, std::size_t count) {
  const auto devices = static_cast<std::uint64_t>(num_devices);
  const std::size_t top_k = 1 + rng.below(6);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) {
    token.source = static_cast<int>(rng.below(devices));
    for (std::size_t k = 0; k < top_k; ++k) {
      const bool none = rng.below(8) == 0;
      token.experts.push_back(
          none ? kNotChosen : static_cast<std::uint16_t>(rng.below(static_cast<std::uint64_t>(num_experts))));
      token.devices.push_back(none ? -1 : static_cast<std::int32_t>(rng.below(devices)));
    }
  }
  return tokens;
}

constexpr Dispatch kAllDispatches[] = {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage,
                                       Dispatch::kPadded, Dispatch::kAllGather};

BatchCounts counted(const Cluster& cluster, int num_experts, Dispatch dispatch,
                    const std::vector<Token>& tokens) {
  BatchCounter counter(cluster, num_experts, dispatch);
  for (const Token& token : tokens)
    counter.add(DeviceId(token.source), token.experts, token.devices, static_cast<int>(token.experts.size()));
  return counter.counts();
}

// Node and place in it of each device, by counting along the machine.
std::vector<std::pair<int, int>> places_of(const Cluster& cluster) {
  std::vector<std::pair<int, int>> places;
  for (std::size_t n = 0; n < cluster.devices_of_node.size(); ++n)
    for (std::size_t i = 0; i < cluster.devices_of_node[n].size(); ++i)
      places.emplace_back(static_cast<int>(n), static_cast<int>(i));
  return places;
}

// Every message, written down: who hands what to whom. Two messages of one token that carry the same vector
// between the same two are one.
struct Message {
  int from, to;       // devices
  std::size_t token;  // whose vector
  int copy;           // 0, or of `flat` which choice; of padding its number, below 0
  auto operator<=>(const Message&) const = default;
};
// From each device to each other as many as the most that any sends another.
void pad(int num_devices, std::set<Message>& written) {
  std::map<std::pair<int, int>, int> length;
  for (const Message& m : written) ++length[{m.from, m.to}];
  int longest = 0;
  for (const auto& [ends, n] : length) longest = std::max(longest, n);
  for (int from = 0; from < num_devices; ++from)
    for (int to = 0; to < num_devices; ++to)
      for (int n = length[{from, to}]; n < longest && from != to; ++n) written.insert({from, to, 0, -1 - n});
}
std::set<Message> messages(const Cluster& cluster, Dispatch dispatch, const std::vector<Token>& tokens) {
  const auto places = places_of(cluster);
  std::set<Message> written;
  const bool each_choice = dispatch == Dispatch::kFlat || dispatch == Dispatch::kPadded;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    if (dispatch == Dispatch::kAllGather)
      for (std::size_t d = 0; d < places.size(); ++d)
        written.insert({tokens[t].source, static_cast<int>(d), t, 0});
    for (std::size_t k = 0; k < tokens[t].devices.size(); ++k) {
      const int to = tokens[t].devices[k], from = tokens[t].source;
      if (to < 0) continue;
      if (dispatch != Dispatch::kTwoStage) {
        written.insert({from, to, t, each_choice ? static_cast<int>(k) : 0});
        continue;
      }
      const auto [own, place] = places[static_cast<std::size_t>(from)];
      const int node = places[static_cast<std::size_t>(to)].first;
      int entry = from;
      if (node != own) {
        const int size = static_cast<int>(cluster.devices_of_node[static_cast<std::size_t>(node)].size());
        for (std::size_t d = 0; d < places.size(); ++d)
          if (places[d] == std::pair(node, place % size)) entry = static_cast<int>(d);
        written.insert({from, entry, t, 0});
      }
      written.insert({entry, to, t, 0});
    }
  }
  std::erase_if(written, [](const Message& m) { return m.from == m.to; });
  if (dispatch == Dispatch::kPadded) pad(static_cast<int>(places.size()), written);
  return written;
}

class AnEvaluation : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AnEvaluation, CountsTheMessagesThatAreWrittenDown) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  std::vector<std::size_t> machine(1 + rng.below(4));
  for (std::size_t& devices : machine) devices = 1 + rng.below(4);
  const Cluster cluster = cluster_of(machine);
  const auto places = places_of(cluster);
  const int num_devices = static_cast<int>(places.size());
  const int num_experts = 1 + static_cast<int>(rng.below(12));
  const std::vector<Token> tokens = random_tokens(rng, num_devices, num_experts, rng.below(200));
  const auto zeros = [](std::size_t n) { return std::vector<std::int64_t>(n, 0); };
  std::set<Message> staged;
  for (const Dispatch dispatch : kAllDispatches) {
    SCOPED_TRACE(name_of(dispatch));
    const BatchCounts counts = counted(cluster, num_experts, dispatch, tokens);
    std::vector<std::int64_t> node_out = zeros(machine.size()), node_in = node_out;
    std::vector<std::int64_t> device_out = zeros(places.size()), device_in = device_out;
    const std::set<Message> written = messages(cluster, dispatch, tokens);
    for (const Message& m : written) {
      const auto from = static_cast<std::size_t>(m.from), to = static_cast<std::size_t>(m.to);
      if (places[from].first == places[to].first) {
        ++device_out[from];
        ++device_in[to];
      } else {
        ++node_out[static_cast<std::size_t>(places[from].first)];
        ++node_in[static_cast<std::size_t>(places[to].first)];
      }
    }
    EXPECT_EQ(counts.node_out, node_out);
    EXPECT_EQ(counts.node_in, node_in);
    EXPECT_EQ(counts.device_out, device_out);
    EXPECT_EQ(counts.device_in, device_in);
    EXPECT_EQ(cross_node_vectors(counts) + intra_node_vectors(counts),
              static_cast<std::int64_t>(written.size()));
    if (dispatch == Dispatch::kTwoStage) {
      EXPECT_EQ(counts.entered_nodes, cross_node_vectors(counts));
      EXPECT_EQ(counts.forwards, intra_node_vectors(counts));
      staged = written;
    }
  }
  // x and y are those of two stages whatever the dispatch, and so are loads.
  std::map<std::pair<std::int32_t, std::uint16_t>, std::int32_t> copy_load;
  std::vector<std::int64_t> load = zeros(places.size());
  std::int64_t devices = 0, with_choice = 0, assignments = 0;
  for (const Token& token : tokens) {
    std::set<std::int32_t> used;
    for (std::size_t k = 0; k < token.devices.size(); ++k) {
      if (token.devices[k] < 0) continue;
      used.insert(token.devices[k]);
      ++copy_load[{token.devices[k], token.experts[k]}];
      ++load[static_cast<std::size_t>(token.devices[k])];
      ++assignments;
    }
    devices += static_cast<std::int64_t>(used.size());
    with_choice += used.empty() ? 0 : 1;
  }
  const BatchCounts flat = counted(cluster, num_experts, Dispatch::kFlat, tokens);
  const BatchCounts two = counted(cluster, num_experts, Dispatch::kTwoStage, tokens);
  EXPECT_EQ(flat.entered_nodes, two.entered_nodes);
  EXPECT_EQ(flat.forwards, two.forwards);
  EXPECT_EQ(two.entered_nodes + two.forwards, static_cast<std::int64_t>(staged.size()));
  EXPECT_EQ(two.load, load);
  EXPECT_EQ(two.devices, devices);
  EXPECT_EQ(two.tokens, with_choice);
  EXPECT_EQ(two.assignments, assignments);
  for (int d = 0; d < num_devices; ++d)
    for (int e = 0; e < num_experts; ++e)
      EXPECT_EQ(two.copy_load[static_cast<std::size_t>(d * num_experts + e)],
                (copy_load[{d, static_cast<std::uint16_t>(e)}]));
}

TEST_P(AnEvaluation, StartsAnewWhenCleared) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const Cluster cluster = cluster_of({2, 3});
  const std::vector<Token> first = random_tokens(rng, 5, 6, 40), second = random_tokens(rng, 5, 6, 40);
  BatchCounter counter(cluster, 6, Dispatch::kTwoStage);
  for (const std::vector<Token>* batch : {&first, &second}) {
    counter.clear();
    for (const Token& token : *batch)
      counter.add(DeviceId(token.source), token.experts, token.devices,
                  static_cast<int>(token.experts.size()));
    const BatchCounts alone = counted(cluster, 6, Dispatch::kTwoStage, *batch);
    EXPECT_EQ(counter.counts().node_in, alone.node_in);
    EXPECT_EQ(counter.counts().device_in, alone.device_in);
    EXPECT_EQ(counter.counts().copy_load, alone.copy_load);
    EXPECT_EQ(counter.counts().devices, alone.devices);
    EXPECT_EQ(counter.counts().forwards, alone.forwards);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnEvaluation, testing::Range<std::uint64_t>(0, 60));

// The evaluator's vectors by node and device are those that the hops carry: what is planned by is what
// travels.
TEST_P(AnEvaluation, CountsTheVectorsThatTheHopsCarry) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::vector<std::vector<std::size_t>> shapes{{1}, {4}, {2, 2}, {1, 3, 2}, {4, 4}};
  const Cluster cluster = cluster_of(shapes[rng.below(shapes.size())]);
  const int devices = cluster.num_devices();
  const std::vector<Token> tokens = random_tokens(rng, devices, 9, 100);
  const auto by_link = [&](const std::vector<std::int64_t>& carried) {
    LinkVectors links{std::vector<std::int64_t>(cluster.devices_of_node.size()), {}, {}, {}};
    links.node_in = links.node_out;
    links.device_in = links.device_out = std::vector<std::int64_t>(static_cast<std::size_t>(devices));
    for (int from = 0; from < devices; ++from)
      for (int to = 0; to < devices; ++to) {
        const std::int64_t vectors = carried[static_cast<std::size_t>(from * devices + to)];
        const NodeId sender = cluster.node_of(DeviceId(from)), receiver = cluster.node_of(DeviceId(to));
        const bool inside = sender == receiver;
        (inside ? links.device_out[static_cast<std::size_t>(from)] : links.node_out[sender.idx()]) += vectors;
        (inside ? links.device_in[static_cast<std::size_t>(to)] : links.node_in[receiver.idx()]) += vectors;
      }
    return links;
  };
  const auto expect_equal = [](const LinkVectors& got, const LinkVectors& want) {
    EXPECT_EQ(got.node_out, want.node_out);
    EXPECT_EQ(got.node_in, want.node_in);
    EXPECT_EQ(got.device_out, want.device_out);
    EXPECT_EQ(got.device_in, want.device_in);
  };
  for (const Dispatch dispatch : kAllDispatches) {
    SCOPED_TRACE(std::string(name_of(dispatch)));
    BatchCounter exact(cluster, 9, dispatch, Combine::kExact), reduced(cluster, 9, dispatch);
    HopCounter hops(cluster, dispatch);
    for (int batch = 0; batch < 2; ++batch) {  // the second without what the first left
      exact.clear();
      reduced.clear();
      hops.clear();
      for (std::size_t t = 0; t < tokens.size(); t += batch == 0 ? 1 : 3) {
        const Token& token = tokens[t];
        const DeviceId source(token.source);
        const int top_k = static_cast<int>(token.experts.size());
        exact.add(source, token.experts, token.devices, top_k);
        reduced.add(source, token.experts, token.devices, top_k);
        hops.add(source, token.devices, top_k);
      }
      const HopCounts carried = hops.counts();
      expect_equal(exact.counts(), by_link(carried.vectors));
      expect_equal(reduced.counts(), by_link(carried.vectors));
      expect_equal(exact.counts().home, by_link(carried.assignments));
      EXPECT_TRUE(reduced.counts().home.node_in.empty());
      EXPECT_EQ(exact.counts().load, carried.load);
    }
  }
}

// With sources spread evenly and choices that do not depend on them: a token that touches `nodes` nodes finds
// its own among them with probability nodes / N.
TEST(AnEvaluationOfEvenSources, GivesVectorsByTheShareOfWhatIsAway) {
  constexpr int kNodes = 4, kPerNode = 4, kTokens = 40'000;
  const Cluster cluster = cluster_of({kPerNode, kPerNode, kPerNode, kPerNode});
  Rng rng(11);
  std::vector<Token> tokens;
  std::int64_t nodes = 0;
  for (int t = 0; t < kTokens; ++t) {
    Token token{t % (kNodes * kPerNode), {}, {}};
    std::set<int> touched;
    for (std::uint16_t k = 0; k < 6; ++k) {
      token.experts.push_back(k);
      token.devices.push_back(static_cast<std::int32_t>(rng.below(kNodes * kPerNode)));
      touched.insert(token.devices.back() / kPerNode);
    }
    nodes += static_cast<std::int64_t>(touched.size());
    tokens.push_back(token);
  }
  const BatchCounts counts = counted(cluster, 6, Dispatch::kTwoStage, tokens);
  const double per_token = 1.0 / kTokens;
  const double x = static_cast<double>(counts.entered_nodes) * per_token;
  const double y = static_cast<double>(counts.forwards) * per_token;
  EXPECT_NEAR(x, static_cast<double>(nodes) * per_token * (1 - 1.0 / kNodes), 0.01 * x);
  EXPECT_NEAR(y, static_cast<double>(counts.devices) * per_token * (1 - 1.0 / kPerNode), 0.01 * y);
}

// Two nodes of two and one device. Two tokens start on 0, one on 2.
TEST(ALayerTime, IsWhatAHandComputes) {
  Cluster cluster = cluster_of({2, 1});
  cluster.devices_of_node[0][1].speed = 2;
  LayerSizes sizes{.hidden = 10, .expert_ffn = 1, .bytes_per_value = 2, .bytes_per_weight = 1};
  // 20 bytes a vector, 30 bytes an expert, 60 operations an assignment: streaming 0.6 s, an assignment 0.1 s.
  BatchCounter counter(cluster, 3, Dispatch::kTwoStage);
  const auto add = [&](int source, std::vector<std::uint16_t> experts, std::vector<std::int32_t> devices) {
    counter.add(DeviceId(source), experts, devices, static_cast<int>(experts.size()));
  };
  add(0, {0, 1}, {1, 2});  // a forward to 1, a vector to node 1
  add(0, {0, 2}, {1, 1});  // a forward to 1
  add(2, {0, 1}, {0, 2});  // a vector to node 0, whose entry 0 serves
  std::array<double, 3> compute;
  const LayerTime time = layer_time(counter.counts(), cluster, sizes, compute);
  EXPECT_DOUBLE_EQ(time.cross_node_s, 2 * 1 * 20 / 100.0);   // a vector in, a vector out of each node
  EXPECT_DOUBLE_EQ(time.intra_node_s, 2 * 2 * 20 / 1000.0);  // two into device 1
  EXPECT_DOUBLE_EQ(time.latency_s, 2 * 2 + 2 * 0.25);
  // Device 1 streams two experts, at twice the speed; the others one.
  EXPECT_THAT(compute, ElementsAre(testing::DoubleEq(0.6), testing::DoubleEq(0.6), testing::DoubleEq(0.6)));
  EXPECT_DOUBLE_EQ(time.compute_s, 0.6);
  EXPECT_DOUBLE_EQ(time.idle_s(), 0);
  EXPECT_DOUBLE_EQ(time.total_s(), 0.4 + 0.08 + 4.5 + 0.6);

  // Twelve more assignments of expert 1 on device 2: 14 of them take 1.4 s, more than streaming.
  for (int i = 0; i < 12; ++i) add(2, {1}, {2});
  const LayerTime busy = layer_time(counter.counts(), cluster, sizes, compute);
  EXPECT_DOUBLE_EQ(compute[2], 1.4);
  EXPECT_DOUBLE_EQ(busy.compute_s, 1.4);
  EXPECT_DOUBLE_EQ(busy.mean_compute_s, (0.6 + 0.6 + 1.4) / 3);
  EXPECT_DOUBLE_EQ(busy.all_to_all_s(), time.all_to_all_s());
}

// With exact results two vectors come back for one that went: two experts of a token on one device.
TEST(ALayerTime, OfExactResultsBringsEveryExpertsVectorHome) {
  const Cluster cluster = cluster_of({2, 2});
  const LayerSizes sizes{.hidden = 10, .expert_ffn = 1, .bytes_per_value = 2, .bytes_per_weight = 1};
  const std::vector<std::uint16_t> experts{0, 1};
  const auto time_of = [&](Dispatch dispatch, Combine combine) {
    BatchCounter counter(cluster, 2, dispatch, combine);
    counter.add(DeviceId(0), experts, std::vector<std::int32_t>{3, 3}, 2);
    return layer_time(counter.counts(), cluster, sizes);
  };
  const double cross = 20 / 100.0, intra = 20 / 1000.0;  // a vector's
  const LayerTime reduced = time_of(Dispatch::kTwoStage, Combine::kReduced);
  EXPECT_DOUBLE_EQ(reduced.cross_node_s, 2 * cross);
  EXPECT_DOUBLE_EQ(reduced.intra_node_s, 2 * intra);
  const LayerTime exact = time_of(Dispatch::kTwoStage, Combine::kExact);
  EXPECT_DOUBLE_EQ(exact.cross_node_s, 3 * cross);
  EXPECT_DOUBLE_EQ(exact.intra_node_s, 3 * intra);
  EXPECT_DOUBLE_EQ(exact.latency_s, 4.5);
  // Everyone gets the token; two vectors come back, from another node alone.
  const LayerTime gathered = time_of(Dispatch::kAllGather, Combine::kExact);
  EXPECT_DOUBLE_EQ(gathered.cross_node_s, 4 * cross);
  EXPECT_DOUBLE_EQ(gathered.intra_node_s, intra);
  EXPECT_DOUBLE_EQ(gathered.latency_s, 2 * 2 + 0.25);
  // Two vectors from each of two devices to each of the other node's, and back.
  const LayerTime padded = time_of(Dispatch::kPadded, Combine::kExact);
  EXPECT_DOUBLE_EQ(padded.cross_node_s, 2 * 8 * cross);
  EXPECT_DOUBLE_EQ(padded.intra_node_s, 2 * 2 * intra);
}

TEST(ALayerTime, HasNoLatencyOfALevelThatCarriesNothing) {
  const Cluster cluster = cluster_of({2, 2});
  const LayerSizes sizes{.hidden = 10, .expert_ffn = 1};
  BatchCounter counter(cluster, 2, Dispatch::kTwoStage);
  const std::vector<std::uint16_t> expert{1};
  const auto latency_of = [&](int source, std::int32_t device) {
    counter.clear();
    counter.add(DeviceId(source), expert, std::vector<std::int32_t>{device}, 1);
    return layer_time(counter.counts(), cluster, sizes).latency_s;
  };
  EXPECT_EQ(latency_of(1, 1), 0);
  EXPECT_EQ(latency_of(1, 0), 0.5);
  EXPECT_EQ(latency_of(1, 3), 4);    // the entry itself
  EXPECT_EQ(latency_of(1, 2), 4.5);  // through it
  counter.clear();
  EXPECT_EQ(layer_time(counter.counts(), cluster, sizes).total_s(), 0);
}

TEST(AMeanOfFigures, WeighsTokensForVectorsAndBatchesForTheRest) {
  const Cluster cluster = cluster_of({1, 1});
  const LayerSizes sizes{.hidden = 10, .expert_ffn = 1};
  const std::vector<std::uint16_t> expert{0};
  FigureSum sum;
  BatchCounter counter(cluster, 1, Dispatch::kTwoStage);
  const std::vector<std::int32_t> here{0}, there{1};
  counter.add(DeviceId(0), expert, there, 1);  // one token, away
  sum.add(counter.counts(), cluster, sizes);
  const double alone = layer_time(counter.counts(), cluster, sizes).total_s();
  counter.clear();
  sum.add(counter.counts(), cluster, sizes);  // a batch of nothing
  for (int i = 0; i < 3; ++i) counter.add(DeviceId(i % 2), expert, i % 2 == 0 ? here : there, 1);
  sum.add(counter.counts(), cluster, sizes);  // three, at home: two on device 0, one on 1
  const double home = layer_time(counter.counts(), cluster, sizes).total_s();
  EXPECT_EQ(sum.batches(), 2);
  const Figures mean = sum.mean();
  EXPECT_DOUBLE_EQ(mean.remote_nodes_per_token, 1.0 / 4);
  EXPECT_DOUBLE_EQ(mean.forwards_per_token, 0);
  EXPECT_DOUBLE_EQ(mean.devices_per_token, 1);
  EXPECT_DOUBLE_EQ(mean.load_max_over_mean, (2 + 4.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(mean.load_std, (1 + 1.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(mean.cross_node_vectors, 0.5);
  EXPECT_DOUBLE_EQ(mean.time.total_s(), (alone + home) / 2);
  EXPECT_DOUBLE_EQ(mean.judge(kSlowYardstick), 16 * 0.25 + 6 * (2 + 4.0 / 3) / 2);

  const std::array<Figures, 2> layers{mean, Figures{}};
  EXPECT_DOUBLE_EQ(mean_of(layers).load_max_over_mean, ((2 + 4.0 / 3) / 2 + 1) / 2);
  EXPECT_DOUBLE_EQ(mean_of(layers).remote_nodes_per_token, 1.0 / 8);
  EXPECT_EQ(FigureSum().mean().load_max_over_mean, 1);
  EXPECT_EQ(mean_of({}).judge(kFastYardstick), kFastYardstick.load);
  EXPECT_DOUBLE_EQ(value_of(mean, Aim::kJudgeSlow), mean.judge(kSlowYardstick));
  EXPECT_DOUBLE_EQ(value_of(mean, Aim::kJudgeFast), mean.judge(kFastYardstick));
  EXPECT_DOUBLE_EQ(value_of(mean, Aim::kLayerTime), mean.time.total_s());
}

}  // namespace
}  // namespace grace
