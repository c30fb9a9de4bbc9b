// vLLM: answers with routed_experts, and load statistics in JSON lines. docs/formats/vllm.md.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/interop/import/api_json.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t count_in(const Json& answer, const char* key) {
  const Json* usage = member(answer, "usage");
  const Json* count = usage == nullptr ? nullptr : member(*usage, key);
  const bool fits =
      count != nullptr && count->is_number_unsigned() && count->get<std::uint64_t>() < (1ULL << 40);
  return fits ? count->get<std::int64_t>() : -1;
}

// How many of the prompt's tokens had their keys and values from the prefix cache.
std::int64_t cached_tokens_of(const Json& answer) {
  const Json* usage = member(answer, "usage");
  const Json* details = usage == nullptr ? nullptr : member(*usage, "prompt_tokens_details");
  const Json* count = details == nullptr ? nullptr : member(*details, "cached_tokens");
  const bool fits =
      count != nullptr && count->is_number_unsigned() && count->get<std::uint64_t>() < (1ULL << 40);
  return fits ? count->get<std::int64_t>() : 0;
}

// The first `tokens` of them, which are taken off.
Choices take_front(Choices& choices, std::int64_t tokens) {
  Choices front = choices;
  const auto at = static_cast<std::ptrdiff_t>(tokens * choices.layers * choices.width);
  front.tokens = tokens;
  front.ids.assign(choices.ids.begin(), choices.ids.begin() + at);
  choices.ids.erase(choices.ids.begin(), choices.ids.begin() + at);
  choices.tokens -= tokens;
  return front;
}

// One of an answer's choices.
struct Choice {
  const Json* json;
  std::string place;
};

// What the arrays of one answer hold: for each choice the rows of its prompt, from the first token that was
// asked for on, and of what was generated, but for the last token, which was never run.
struct ArrayChoices {
  std::vector<Choices> rows;            // [n]
  std::vector<std::int64_t> generated;  // [n] rows at the end; empty where the answer does not tell
  std::size_t per_prompt = 1;           // so many choices in a row answer the same prompt
};

// How many rows at the end of each choice were generated: by its token_ids, where the answer has them, or by
// `usage`, which counts over all choices.
std::vector<std::int64_t> generated_rows(const Json& answer, const std::vector<Choice>& choices,
                                         const std::vector<Choices>& rows) {
  const std::int64_t prompt = count_in(answer, "prompt_tokens");
  const std::int64_t generated = count_in(answer, "completion_tokens");
  const std::int64_t n = std::ssize(rows);
  std::vector<std::int64_t> result;
  std::int64_t listed = 0, all = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json* ids = member(*choices[i].json, "token_ids");
    const std::int64_t count = ids != nullptr && ids->is_array() ? std::ssize(*ids) : 0;
    listed += count;
    all += rows[i].tokens;
    result.push_back(std::clamp<std::int64_t>(count - 1, 0, rows[i].tokens));
  }
  if (generated >= 0 && listed == generated) return result;  // a stream's last part lists its own alone
  if (n == 1 && generated > 0) return {std::min(generated - 1, all)};
  if (n == 1 && prompt >= 0 && prompt <= all) return {all - prompt};
  if (prompt < 0 || generated < 0 || all != n * prompt + generated - n) return {};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].tokens < prompt) return {};
    result[i] = rows[i].tokens - prompt;
  }
  return result;
}

// Answers to one prompt, or to several, in a row: as many to each.
std::size_t choices_per_prompt(const Json& answer, const ArrayChoices& arrays) {
  const std::int64_t prompt = count_in(answer, "prompt_tokens"), n = std::ssize(arrays.rows);
  if (arrays.generated.empty() || prompt <= 0) return 1;
  std::int64_t held = 0;
  for (std::size_t i = 0; i < arrays.rows.size(); ++i) held += arrays.rows[i].tokens - arrays.generated[i];
  const std::int64_t times = held / prompt;
  return held > 0 && held % prompt == 0 && n % times == 0 ? static_cast<std::size_t>(times) : 1;
}

