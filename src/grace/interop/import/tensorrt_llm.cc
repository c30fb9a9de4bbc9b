// TensorRT-LLM's expert statistics: a folder of meta_info.json and rank*.safetensors.
// docs/formats/tensorrt-llm.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

struct Meta {
  int num_experts = 0, experts_per_token = 0;
};

struct RankPath {
  int rank = 0;
  std::filesystem::path path;
};

struct Folder {
  std::vector<std::filesystem::path> meta;
  std::vector<RankPath> counts, tokens;  // rank<r>.safetensors, rank<r>_raw.safetensors
};

Folder sort_files(std::span<const std::filesystem::path> files) {
  Folder folder;
  for (const std::filesystem::path& path : files) {
    if (path.filename() == "meta_info.json") folder.meta.push_back(path);
    if (const auto rank = rank_in_name(path, "rank", ".safetensors")) folder.counts.push_back({*rank, path});
    if (const auto rank = rank_in_name(path, "rank", "_raw.safetensors"))
      folder.tokens.push_back({*rank, path});
  }
  for (std::vector<RankPath>* ranks : {&folder.counts, &folder.tokens})
    std::ranges::sort(*ranks, std::less<>(), &RankPath::rank);
  return folder;
}

Result<Meta> read_meta(const Folder& folder, std::string_view place) {
  if (folder.meta.size() != 1)
    return invalid_input(
        fmt::format("{}: {} meta_info.json beside it, must be one", place, folder.meta.size()));
  const std::string where = folder.meta[0].string();
  const Json json = GRACE_TRY(read_json(folder.meta[0]));
  Meta meta;
  meta.num_experts = static_cast<int>(GRACE_TRY(get_int(json, "num_experts", where, 1, kMaxExperts)));
  meta.experts_per_token =
      static_cast<int>(GRACE_TRY(get_int(json, "num_experts_per_token", where, 1, meta.num_experts)));
  return meta;
}

// "100_3": iteration 100, decoder layer 3.
struct Key {
  std::int64_t iteration = 0;
  int layer = 0;
  auto operator<=>(const Key&) const = default;
};
Result<Key> parse_key(std::string_view name, std::string_view place) {
  Key key;
  const char* const end = name.data() + name.size();
  const auto first = std::from_chars(name.data(), end, key.iteration);
  const bool has_bar = first.ec == std::errc() && first.ptr != end && *first.ptr == '_';
  const auto second = has_bar ? std::from_chars(first.ptr + 1, end, key.layer)
                              : std::from_chars_result{end, std::errc::invalid_argument};
  if (second.ec != std::errc() || second.ptr != end || key.layer < 0 || key.layer > kMaxDecoderLayer ||
      key.iteration < 0)
    return invalid_input(
        fmt::format("{}: tensor {} is not named ITERATION_LAYER", place, shown(Json(std::string(name)))));
  return key;
}

// That iterations follow one another and each has every layer.
Status check_keys(const std::set<Key>& keys, std::string_view place, RecordingSink& sink) {
  std::set<int> layers;
  std::set<std::int64_t> iterations;
  for (const Key& key : keys) {
    layers.insert(key.layer);
    iterations.insert(key.iteration);
  }
  for (const std::int64_t iteration : iterations)
    for (const int layer : layers)
      if (!keys.contains({iteration, layer}))
        return invalid_input(fmt::format("{}: iteration {} lacks layer {}, which other iterations have",
                                         place, iteration, layer));
  const std::int64_t span = *iterations.rbegin() - *iterations.begin() + 1;
  if (std::cmp_not_equal(span, iterations.size()))
    sink.warn(fmt::format("{}: iterations {} to {} are not all there: {} of {}", place, *iterations.begin(),
                          *iterations.rbegin(), iterations.size(), span));
  return {};
}

std::vector<int> layers_of(const std::set<Key>& keys) {
  std::set<int> layers;
  for (const Key& key : keys) layers.insert(key.layer);
  return {layers.begin(), layers.end()};
}

// Whole ranks, and each once: a missing rank's tokens would be missing from every layer.
Status check_ranks(std::span<const RankPath> ranks, RecordingSink& sink) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0 && ranks[i].rank == ranks[i - 1].rank)
      return invalid_input(fmt::format("{}: rank {} is there twice", ranks[i].path.string(), ranks[i].rank));
    if (std::cmp_not_equal(ranks[i].rank, i)) {
      sink.warn(fmt::format("rank {} is not among the files: its tokens are missing", i));
      break;
    }
  }
  return {};
}

