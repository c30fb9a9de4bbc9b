// The profile as JSON: docs/formats/load-profile.md. Written by hand, one layer a line.
#include "grace/affinity/load_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <utility>

#include "grace/base/check.h"
#include "grace/base/findings.h"
#include "grace/base/hash.h"
#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

constexpr std::int64_t kFormatVersion = 1;
constexpr std::string_view kKind = "load_profile";
constexpr std::string_view kNumbering = "moe_ordinal";
constexpr std::size_t kMaxLines = 20;

void check_shape(const LoadProfile& profile, Findings& found) {
  if (!is_utf8(profile.model)) found.add("model is not UTF-8");
  if (!is_utf8(profile.source)) found.add("source is not UTF-8");
  if (profile.num_experts < 1 || profile.num_experts > kMaxExperts)
    found.add("num_experts {} is outside [1, {}]", profile.num_experts, kMaxExperts);
  if (profile.experts_per_token < 0 || profile.experts_per_token > profile.num_experts)
    found.add("experts_per_token {} is outside [0, {}]", profile.experts_per_token, profile.num_experts);
  if (profile.decoder_layers.empty()) found.add("there is no layer");
  if (profile.loads.size() != profile.decoder_layers.size())
    found.add("loads of {} layers, but {} decoder layers", profile.loads.size(),
              profile.decoder_layers.size());
  for (std::size_t i = 0; i < profile.decoder_layers.size(); ++i) {
    const int lowest = i == 0 ? 0 : profile.decoder_layers[i - 1] + 1;
    if (profile.decoder_layers[i] >= lowest && profile.decoder_layers[i] <= kMaxDecoderLayer) continue;
    found.add("layer {}: decoder layer {} is outside [{}, {}]", i, profile.decoder_layers[i], lowest,
              kMaxDecoderLayer);
    return;
  }
}

Result<const Json*> get_list(const Json& object, const char* key, std::string_view place) {
  const auto at = object.find(key);
  if (at == object.end()) return invalid_input(fmt::format("{}: {} is missing", place, key));
  if (!at->is_array()) return invalid_input(fmt::format("{}: {} is {}, not a list", place, key, shown(*at)));
  return &*at;
}

Result<std::int64_t> count_of(const Json& value, std::int64_t highest, const std::string& place) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(highest)
                        : value.is_number_integer() && value.get<std::int64_t>() >= 0;
  if (!fits)
    return invalid_input(
        fmt::format("{} is {}, not a whole number in [0, {}]", place, shown(value), highest));
  return value.get<std::int64_t>();
}

Result<LoadProfile> profile_of_json(const Json& file, std::string_view place) {
  if (!file.is_object()) return invalid_input(fmt::format("{}: not an object", place));
  GRACE_TRY(get_int(file, "format_version", place, kFormatVersion, kFormatVersion));
  for (const auto& [key, wanted] : {std::pair{"kind", kKind}, {"numbering", kNumbering}})
    if (const std::string is = GRACE_TRY(get_string(file, key, place)); is != wanted)
      return invalid_input(fmt::format("{}: {} is {}, must be \"{}\"", place, key, shown(Json(is)), wanted));
  LoadProfile profile;
  profile.model = GRACE_TRY(get_string(file, "model", place));
  profile.source = GRACE_TRY(get_string(file, "source", place));
  profile.num_experts = static_cast<int>(GRACE_TRY(get_int(file, "num_experts", place, 1, kMaxExperts)));
  profile.experts_per_token =
      static_cast<int>(GRACE_TRY(get_int(file, "experts_per_token", place, 0, profile.num_experts)));
  const Json& numbers = *GRACE_TRY(get_list(file, "decoder_layers", place));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    profile.decoder_layers.push_back(static_cast<int>(
        GRACE_TRY(count_of(numbers[i], kMaxDecoderLayer, fmt::format("{}: decoder_layers[{}]", place, i)))));
  const Json& layers = *GRACE_TRY(get_list(file, "loads", place));
  for (std::size_t m = 0; m < layers.size(); ++m) {
    if (!layers[m].is_array() || std::cmp_not_equal(layers[m].size(), profile.num_experts))
      return invalid_input(fmt::format("{}: loads[{}] is {}, not a list of {} numbers", place, m,
                                       shown(layers[m]), profile.num_experts));
    std::vector<std::int64_t>& loads = profile.loads.emplace_back();
    for (std::size_t e = 0; e < layers[m].size(); ++e)
      loads.push_back(
          GRACE_TRY(count_of(layers[m][e], kMaxLoad, fmt::format("{}: loads[{}][{}]", place, m, e))));
  }
  if (const std::vector<std::string> found = violations(profile); !found.empty())
    return invalid_input(fmt::format("{}: {}", place, found.front()));
  return profile;
}

