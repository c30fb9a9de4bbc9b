// vLLM: answers with routed_experts, and load statistics in JSON lines. docs/formats/vllm.md.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "grace/base/limits.h"
#include "grace/interop/import/api_json.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

class AnswerReader {
 public:
  AnswerReader(const ImportOptions& options, RecordingSink& sink) : options_(options), sink_(sink) {}

  Status add(const Json& json, const std::string& place) {
    const Json* prompt = member(json, "prompt_routed_experts");
    const Json* choices = member(json, "choices");
    if (choices == nullptr) choices = member(json, "outputs");  // of the Python interface
    Choices prompt_choices =
        GRACE_TRY(choices_of(prompt == nullptr ? Json() : *prompt, place + ": prompt_routed_experts"));
    bool any = prompt_choices.tokens > 0;
    if (choices != nullptr && choices->is_array()) {
      for (std::size_t i = 0; i < choices->size(); ++i) {
        const std::string where = fmt::format("{}: choices[{}]", place, i);
        any = GRACE_TRY(add_choice((*choices)[i], json, where, i == 0 ? prompt_choices : Choices{})) || any;
      }
      if (choices->empty()) GRACE_TRY(add_sequence(prompt_choices, {}, place));
    } else {
      any = GRACE_TRY(add_choice(json, json, place, prompt_choices)) || any;
    }
    if (!any)
      sink_.warn(place + ": an answer without routed_experts: was --enable-return-routed-experts given?");
    return {};
  }

 private:
  // One answer to a prompt; whether it says what its tokens chose.
  Result<bool> add_choice(const Json& choice, const Json& answer, const std::string& place,
                          const Choices& prompt) {
    const Json* routed = member(choice, "routed_experts");
    Choices generated =
        GRACE_TRY(choices_of(routed == nullptr ? Json() : *routed, place + ": routed_experts"));
    if (prompt.tokens > 0 || !routed || !routed->is_string()) {
      GRACE_TRY(add_sequence(prompt, generated, place));
      return generated.tokens > 0;
    }
    // Arrays in base64 hold the prompt too, from its first token on.
    const Json* usage = member(answer, "usage");
    const Json* count = usage == nullptr ? nullptr : member(*usage, "prompt_tokens");
    const bool fits = count != nullptr && count->is_number_unsigned() &&
                      std::cmp_less_equal(count->get<std::uint64_t>(), generated.tokens);
    const std::int64_t split = fits ? count->get<std::int64_t>() : 0;
    Choices front = generated;
    const auto at = static_cast<std::ptrdiff_t>(split * generated.layers * generated.width);
    front.tokens = split;
    front.ids.assign(generated.ids.begin(), generated.ids.begin() + at);
    generated.ids.erase(generated.ids.begin(), generated.ids.begin() + at);
    generated.tokens -= split;
    GRACE_TRY(add_sequence(front, generated, place));
    return front.tokens + generated.tokens > 0;
  }

  Status add_sequence(const Choices& prompt, const Choices& generated, const std::string& place) {
    for (const Choices* part : {&prompt, &generated}) GRACE_TRY(check(*part, place));
    if (prompt.tokens + generated.tokens == 0) return {};
    GRACE_TRY(sink_.begin_sequence());
    GRACE_TRY(sink_.add_tokens(prompt.ids, Phase::kPrefill, {place, 0}));
    return sink_.add_tokens(generated.ids, Phase::kDecode, {place, prompt.tokens});
  }

  Status check(const Choices& part, const std::string& place) {
    if (part.tokens == 0) return {};
    if (layers_ == 0) {
      layers_ = part.layers;
      width_ = part.width;
      if (layers_ > kMaxDecoderLayer || width_ > kMaxExperts)
        return invalid_input(fmt::format("{}: {} layers of {} choices", place, layers_, width_));
      std::vector<int> layers =
          GRACE_TRY(decoder_layers_of(static_cast<std::size_t>(layers_), options_, "vLLM", sink_));
      return sink_.begin_tokens(0, static_cast<int>(width_), std::move(layers));
    }
    if (part.layers != layers_ || part.width != width_)
      return invalid_input(fmt::format("{}: {} layers of {} choices, an earlier answer has {} of {}", place,
                                       part.layers, part.width, layers_, width_));
    return {};
  }

  const ImportOptions& options_;
  RecordingSink& sink_;
  std::int64_t layers_ = 0, width_ = 0;
};

