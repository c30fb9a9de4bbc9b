#include "grace/runtime/kv_cache.h"

#include "grace/base/check.h"

namespace grace {

void KvCache::reset(int num_sequences) {
  GRACE_CHECK(num_sequences >= 0, "a negative number of sequences");
  cells_.clear();
  cells_.resize(static_cast<std::size_t>(num_sequences) * num_layers_);
  length_.assign(static_cast<std::size_t>(num_sequences), 0);
}

void KvCache::release(int sequence) {
  for (std::size_t layer = 0; layer < num_layers_; ++layer)
    cells_[static_cast<std::size_t>(sequence) * num_layers_ + layer] = Cell{};
}

void KvCache::append(int layer, int sequence, std::span<const float> keys, std::span<const float> values) {
  GRACE_CHECK(keys.size() == values.size() && keys.size() % row_ == 0,
              "keys and values are not [num_new, row]");
  Cell& to = cells_[static_cast<std::size_t>(sequence) * num_layers_ + static_cast<std::size_t>(layer)];
  GRACE_CHECK(to.keys.size() == static_cast<std::size_t>(length(sequence)) * row_,
              "a sequence that was released, or a layer appended to twice in one step");
  to.keys.insert(to.keys.end(), keys.begin(), keys.end());
  to.values.insert(to.values.end(), values.begin(), values.end());
}

}  // namespace grace
