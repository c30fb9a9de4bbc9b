#include "memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "grace/comm/mpi/mpi_transport.h"
#include "grace/runtime/footprint.h"

namespace grace::app {
namespace {

// The ranks of this machine: all, or with several machines those of the node that this process is of. The one
// that starts mpirun over several machines may hold none.
std::vector<DeviceId> ranks_here(const Job& job) {
  std::vector<DeviceId> all;
  for (int d = 0; d < job.cluster.num_devices(); ++d) all.push_back(DeviceId(d));
  if (!job.mpi || job.hosts.empty()) return all;
  const char* rank = inside_mpi() ? std::getenv("OMPI_COMM_WORLD_RANK") : nullptr;
  const int mine = rank == nullptr ? -1 : std::atoi(rank);
  if (mine < 0 || mine >= job.cluster.num_devices()) return {};
  std::erase_if(all,
                [&](DeviceId d) { return job.cluster.node_of(d) != job.cluster.node_of(DeviceId(mine)); });
  return all;
}

}  // namespace

std::optional<double> available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (double kib = 0; line.starts_with("MemAvailable:")) {
      kib = std::strtod(line.c_str() + line.find(':') + 1, nullptr);
      if (kib > 0) return kib * 1024;
    }
  return std::nullopt;
}

Status check_memory(const Job& job, const Plan& plan, std::int64_t cached_tokens) {
  const auto needs_of = [&](DeviceId d) {
    return footprint_of(job.config, plan, d, cached_tokens, job.form);
  };
  for (int d = 0; d < job.cluster.num_devices(); ++d) {
    const double has = job.cluster.device(DeviceId(d)).memory_bytes;
    const Footprint needs = needs_of(DeviceId(d));
    if (has > 0 && static_cast<double>(needs.experts) > has)
      return invalid_input(fmt::format("rank {}: needs {}, device {} has {} for experts", d, words_of(needs),
                                       d, words_of_bytes(has)));
  }
  const std::optional<double> available = available_bytes();
  const std::vector<DeviceId> here = ranks_here(job);
  if (!available || here.empty()) return {};
  double together = 0;
  DeviceId largest = here.front();
  for (const DeviceId d : here) {
    const auto bytes = needs_of(d).total();
    together += static_cast<double>(bytes);
    if (bytes > needs_of(largest).total()) largest = d;
  }
  if (together <= *available) return {};
  return invalid_input(fmt::format("rank {}: needs {}, and the {} ranks of this machine {}; it has {}",
                                   largest.value, words_of(needs_of(largest)), here.size(),
                                   words_of_bytes(together), words_of_bytes(*available)));
}

void say_memory(const Job& job, const Plan& plan, std::int64_t cached_tokens) {
  if (isatty(STDERR_FILENO) != 1 || inside_mpi()) return;
  Footprint fullest;
  for (int d = 0; d < job.cluster.num_devices(); ++d) {
    const Footprint needs = footprint_of(job.config, plan, DeviceId(d), cached_tokens, job.form);
    if (needs.total() > fullest.total()) fullest = needs;
  }
  fmt::print(stderr, "memory of each of {} ranks: at most {}\n", job.cluster.num_devices(),
             words_of(fullest));
}

}  // namespace grace::app