std::string text_of(const LoadProfile& profile) {
  std::string out = fmt::format(
      "{{\n \"format_version\": {},\n \"kind\": \"{}\",\n \"model\": {},\n \"source\": {},\n"
      " \"num_experts\": {},\n \"experts_per_token\": {},\n \"numbering\": \"{}\",\n"
      " \"decoder_layers\": [{}],\n \"loads\": [",
      kFormatVersion, kKind, Json(profile.model).dump(), Json(profile.source).dump(), profile.num_experts,
      profile.experts_per_token, kNumbering, fmt::join(profile.decoder_layers, ", "));
  for (std::size_t m = 0; m < profile.loads.size(); ++m)
    fmt::format_to(std::back_inserter(out), "{}\n  [{}]", m == 0 ? "" : ",",
                   fmt::join(profile.loads[m], ", "));
  return out + "\n ]\n}\n";
}

}  // namespace

std::vector<std::string> violations(const LoadProfile& profile) {
  Findings found(kMaxLines);
  check_shape(profile, found);
  for (std::size_t m = 0; m < profile.loads.size() && !found.full(); ++m) {
    const std::vector<std::int64_t>& loads = profile.loads[m];
    if (std::cmp_not_equal(loads.size(), profile.num_experts)) {
      found.add("layer {}: loads of {} experts, the profile has {}", m, loads.size(), profile.num_experts);
      continue;
    }
    for (std::size_t e = 0; e < loads.size() && !found.full(); ++e)
      if (loads[e] < 0 || loads[e] > kMaxLoad)
        found.add("layer {}: expert {} has a load of {}, outside [0, {}]", m, e, loads[e], kMaxLoad);
  }
  return found.take();
}

bool is_load_profile(const std::filesystem::path& path) {
  const std::string begin = first_bytes(path, 512);
  const std::size_t brace = begin.find_first_not_of(" \t\r\n");
  if (brace == std::string::npos || begin[brace] != '{') return false;
  return begin.find(fmt::format("\"{}\"", kKind)) != std::string::npos;
}

Result<LoadProfile> parse_load_profile(std::string_view text, std::string_view place) {
  const Json file = GRACE_TRY(parse_json(text, place));
  return profile_of_json(file, place);
}

Result<LoadProfile> read_load_profile(const std::filesystem::path& path) {
  const std::string text = GRACE_TRY(read_text(path));
  return parse_load_profile(text, path.string());
}

Status write_load_profile(const std::filesystem::path& path, const LoadProfile& profile) {
  if (const std::vector<std::string> found = violations(profile); !found.empty())
    return invalid_input(fmt::format("{}: {}", path.string(), found.front()));
  return write_text_atomically(path, text_of(profile));
}

LoadProfile load_profile_of(const Trace& trace) {
  LoadProfile profile{
      trace.model, trace.source, trace.num_experts, trace.experts_per_token, trace.decoder_layers, {}};
  const auto num_layers = trace.decoder_layers.size();
  const auto top_k = static_cast<std::size_t>(trace.experts_per_token);
  profile.loads.assign(num_layers, std::vector<std::int64_t>(static_cast<std::size_t>(trace.num_experts), 0));
  for (std::size_t at = 0; at < trace.topk_ids.size(); ++at) {
    const std::uint16_t id = trace.topk_ids[at];
    if (id == kNotRouted) continue;
    GRACE_CHECK(id < trace.num_experts, "an expert of the trace is outside [0, E)");
    ++profile.loads[at / top_k % num_layers][id];
  }
  return profile;
}

Trace without_tokens(const LoadProfile& loads) {
  Trace trace;
  trace.model = loads.model;
  trace.source = loads.source;
  trace.num_experts = loads.num_experts;
  trace.experts_per_token = loads.experts_per_token;
  trace.decoder_layers = loads.decoder_layers;
  return trace;
}

std::vector<LayerStats> stats_of(const LoadProfile& profile) {
  std::vector<LayerStats> stats;
  for (const std::vector<std::int64_t>& loads : profile.loads)
    stats.push_back({profile.num_experts, {}, loads});
  return stats;
}

std::string hash_of(const LoadProfile& profile) {
  Fnv1a hash;
  hash.add_int(static_cast<std::uint64_t>(profile.num_experts));
  for (const int layer : profile.decoder_layers) hash.add_int(static_cast<std::uint64_t>(layer));
  for (const std::vector<std::int64_t>& loads : profile.loads)
    for (const std::int64_t load : loads) hash.add_int(static_cast<std::uint64_t>(load));
  return hash.text();
}

}  // namespace grace