// Rows of whole numbers >= 0, all of one length.
Result<std::vector<std::vector<std::int64_t>>> rows_of(const Json& object, const char* key,
                                                       const std::string& place) {
  const Json* list = member(object, key);
  if (list == nullptr) {
    const bool is_map = std::string_view(key) == "p2l_map";
    return invalid_input(
        fmt::format("{}: {} is missing{}", place, key, is_map ? ", and loads are of physical experts" : ""));
  }
  if (!list->is_array() || list->empty())
    return invalid_input(fmt::format("{}: {} is {}, not rows", place, key, shown(*list)));
  std::vector<std::vector<std::int64_t>> rows;
  for (const Json& row : *list) {
    if (!row.is_array() || row.empty() || row.size() != list->front().size())
      return invalid_input(fmt::format("{}: {}[{}] is {}, others have {}", place, key, rows.size(),
                                       shown(row), list->front().size()));
    std::vector<std::int64_t>& values = rows.emplace_back();
    for (const Json& value : row) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > (std::uint64_t{1} << 46))
        return invalid_input(fmt::format("{}: {}[{}][{}] is {}, not a count", place, key, rows.size() - 1,
                                         values.size(), shown(value)));
      values.push_back(value.get<std::int64_t>());
    }
  }
  return rows;
}

class StatsReader {
 public:
  explicit StatsReader(RecordingSink& sink) : sink_(sink) {}

  Status add(const Json& json, const std::string& place) {
    GRACE_TRY(get_int(json, "version", place, 1, 1));
    const auto loads = GRACE_TRY(rows_of(json, "expert_load", place));
    const auto map = GRACE_TRY(rows_of(json, "p2l_map", place));
    if (map.size() != loads.size())
      return invalid_input(
          fmt::format("{}: p2l_map has {} layers, expert_load {}", place, map.size(), loads.size()));
    std::int64_t largest = 0;
    for (const auto& row : map) largest = std::max(largest, std::ranges::max(row));
    if (largest >= kMaxExperts)
      return invalid_input(
          fmt::format("{}: p2l_map: expert {} is outside [0, {})", place, largest, kMaxExperts));
    if (sums_.empty())
      sums_.assign(loads.size(), std::vector<std::int64_t>(static_cast<std::size_t>(largest) + 1, 0));
    if (sums_.size() != loads.size() || sums_[0].size() != static_cast<std::size_t>(largest) + 1)
      return invalid_input(fmt::format("{}: {} layers of {} experts, an earlier record has {} of {}", place,
                                       loads.size(), largest + 1, sums_.size(), sums_[0].size()));
    for (std::size_t l = 0; l < loads.size(); ++l) GRACE_TRY(add_physical(loads[l], map[l], sums_[l], place));
    const std::string content = json.at("expert_load").dump();
    const Json* step = member(json, "step");
    const std::string key = step == nullptr ? "" : step->dump();
    const auto [first, is_new] = seen_.emplace(key, std::pair(content, place));
    if (!is_new && first->second.first == content)
      sink_.warn(
          fmt::format("{} and {} hold the same counts of step {}: they count twice unless --same-tokens says "
                      "how many ranks "
                      "share theirs",
                      first->second.second, place, key));
    return {};
  }

  Status finish(const ImportOptions& options) {
    if (sums_.empty()) return {};
    LoadProfile profile;
    profile.num_experts = static_cast<int>(sums_[0].size());
    profile.decoder_layers = GRACE_TRY(decoder_layers_of(sums_.size(), options, "vLLM", sink_));
    profile.loads = std::move(sums_);
    return sink_.set_loads(std::move(profile));
  }

 private:
  RecordingSink& sink_;
  std::vector<std::vector<std::int64_t>> sums_;                                   // [M][E]
  std::map<std::string, std::pair<std::string, std::string>, std::less<>> seen_;  // step -> counts and place
};

bool looks_like_vllm(const std::filesystem::path& path) {
  const std::string head = first_bytes(path, 1 << 20);
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || (head[begin] != '{' && head[begin] != '[')) return false;
  if (is_sglang_api(path)) return false;
  return head.find("routed_experts\"") != std::string::npos ||
         head.find("\"eplb_load_stats\"") != std::string::npos;
}

bool recognises(std::span<const std::filesystem::path> files) {
  return std::ranges::all_of(files, looks_like_vllm);
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  AnswerReader answers(options, sink);
  StatsReader stats(sink);
  std::string first_kind;
  GRACE_TRY(for_each_json(files, sink, [&](const Json& json, const std::string& place) -> Status {
    if (!json.is_object()) return invalid_input(fmt::format("{}: {} is not an object", place, shown(json)));
    const Json* type = member(json, "record_type");
    const std::string kind = type != nullptr && type->is_string() ? type->get<std::string>() : "answer";
    if (first_kind.empty()) first_kind = kind;
    if (kind != first_kind)
      return invalid_input(
          fmt::format("{}: a record of kind {} among those of kind {}", place, kind, first_kind));
    if (kind == "answer") return answers.add(json, place);
    if (kind == "eplb_load_stats") return stats.add(json, place);
    return invalid_input(
        fmt::format("{}: record_type {} is no recording (eplb_load_stats)", place, shown(*type)));
  }));
  return stats.finish(options);
}

}  // namespace

Importer vllm_importer() {
  return {"vllm", "the API's answers with routed_experts, JSON or JSON lines, and eplb_load_stats JSON lines",
          recognises, read};
}

}  // namespace grace