Status read_counts(const Folder& folder, const ImportOptions& options, RecordingSink& sink) {
  const Meta meta = GRACE_TRY(read_meta(folder, folder.counts[0].path.string()));
  const auto experts = static_cast<std::size_t>(meta.num_experts);
  std::map<int, std::vector<std::int64_t>> sums;
  std::set<Key> all;
  std::map<std::string, std::string> sampled;
  std::int64_t rounded = 0;
  for (const RankPath& rank : folder.counts) {
    const Safetensors file = GRACE_TRY(Safetensors::open(rank.path));
    std::set<Key> keys;
    std::string sample;
    for (const auto& [name, tensor] : file.tensors()) {
      const std::string place = fmt::format("{}: {}", rank.path.string(), shown(Json(name)));
      const Key key = GRACE_TRY(parse_key(name, rank.path.string()));
      if (tensor.shape.size() != 1 || tensor.shape[0] != meta.num_experts)
        return invalid_input(fmt::format("{}: shape [{}], must be [{}], num_experts of meta_info.json", place,
                                         fmt::join(tensor.shape, ", "), meta.num_experts));
      const std::vector<std::int64_t> counts =
          GRACE_TRY(counts_of(tensor.bytes, tensor.dtype, place, rounded));
      std::vector<std::int64_t>& sum = sums[key.layer];
      sum.resize(experts, 0);
      for (std::size_t e = 0; e < experts; ++e)
        if (__builtin_add_overflow(sum[e], counts[e], &sum[e]))
          return invalid_input(fmt::format("{}: counts overflow", place));
      keys.insert(key);
      if (sample.size() < (1 << 20))
        sample.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      GRACE_TRY(sink.read_bytes(std::ssize(tensor.bytes)));
    }
    if (!all.empty() && keys != all)
      return invalid_input(
          fmt::format("{}: has other iterations or layers than the ranks before", rank.path.string()));
    all = std::move(keys);
    const auto [first, is_new] = sampled.emplace(std::move(sample), rank.path.string());
    if (!is_new && options.same_tokens == 1)
      sink.warn(
          fmt::format("{} and {} hold the same counts: they count twice unless --same-tokens says how many "
                      "ranks share theirs",
                      first->second, rank.path.string()));
  }
  if (all.empty()) return {};
  GRACE_TRY(check_keys(all, folder.counts[0].path.string(), sink));
  warn_of_rounding(rounded, folder.counts[0].path.string(), sink);
  LoadProfile profile;
  profile.num_experts = meta.num_experts;
  profile.experts_per_token = meta.experts_per_token;
  for (auto& [layer, sum] : sums) {
    profile.decoder_layers.push_back(layer);
    profile.loads.push_back(std::move(sum));
  }
  return sink.set_loads(std::move(profile));
}

// token_selected_experts [tokens, K] of each key: one sequence for each rank and iteration.
Status read_tokens(const Folder& folder, const ImportOptions& options, RecordingSink& sink) {
  const Meta meta = GRACE_TRY(read_meta(folder, folder.tokens[0].path.string()));
  std::vector<int> layers;
  for (std::size_t r = 0; r < folder.tokens.size(); r += static_cast<std::size_t>(options.same_tokens)) {
    const std::string place = folder.tokens[r].path.string();
    const Safetensors file = GRACE_TRY(Safetensors::open(folder.tokens[r].path));
    std::map<Key, const TensorView*> tensors;
    std::set<Key> keys;
    for (const auto& [name, tensor] : file.tensors()) {
      const Key key = GRACE_TRY(parse_key(name, place));
      if (tensor.shape.size() != 2 || tensor.shape[1] != meta.experts_per_token)
        return invalid_input(fmt::format("{}: {}: shape [{}], must be [tokens, {}]", place, shown(Json(name)),
                                         fmt::join(tensor.shape, ", "), meta.experts_per_token));
      tensors.emplace(key, &tensor);
      keys.insert(key);
    }
    if (keys.empty()) continue;
    GRACE_TRY(check_keys(keys, place, sink));
    if (layers.empty()) {
      layers = layers_of(keys);
      GRACE_TRY(sink.begin_tokens(meta.num_experts, meta.experts_per_token, layers));
    } else if (layers != layers_of(keys)) {
      return invalid_input(fmt::format("{}: has other layers than the ranks before", place));
    }
    std::vector<std::int32_t> ids, one;
    const auto width = static_cast<std::size_t>(meta.experts_per_token);
    for (auto at = tensors.begin(); at != tensors.end();) {
      const std::int64_t iteration = at->first.iteration;
      const std::string where = fmt::format("{}: iteration {}", place, iteration);
      const auto tokens = static_cast<std::size_t>(at->second->shape[0]);
      ids.resize(tokens * layers.size() * width);
      for (std::size_t m = 0; m < layers.size(); ++m, ++at) {
        if (std::cmp_not_equal(at->second->shape[0], tokens))
          return invalid_input(fmt::format("{}: layer {} has {} tokens, layer {} has {}", where,
                                           at->first.layer, at->second->shape[0], layers[0], tokens));
        GRACE_TRY(ids_of(at->second->bytes, at->second->dtype, where, one));
        for (std::size_t t = 0; t < tokens; ++t)
          std::copy_n(one.begin() + static_cast<std::ptrdiff_t>(t * width), width,
                      ids.begin() + static_cast<std::ptrdiff_t>((t * layers.size() + m) * width));
        file.give_back(at->second->bytes);
        GRACE_TRY(sink.read_bytes(std::ssize(at->second->bytes)));
      }
      GRACE_TRY(sink.begin_sequence());
      GRACE_TRY(sink.add_tokens(ids, options.phase, {where, 0}));
    }
  }
  return {};
}

bool recognises(std::span<const std::filesystem::path> files) {
  const Folder folder = sort_files(files);
  return !folder.counts.empty() || !folder.tokens.empty();
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  const Folder folder = sort_files(files);
  if (folder.counts.empty() && folder.tokens.empty())
    return invalid_input(
        fmt::format("{}: no rank<N>.safetensors or rank<N>_raw.safetensors", files[0].string()));
  // What each token chose says more than how often each was chosen.
  const std::vector<RankPath>& ranks = folder.tokens.empty() ? folder.counts : folder.tokens;
  GRACE_TRY(check_ranks(ranks, sink));
  return folder.tokens.empty() ? read_counts(folder, options, sink) : read_tokens(folder, options, sink);
}

}  // namespace

Importer tensorrt_llm_importer() {
  return {"tensorrt-llm", "the folder of EXPERT_STATISTIC_PATH: meta_info.json and rank*.safetensors",
          recognises, read};
}

}  // namespace grace
