#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

#include "grace/files/json_file.h"
#include "grace/model/model.h"

namespace grace {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Tensor -> shard, as the index has it. A shard is a file of the folder, never a path out of it.
Result<std::map<std::string, std::string>> read_index(const std::filesystem::path& path) {
  const Json json = GRACE_TRY(read_json(path));
  const auto found = json.is_object() ? json.find("weight_map") : json.end();
  if (found == json.end() || !found->is_object()) {
    return invalid_input(fmt::format("{}: weight_map is missing", path.string()));
  }
  std::map<std::string, std::string> shard_of_tensor;
  for (const auto& [tensor, shard] : found->items()) {
    const bool is_name =
        shard.is_string() && !shard.get<std::string>().empty() &&
        std::filesystem::path(shard.get<std::string>()).filename() == shard.get<std::string>();
    if (!is_name) {
      return invalid_input(fmt::format("{}: tensor {} is in {}, not a file's name", path.string(),
                                       shown(Json(tensor)), shown(shard)));
    }
    shard_of_tensor.emplace(tensor, shard.get<std::string>());
  }
  return shard_of_tensor;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  std::error_code error;
  // As transformers does: one file, where there is one, wins over an index.
  if (std::filesystem::exists(folder / kSingleFile, error)) {
    checkpoint.files_.push_back(GRACE_TRY(Safetensors::open(folder / kSingleFile)));
    for (const auto& [name, tensor] : checkpoint.files_[0].tensors())
      checkpoint.file_of_tensor_.emplace(name, 0);
    return checkpoint;
  }
  const std::filesystem::path index = folder / kIndexFile;
  if (!std::filesystem::exists(index, error)) {
    return io_error(fmt::format("{}: has neither {} nor {}", folder.string(), kSingleFile, kIndexFile));
  }
  const std::map<std::string, std::string> shard_of_tensor = GRACE_TRY(read_index(index));
  std::map<std::string, std::size_t> file_of_shard;
  for (const auto& [tensor, shard] : shard_of_tensor) file_of_shard.emplace(shard, 0);
  for (auto& [shard, file] : file_of_shard) {
    file = checkpoint.files_.size();
    checkpoint.files_.push_back(GRACE_TRY(Safetensors::open(folder / shard)));
  }
  for (const auto& [tensor, shard] : shard_of_tensor) {
    const std::size_t file = file_of_shard.at(shard);
    if (!checkpoint.files_[file].tensors().contains(tensor)) {
      return invalid_input(
          fmt::format("{}: tensor {} is not in {}", index.string(), shown(Json(tensor)), shard));
    }
    checkpoint.file_of_tensor_.emplace(tensor, file);
  }
  return checkpoint;
}

Result<TensorView> Checkpoint::find(const std::string& name) const {
  const auto found = file_of_tensor_.find(name);
  if (found == file_of_tensor_.end()) {
    return invalid_input(fmt::format("{}: no tensor {}", folder_.string(), name));
  }
  return files_[found->second].find(name);
}

}  // namespace grace
