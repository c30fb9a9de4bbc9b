// Bare arrays, as EPLB takes them: loads [L, E] or [steps, L, E], or choices [tokens, L, K].
// docs/formats/eplb.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/files/npy.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

constexpr std::string_view kLoadNames[] = {"weight", "load", "loads", "logical_count", "expert_load"};
constexpr std::string_view kChoiceNames[] = {"topk_ids", "routed_experts", "choices", "indices"};

bool is_any_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

struct Array {
  std::string name;  // empty: the file has one without a name
  TensorView view;
  std::vector<std::byte> turned;  // what the view is of where the file's order is another
};

struct Arrays {
  MappedFile file;
  NpzArrays npz;  // whose buffers the arrays may point into
  std::vector<Array> arrays;
};

void add_npy(std::string name, const NpyArray& array, std::vector<Array>& out) {
  Array& added = out.emplace_back();
  added.name = std::move(name);
  added.view = array.tensor;
  if (!array.fortran_order) return;
  added.turned = row_major_bytes(array);
  added.view.bytes = added.turned;
}

Result<Arrays> open_arrays(const std::filesystem::path& path) {
  MappedFile file = GRACE_TRY(MappedFile::open(path));
  Arrays opened{std::move(file), {}, {}};
  const std::span<const std::byte> bytes = opened.file.bytes();
  const std::string head = first_bytes(path, 6);
  if (head.starts_with("PK")) {
    opened.npz = GRACE_TRY(parse_npz(bytes, path.string()));
    for (const auto& [name, array] : opened.npz.arrays) add_npy(name, array, opened.arrays);
  } else if (head.starts_with("\x93NUMPY")) {
    const NpyArray array = GRACE_TRY(parse_npy(bytes, path.string()));
    add_npy("", array, opened.arrays);
  } else {
    SafetensorsContent content = GRACE_TRY(parse_safetensors(bytes, path.string()));
    for (const auto& [name, view] : content.tensors) opened.arrays.push_back({name, view, {}});
  }
  return opened;
}

// The one array, or the one with a name that tells.
Result<const Array*> pick(const Arrays& file, std::string_view place) {
  if (file.arrays.size() == 1) return &file.arrays[0];
  std::vector<const Array*> named;
  std::vector<std::string_view> names;
  for (const Array& array : file.arrays) {
    names.push_back(array.name);
    if (is_any_of(array.name, kLoadNames) || is_any_of(array.name, kChoiceNames)) named.push_back(&array);
  }
  if (named.size() != 1)
    return invalid_input(fmt::format("{}: arrays {}: one of them must be called {} or {}", place,
                                     fmt::join(names, ", "), fmt::join(kLoadNames, ", "),
                                     fmt::join(kChoiceNames, ", ")));
  return named[0];
}

// Choices by name, or whole numbers [tokens, layers, few]: distinct within each token's last dimension, which
// counts of a layer's experts are not.
bool is_choices(const Array& array, const ImportOptions& options) {
  if (array.view.shape.size() != 3) return false;
  if (is_any_of(array.name, kChoiceNames)) return true;
  if (is_any_of(array.name, kLoadNames)) return false;
  if (options.experts_per_token > 0) return array.view.shape[2] == options.experts_per_token;
  return false;
}

Status add_choices(const Array& array, const ImportOptions& options, const std::string& place, bool begun,
                   RecordingSink& sink) {
  const std::int64_t tokens = array.view.shape[0], layers = array.view.shape[1], width = array.view.shape[2];
  if (layers < 1 || width < 1 || width > 1024)
    return invalid_input(fmt::format("{}: {} layers of {} choices", place, layers, width));
  if (!begun) {
    std::vector<int> numbers =
        GRACE_TRY(decoder_layers_of(static_cast<std::size_t>(layers), options, place, sink));
    GRACE_TRY(sink.begin_tokens(0, static_cast<int>(width), std::move(numbers)));
  }
  GRACE_TRY(sink.begin_sequence());
  std::vector<std::int32_t> ids;
  const auto per_token = static_cast<std::size_t>(layers * width) * bytes_of(array.view.dtype);
  const std::int64_t block = std::max<std::int64_t>(1, (1 << 16) / (layers * width));
  for (std::int64_t begin = 0; begin < tokens; begin += block) {
    const auto part =
        array.view.bytes.subspan(static_cast<std::size_t>(begin) * per_token,
                                 static_cast<std::size_t>(std::min(block, tokens - begin)) * per_token);
    GRACE_TRY(ids_of(part, array.view.dtype, place, ids));
    GRACE_TRY(sink.add_tokens(ids, options.phase, {place, begin}));
    GRACE_TRY(sink.read_bytes(std::ssize(part)));
  }
  return {};
}

