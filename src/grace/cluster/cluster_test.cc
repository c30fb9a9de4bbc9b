#include "grace/cluster/cluster.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / ("grace_cluster_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string error_of(std::string_view spec) {
  const Result<Cluster> cluster = parse_cluster(spec);
  return cluster.ok() ? "ok" : cluster.error().message;
}

Cluster uneven() {
  Cluster cluster = parse_cluster("h100:3x2").value();
  cluster.devices_of_node[1].resize(1);
  cluster.devices_of_node[2].resize(4);
  return cluster;
}

Cluster random_cluster(Rng& rng) {
  const char* presets[] = {"3090", "4090", "a100", "h100"};
  Cluster cluster = parse_cluster(presets[rng.below(4)]).value();
  cluster.name = "random";
  cluster.devices_of_node.clear();
  const std::uint64_t nodes = 1 + rng.below(5);
  for (std::uint64_t node = 0; node < nodes; ++node) {
    auto& devices = cluster.devices_of_node.emplace_back();
    const std::uint64_t count = 1 + rng.below(6);
    for (std::uint64_t i = 0; i < count; ++i)
      devices.push_back(
          {static_cast<int>(rng.below(3)), rng.uniform() * 1e11, rng.below(2) == 0 ? 1 : 1.0 / 3});
  }
  cluster.between_devices = {1 + rng.uniform() * 1e12, rng.uniform() * 1e-4};
  cluster.between_nodes.bytes_per_s = 1 + rng.uniform() * 1e12;
  return cluster;
}

TEST(ACluster, NumbersDevicesConsecutivelyWithinNodes) {
  const Cluster cluster = uneven();
  EXPECT_EQ(cluster.num_nodes(), 3);
  EXPECT_EQ(cluster.num_devices(), 7);
  int device = 0;  // the slow twin: count through all nodes
  for (int node = 0; node < cluster.num_nodes(); ++node) {
    EXPECT_EQ(cluster.first_device_of(NodeId(node)), DeviceId(device));
    for (int local = 0; local < cluster.devices_in(NodeId(node)); ++local, ++device) {
      EXPECT_EQ(cluster.node_of(DeviceId(device)), NodeId(node));
      EXPECT_EQ(cluster.local_index_of(DeviceId(device)), local);
      EXPECT_EQ(&cluster.device(DeviceId(device)),
                &cluster.devices_of_node[static_cast<std::size_t>(node)][static_cast<std::size_t>(local)]);
    }
  }
}

TEST(ACluster, HasThePublishedConstantsOfItsPreset) {
  const Cluster plain = parse_cluster("2x4").value();
  EXPECT_EQ(plain.name, "2x4");
  EXPECT_EQ(plain.devices_of_node, std::vector(2, std::vector<Device>(4)));
  EXPECT_EQ(plain.between_devices.bytes_per_s, 300e9);
  EXPECT_EQ(plain.between_nodes.bytes_per_s, 3.125e9);
  EXPECT_EQ(plain.flops_per_s, 156e12);
  EXPECT_EQ(plain.memory_bytes_per_s, 1.02e12);
  EXPECT_EQ(parse_cluster("3090").value().between_devices.bytes_per_s, 4e9);
  EXPECT_EQ(parse_cluster("4090:1x8").value().between_devices.bytes_per_s, 31.5e9);
  const Cluster a100 = parse_cluster("a100").value();
  EXPECT_EQ(a100.num_devices(), 8);
  EXPECT_EQ(a100.flops_per_s, plain.flops_per_s);
}

TEST(ACluster, GivesAnH100NodeOneAdapterForEachDevice) {
  EXPECT_EQ(parse_cluster("h100:2x4").value().between_nodes.bytes_per_s, 200e9);
  EXPECT_EQ(parse_cluster("h100:2x8").value().between_nodes.bytes_per_s, 400e9);
}

TEST(ACluster, ReachesFromOneDeviceToTheBound) {
  EXPECT_EQ(parse_cluster("1x1").value().num_devices(), 1);
  EXPECT_EQ(parse_cluster("128x8").value().num_devices(), 1024);
  EXPECT_EQ(parse_cluster("1024x1").value().num_nodes(), 1024);
}

TEST(ACluster, IsRefusedOutsideTheBoundWithItsSize) {
  EXPECT_EQ(error_of("0x4"), "cluster 0x4: 0 nodes of 4 devices, must be 1 to 1024 devices in all");
  EXPECT_THAT(error_of("h100:2x0"), HasSubstr("2 nodes of 0 devices"));
  EXPECT_THAT(error_of("129x8"), HasSubstr("1 to 1024"));
  EXPECT_THAT(error_of("4294967296x4294967296"), HasSubstr("1 to 1024"));
  EXPECT_THAT(error_of("99999999999999999999999x2"), HasSubstr("1 to 1024"));
}