class AnswerReader {
 public:
  AnswerReader(const ImportOptions& options, RecordingSink& sink) : options_(options), sink_(sink) {}

  Status add(const Json& json, const std::string& place) {
    const Json* prompt = member(json, "prompt_routed_experts");
    const Json* list = member(json, "choices");
    if (list == nullptr) list = member(json, "outputs");  // of the Python interface
    std::vector<Choice> choices;
    if (list != nullptr && list->is_array())
      for (std::size_t i = 0; i < list->size(); ++i)
        choices.push_back({&(*list)[i], fmt::format("{}: choices[{}]", place, i)});
    else
      choices.push_back({&json, place});
    const auto is_text = [](const Choice& choice) {
      const Json* routed = member(*choice.json, "routed_experts");
      return routed != nullptr && routed->is_string();
    };
    const bool any = prompt == nullptr && std::ranges::any_of(choices, is_text)
                         ? GRACE_TRY(add_arrays(json, choices, place))
                         : GRACE_TRY(add_lists(prompt, choices, place));
    if (!any)
      sink_.warn(place + ": an answer without routed_experts: was --enable-return-routed-experts given?");
    return {};
  }

 private:
  // The prompt by itself, and what was generated in each choice. Whether the answer says what its tokens
  // chose.
  Result<bool> add_lists(const Json* prompt, const std::vector<Choice>& choices, const std::string& place) {
    Choices front =
        GRACE_TRY(choices_of(prompt == nullptr ? Json() : *prompt, place + ": prompt_routed_experts"));
    bool any = front.tokens > 0;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Json* routed = member(*choices[i].json, "routed_experts");
      const Choices generated =
          GRACE_TRY(choices_of(routed == nullptr ? Json() : *routed, choices[i].place + ": routed_experts"));
      any = any || generated.tokens > 0;
      GRACE_TRY(add_sequence(front, generated, choices[i].place));
      front = {};
    }
    if (choices.empty()) GRACE_TRY(add_sequence(front, {}, place));
    return any;
  }

  // Arrays hold the prompt too.
  Result<bool> add_arrays(const Json& answer, const std::vector<Choice>& choices, const std::string& place) {
    ArrayChoices arrays;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Json* routed = member(*choices[i].json, "routed_experts");
      arrays.rows.push_back(
          GRACE_TRY(choices_of(routed == nullptr ? Json() : *routed, choices[i].place + ": routed_experts")));
    }
    arrays.generated = generated_rows(answer, choices, arrays.rows);
    arrays.per_prompt = choices_per_prompt(answer, arrays);
    if (arrays.generated.empty() && !told_of_phases_) {
      told_of_phases_ = true;
      sink_.warn(fmt::format("{}: usage and token_ids do not tell prompt from answer: all taken as {}", place,
                             options_.phase == Phase::kDecode ? "decode" : "prefill"));
    }
    Choices before;
    bool any = false;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      Choices& rows = arrays.rows[i];
      any = any || rows.tokens > 0;
      const bool whole = arrays.generated.empty();
      const std::int64_t in_front =
          whole ? (options_.phase == Phase::kDecode ? 0 : rows.tokens) : rows.tokens - arrays.generated[i];
      Choices front = take_front(rows, in_front);
      // Run once, however many answers there are to it.
      const bool again = i > 0 && !whole && (i % arrays.per_prompt != 0 || front.ids == before.ids);
      if (!again) before = front;
      if (i == 0 && !whole && (choices.size() == 1 || arrays.per_prompt == choices.size()))
        leave_out_cached(answer, front);
      GRACE_TRY(add_sequence(again ? Choices{} : front, rows, choices[i].place));
    }
    return any;
  }

  // Rows of cached positions are those of the request that ran them.
  static void leave_out_cached(const Json& answer, Choices& front) {
    const std::int64_t not_asked_for =
        std::max<std::int64_t>(count_in(answer, "prompt_tokens") - front.tokens, 0);
    const std::int64_t cached =
        std::clamp<std::int64_t>(cached_tokens_of(answer) - not_asked_for, 0, front.tokens);
    const std::int64_t ids = cached * front.layers * front.width;
    std::fill_n(front.ids.begin(), ids, RecordingSink::kNotRecorded);
  }

  Status add_sequence(const Choices& prompt, const Choices& generated, const std::string& place) {
    if (prompt.tokens + generated.tokens == 0) return {};
    if (layers_ == 0) GRACE_TRY(begin(prompt, generated, place));
    for (const Choices* part : {&prompt, &generated})
      if (part->tokens > 0 && (part->layers != layers_ || part->width != width_))
        return invalid_input(fmt::format("{}: {} layers of {} choices, an earlier answer has {} of {}", place,
                                         part->layers, part->width, layers_, width_));
    GRACE_TRY(sink_.begin_sequence());
    GRACE_TRY(sink_.add_tokens(of_moe_layers(prompt), Phase::kPrefill, {place, 0}));
    return sink_.add_tokens(of_moe_layers(generated), Phase::kDecode, {place, prompt.tokens});
  }

  // Dense layers have rows too, of zeros, which no MoE layer of K > 1 can have; in lists they may be absent.
  Status begin(const Choices& prompt, const Choices& generated, const std::string& place) {
    const Choices& any = prompt.tokens > 0 ? prompt : generated;
    layers_ = any.layers;
    width_ = any.width;
    if (layers_ > kMaxDecoderLayer || width_ > kMaxExperts)
      return invalid_input(fmt::format("{}: {} layers of {} choices", place, layers_, width_));
    const auto count = static_cast<std::size_t>(layers_), width = static_cast<std::size_t>(width_);
    std::vector<bool> has_zero(count, false), has_other(count, false);
    for (const Choices* part : {&prompt, &generated})
      for (std::size_t i = 0; i < part->ids.size() && part->width == width_ && part->layers == layers_; ++i) {
        if (part->ids[i] == 0) has_zero[i / width % count] = true;
        if (part->ids[i] > 0) has_other[i / width % count] = true;
      }
    std::vector<bool> is_empty(count, false);
    if (width > 1)
      for (std::size_t l = 0; l < count; ++l) is_empty[l] = has_zero[l] && !has_other[l];
    const bool says_less = options_.dense_layers > 0 || !options_.decoder_layers.empty();
    const bool every_layer = std::ranges::find(is_empty, true) != is_empty.end() ||
                             (any.is_unsigned && (width == 1 || !says_less));
    if (every_layer) {
      rows_ = GRACE_TRY(moe_rows(is_empty, options_, place, sink_));
      return sink_.begin_tokens(0, static_cast<int>(width_), rows_);
    }
    return sink_.begin_tokens(0, static_cast<int>(width_),
                              GRACE_TRY(decoder_layers_of(count, options_, "vLLM", sink_)));
  }

  std::vector<std::int32_t> of_moe_layers(const Choices& choices) const {
    if (rows_.empty() || choices.tokens == 0) return choices.ids;
    const auto width = static_cast<std::size_t>(width_), count = static_cast<std::size_t>(layers_);
    std::vector<std::int32_t> kept;
    for (std::size_t t = 0; t < static_cast<std::size_t>(choices.tokens); ++t)
      for (const int row : rows_) {
        const auto from = choices.ids.begin() +
                          static_cast<std::ptrdiff_t>((t * count + static_cast<std::size_t>(row)) * width);
        kept.insert(kept.end(), from, from + static_cast<std::ptrdiff_t>(width));
      }
    return kept;
  }

  const ImportOptions& options_;
  RecordingSink& sink_;
  std::int64_t layers_ = 0, width_ = 0;
  std::vector<int> rows_;  // of the MoE layers, where dense ones have rows too
  bool told_of_phases_ = false;
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