Status add_loads(const Array& array, const std::string& place, std::vector<std::vector<std::int64_t>>& sums,
                 RecordingSink& sink) {
  const std::size_t rank = array.view.shape.size();
  if ((rank != 2 && rank != 3) || array.view.num_elements() == 0)
    return invalid_input(fmt::format(
        "{}: shape [{}], must be [layers, experts], [steps, layers, experts], or [tokens, layers, choices] "
        "with --top-k",
        place, fmt::join(array.view.shape, ", ")));
  std::int64_t rounded = 0;
  const std::vector<std::int64_t> counts =
      GRACE_TRY(counts_of(array.view.bytes, array.view.dtype, place, rounded));
  warn_of_rounding(rounded, place, sink);
  const auto layers = static_cast<std::size_t>(array.view.shape[rank - 2]),
             experts = static_cast<std::size_t>(array.view.shape[rank - 1]);
  const auto part = GRACE_TRY(sum_steps(counts, layers, experts, place));
  if (sums.empty()) sums.assign(layers, std::vector<std::int64_t>(experts, 0));
  if (sums.size() != layers || sums[0].size() != experts)
    return invalid_input(fmt::format("{}: {} layers of {} experts, another file has {} of {}", place, layers,
                                     experts, sums.size(), sums[0].size()));
  for (std::size_t l = 0; l < layers; ++l)
    for (std::size_t e = 0; e < experts; ++e) sums[l][e] += part[l][e];
  return sink.read_bytes(std::ssize(array.view.bytes));
}

// {"load_history": [{"logical_expert_load": [[counts of E] of L]}, ...]}, as EPLB's benchmarks keep them.
Status add_history(const std::filesystem::path& path, std::vector<std::vector<std::int64_t>>& sums,
                   RecordingSink& sink) {
  const std::string place = path.string();
  const Json json = GRACE_TRY(read_json(path));
  const auto history = json.is_object() ? json.find("load_history") : json.end();
  if (history == json.end() || !history->is_array())
    return invalid_input(fmt::format("{}: load_history is missing or no list", place));
  for (std::size_t step = 0; step < history->size(); ++step) {
    const Json& entry = (*history)[step];
    const std::string where = fmt::format("{}: load_history[{}]", place, step);
    const auto loads = entry.is_object() ? entry.find("logical_expert_load") : entry.end();
    if (loads == entry.end() || !loads->is_array() || loads->empty())
      return invalid_input(fmt::format("{}: logical_expert_load is missing or no list", where));
    std::vector<std::int64_t> counts;
    for (const Json& row : *loads) {
      if (!row.is_array() || row.empty() || row.size() != loads->front().size())
        return invalid_input(fmt::format("{}: a layer is {}, others have {} experts", where, shown(row),
                                         loads->front().size()));
      for (const Json& count : row) {
        if (!count.is_number_unsigned() || count.get<std::uint64_t>() > (std::uint64_t{1} << 46))
          return invalid_input(fmt::format("{}: {} is not a count", where, shown(count)));
        counts.push_back(count.get<std::int64_t>());
      }
    }
    const std::size_t layers = loads->size(), experts = loads->front().size();
    if (sums.empty()) sums.assign(layers, std::vector<std::int64_t>(experts, 0));
    if (sums.size() != layers || sums[0].size() != experts)
      return invalid_input(fmt::format("{}: {} layers of {} experts, earlier ones have {} of {}", where,
                                       layers, experts, sums.size(), sums[0].size()));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::int64_t& sum = sums[i / experts][i % experts];
      if (__builtin_add_overflow(sum, counts[i], &sum))
        return invalid_input(fmt::format("{}: counts overflow", where));
    }
  }
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return sink.read_bytes(error ? 0 : static_cast<std::int64_t>(size));
}

bool is_history(const std::filesystem::path& path) {
  return first_bytes(path, 4096).find("\"load_history\"") != std::string::npos;
}

bool recognises(std::span<const std::filesystem::path> files) {
  return std::ranges::all_of(files, [](const std::filesystem::path& path) {
    const std::string head = first_bytes(path, 1 << 16);
    if (head.starts_with("\x93NUMPY") || is_history(path)) return true;
    if (path.extension() == ".npz") return head.starts_with("PK");
    return path.extension() == ".safetensors" && head.find("\"decoder_layers\"") == std::string::npos &&
           !rank_in_name(path, "rank", ".safetensors") && !rank_in_name(path, "rank", "_raw.safetensors");
  });
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  std::vector<std::vector<std::int64_t>> sums;
  bool begun = false;
  for (const std::filesystem::path& path : files) {
    if (is_history(path)) {
      GRACE_TRY(add_history(path, sums, sink));
      continue;
    }
    const Arrays opened = GRACE_TRY(open_arrays(path));
    const Array* array = GRACE_TRY(pick(opened, path.string()));
    const std::string place =
        array->name.empty() ? path.string() : fmt::format("{}: {}", path.string(), array->name);
    if (is_choices(*array, options)) {
      GRACE_TRY(add_choices(*array, options, place, begun, sink));
      begun = true;
    } else {
      GRACE_TRY(add_loads(*array, place, sums, sink));
    }
    if (begun && !sums.empty())
      return invalid_input(fmt::format("{}: choices in one file and loads in another", path.string()));
  }
  if (begun || sums.empty()) return {};
  LoadProfile profile;
  profile.num_experts = static_cast<int>(sums[0].size());
  profile.decoder_layers = GRACE_TRY(decoder_layers_of(sums.size(), options, files[0].string(), sink));
  profile.loads = std::move(sums);
  return sink.set_loads(std::move(profile));
}

}  // namespace

Importer eplb_importer() {
  return {"eplb",
          "arrays in .npy, .npz or .safetensors: loads [L, E], or choices [tokens, L, K] with --top-k; "
          "load_history JSON",
          recognises, read};
}

}  // namespace grace