TEST(ACluster, IsRefusedWithTheNamesOfThePresets) {
  for (const char* spec : {"b200", "", "2x", "x4", "2x4x2", "-2x4", "2 x4", "no/such/file.json"})
    EXPECT_THAT(error_of(spec), AllOf(StartsWith("cluster `"), HasSubstr("3090, 4090, a100, h100"))) << spec;
  EXPECT_EQ(error_of("h100:big"), "cluster h100:big: `big` is not a shape such as 2x4");
}

TEST(ACluster, SaysWhatIsWrongWithIt) {
  Cluster cluster = uneven();
  EXPECT_THAT(violations(cluster), IsEmpty());
  cluster.devices_of_node[1].clear();
  cluster.devices_of_node[2][3].speed = 0;
  cluster.between_nodes.bytes_per_s = std::numeric_limits<double>::infinity();
  cluster.flops_per_s = std::nan("");
  EXPECT_THAT(violations(cluster),
              ElementsAre("node 1 has no device", "node 2: device 3: speed 0 is not above 0",
                          "between_nodes: bytes_per_s inf is not above 0", "flops_per_s nan is not above 0"));
}

TEST(AClusterFile, ReadsBackAsItWasWritten) {
  const Folder folder;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Cluster cluster = random_cluster(rng);
    ASSERT_TRUE(write_cluster(folder / "c.json", cluster).ok());
    const Result<Cluster> read = read_cluster(folder / "c.json");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), cluster);
  }
}

TEST(AClusterFile, IsFoundByItsPath) {
  const Folder folder;
  const std::filesystem::path path = folder / "mine.json";
  ASSERT_TRUE(write_cluster(path, uneven()).ok());
  EXPECT_EQ(parse_cluster(path.string()).value(), uneven());
}

TEST(AClusterFile, IsNotWrittenFromAClusterThatIsNone) {
  const Folder folder;
  const Status status = write_cluster(folder / "c.json", Cluster{});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("c.json: there is no node"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c.json"));
}

TEST(AClusterFile, ThatIsAbsentIsAnIoError) {
  EXPECT_EQ(read_cluster("/no/such/cluster.json").error().kind, ErrorKind::kIo);
}

TEST(AClusterFile, NamesTheKeyThatIsMisspelt) {
  const Result<Cluster> cluster =
      parse_cluster_file(R"({"format_version": 1, "nodes": [{"devices": [{"slot": 3}]}],
    "between_devices": {"bytes_per_s": 1, "latency_s": 0}, "flops_per_s": 1, "memory_bytes_per_s": 1})",
                         "c.json");
  ASSERT_FALSE(cluster.ok());
  EXPECT_THAT(cluster.error().message,
              StartsWith("c.json: nodes[0]: devices[0]: key \"slot\" is not one of count, slots"));
}

TEST(AClusterFile, OfOneNodeNeedsNoLinkBetweenNodes) {
  const Result<Cluster> cluster = parse_cluster_file(R"({"format_version": 1, "nodes": [{"devices": [{}]}],
    "between_devices": {"bytes_per_s": 1, "latency_s": 0}, "flops_per_s": 1, "memory_bytes_per_s": 1})",
                                                     "c.json");
  ASSERT_TRUE(cluster.ok()) << cluster.error().message;
  EXPECT_EQ(cluster.value().between_nodes, cluster.value().between_devices);
  EXPECT_EQ(cluster.value().name, "c.json");
}

TEST(AClusterFile, OfItsFormatPageIsRead) {
  const std::string page = read_text(GRACE_SOURCE_DIR "/docs/formats/cluster.md").value();
  const std::size_t begin = page.find("```json\n") + 8;
  const auto read = parse_cluster_file(page.substr(begin, page.find("```", begin) - begin), "page");
  EXPECT_TRUE(read.ok()) << read.error().message;
}

TEST(AClusterFile, OfTheCorpusIsReadOrRefusedInOneLine) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/cluster")) {
    const std::string name = entry.path().filename();
    const Result<Cluster> cluster = parse_cluster_file(read_text(entry.path()).value(), name);
    EXPECT_EQ(cluster.ok(), name.starts_with("good"))
        << name << (cluster.ok() ? "" : cluster.error().message);
    if (!cluster.ok()) {
      EXPECT_THAT(cluster.error().message, AllOf(StartsWith(name + ": "), testing::Not(HasSubstr("\n"))));
    }
    ++files;
  }
  EXPECT_GT(files, 5);
}

}  // namespace
}  // namespace grace
