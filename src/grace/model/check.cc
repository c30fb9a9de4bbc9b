#include <set>
#include <string>
#include <vector>

#include "grace/model/weight_plan.h"

namespace grace {
namespace {

// A file with another config than its own lacks everything; nobody reads more lines than this.
constexpr std::size_t kMaxLines = 1000;

// Problems, each once: fused experts share their tensors.
class Problems {
 public:
  template <typename T>
  bool take(const Result<T>& result) {
    if (!result.ok() && !full() && known_.insert(result.error().message).second) {
      lines_.push_back(result.error().message);
      if (full()) lines_.emplace_back("and more");
    }
    return result.ok();
  }
  bool full() const { return lines_.size() >= kMaxLines; }
  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  std::set<std::string> known_;
  std::vector<std::string> lines_;
};

void check_tensors(const ModelConfig& config, const WeightNames& names, const Checkpoint& checkpoint,
                   Problems& problems) {
  DenseWeights nowhere;
  for (const DenseSlot& slot : dense_slots(config, names, nowhere)) {
    problems.take(find_source(checkpoint, slot.source));
  }
  const DenseSlot head = lm_head_slot(config, names, nowhere);
  if (!config.tie_word_embeddings || checkpoint.has(head.source.tensor)) {
    problems.take(find_source(checkpoint, head.source));
  }
  for (const int layer : config.moe_layers) {
    for (int expert = 0; expert < config.num_experts && !problems.full(); ++expert) {
      const auto sources = expert_sources(config, names, checkpoint, layer, ExpertId(expert));
      if (!problems.take(sources)) continue;
      for (const WeightSource& source : sources.value()) problems.take(find_source(checkpoint, source));
    }
  }
}

}  // namespace

std::vector<std::string> check_model(const std::filesystem::path& folder) {
  Problems problems;
  const auto config = read_model_config(folder);
  const auto checkpoint = Checkpoint::open(folder);
  const bool readable = problems.take(config);
  if (problems.take(checkpoint) && readable) {
    const auto architecture = find_architecture(config.value().architecture, folder.string());
    if (problems.take(architecture)) {
      check_tensors(config.value(), architecture.value()->names, checkpoint.value(), problems);
    }
  }
  return std::move(problems).lines();
}

}  // namespace grace
