// Importance matrices of llama.cpp, which count how many tokens each expert saw:
// docs/formats/llama-imatrix.md.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "grace/files/gguf.h"
#include "grace/files/mapped_file.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

constexpr std::int64_t kExact = std::int64_t{1} << 24;  // f32 counts every whole number up to it

// blk.N.ffn_{gate,up,down}_exps.weight.counts -> N.
std::optional<int> layer_of(std::string_view name) {
  constexpr std::string_view kBefore = "blk.", kAfter = "_exps.weight.counts";
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter)) return std::nullopt;
  int layer = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kBefore.size(), end, layer);
  if (error != std::errc() || layer < 0 || layer > 1'000'000 ||
      !std::string_view(stop, static_cast<std::size_t>(end - stop)).starts_with(".ffn_"))
    return std::nullopt;
  return layer;
}

Status add_file(const std::filesystem::path& path, std::map<int, std::vector<std::int64_t>>& sums,
                RecordingSink& sink) {
  const MappedFile file = GRACE_TRY(MappedFile::open(path));
  const GgufContent content = GRACE_TRY(parse_gguf(file.bytes(), path.string()));
  const auto type = content.metadata.find("general.type");
  const std::string* kind =
      type == content.metadata.end() ? nullptr : std::get_if<std::string>(&type->second);
  if (kind == nullptr || *kind != "imatrix")
    return invalid_input(fmt::format("{}: general.type is not imatrix: a model?", path.string()));
  std::map<int, std::pair<std::string, std::vector<std::int64_t>>> of_file;
  for (const auto& [name, tensor] : content.tensors) {
    const std::optional<int> layer = layer_of(name);
    if (!layer) continue;
    const std::string place = fmt::format("{}: {}", path.string(), name);
    std::int64_t rounded = 0;
    std::vector<std::int64_t> counts = GRACE_TRY(counts_of(tensor.bytes, tensor.dtype, place, rounded));
    warn_of_rounding(rounded, place, sink);
    if (counts.size() == 1)
      return invalid_input(fmt::format(
          "{}: one count for all experts: made from a .dat file, which has none of single ones", place));
    if (std::ranges::any_of(counts, [](std::int64_t count) { return count >= kExact; }))
      sink.warn(fmt::format("{}: counts of {} and more are not exact: they are kept as f32", place, kExact));
    // gate, up and down of a layer saw the same tokens.
    const auto [first, is_new] = of_file.emplace(*layer, std::pair(name, counts));
    if (!is_new && first->second.second != counts)
      return invalid_input(
          fmt::format("{}: counts otherwise than {}, which saw the same tokens", place, first->second.first));
  }
  if (of_file.empty())
    return invalid_input(fmt::format(
        "{}: no counts of experts (blk.N.ffn_*_exps.weight.counts): of a dense model?", path.string()));
  for (auto& [layer, named] : of_file) {
    std::vector<std::int64_t>& sum = sums[layer];
    sum.resize(std::max(sum.size(), named.second.size()), 0);
    if (sum.size() != named.second.size())
      return invalid_input(
          fmt::format("{}: {} experts, another file has {}", path.string(), named.second.size(), sum.size()));
    for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += named.second[e];
  }
  return sink.read_bytes(std::ssize(file.bytes()));
}

bool recognises(std::span<const std::filesystem::path> files) {
  return std::ranges::all_of(files, [](const auto& path) { return first_bytes(path, 4) == "GGUF"; });
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  std::map<int, std::vector<std::int64_t>> sums;
  for (const std::filesystem::path& path : files) GRACE_TRY(add_file(path, sums, sink));
  LoadProfile profile;
  profile.experts_per_token = options.experts_per_token;
  for (auto& [layer, sum] : sums) {
    if (profile.num_experts == 0) profile.num_experts = static_cast<int>(sum.size());
    if (std::cmp_not_equal(sum.size(), profile.num_experts))
      return invalid_input(fmt::format("{}: layer {} has {} experts, layer {} has {}", files[0].string(),
                                       layer, sum.size(), profile.decoder_layers[0], profile.num_experts));
    profile.decoder_layers.push_back(layer);
    profile.loads.push_back(std::move(sum));
  }
  return sink.set_loads(std::move(profile));
}

}  // namespace

Importer llama_imatrix_importer() {
  return {"llama-imatrix", "importance matrices in GGUF, of models with experts", recognises, read};
}

}  // namespace grace
