// The default order: what an engine without a plan does, and what a layer without data falls back to.
#include <algorithm>
#include <cstddef>

#include "grace/base/check.h"
#include "grace/grouping/grouping.h"

namespace grace {

std::vector<std::vector<ExpertId>> contiguous_groups(int num_experts, const Cluster& cluster) {
  const int num_devices = cluster.num_devices();
  std::vector<int> sizes;
  std::vector<int> capacity;
  int left_over = 0;
  for (int d = 0; d < num_devices; ++d) {
    const int slots = cluster.device(DeviceId(d)).slots;
    capacity.push_back(slots > 0 ? std::min(slots, num_experts) : num_experts);
    const int block = num_experts / num_devices + (d < num_experts % num_devices ? 1 : 0);
    sizes.push_back(std::min(block, capacity.back()));
    left_over += block - sizes.back();
  }
  for (; left_over > 0; --left_over) {
    std::size_t fewest = sizes.size();
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] < capacity[d] && (fewest == sizes.size() || sizes[d] < sizes[fewest])) fewest = d;
    }
    GRACE_CHECK(fewest < sizes.size(), "the slots do not hold every expert once");
    ++sizes[fewest];
  }
  std::vector<std::vector<ExpertId>> groups(sizes.size());
  int next = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    for (int i = 0; i < sizes[d]; ++i) groups[d].push_back(ExpertId(next++));
  return groups;
}

}  // namespace grace
