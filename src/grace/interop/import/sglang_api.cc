// Answers of SGLang's API: flat int32 in base64, [tokens, decoder layers, K], dense layers as zeros.
#include <fmt/format.h>

#include <algorithm>

#include "grace/files/json_file.h"
#include "grace/interop/import/api_json.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

// What one answer says.
struct Answer {
  const Json* encoded = nullptr;
  std::int64_t prompt = 0, generated = 0;  // tokens
};

std::int64_t count_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  const bool fits =
      found != object.end() && found->is_number_unsigned() && found->get<std::uint64_t>() < (1ULL << 40);
  return fits ? found->get<std::int64_t>() : 0;
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// /generate: meta_info.routed_experts; chat: sglext.routed_experts, of the answer or of its choice.
Answer answer_of(const Json& json) {
  Answer answer;
  if (const Json* meta = member(json, "meta_info")) {
    answer.encoded = member(*meta, "routed_experts");
    if (answer.encoded != nullptr) {
      answer.prompt = count_of(*meta, "prompt_tokens");
      answer.generated = count_of(*meta, "completion_tokens");
    }
    return answer;
  }
  const Json* extension = member(json, "sglext");
  const Json* choices = member(json, "choices");
  if (extension == nullptr && choices != nullptr && choices->is_array() && choices->size() == 1)
    extension = member((*choices)[0], "sglext");
  if (extension != nullptr) answer.encoded = member(*extension, "routed_experts");
  if (const Json* usage = member(json, "usage"); usage != nullptr && usage->is_object()) {
    answer.prompt = count_of(*usage, "prompt_tokens");
    answer.generated = count_of(*usage, "completion_tokens");
  }
  return answer;
}

class ApiReader {
 public:
  ApiReader(const ImportOptions& options, RecordingSink& sink) : options_(options), sink_(sink) {}

  Status add(const Json& json, const std::string& place) {
    const Answer answer = answer_of(json);
    if (answer.encoded == nullptr || answer.encoded->is_null()) {
      sink_.warn(place + ": an answer without routed_experts: was return_routed_experts asked for?");
      return {};
    }
    if (!answer.encoded->is_string())
      return invalid_input(
          fmt::format("{}: routed_experts is {}, not base64", place, shown(*answer.encoded)));
    if (options_.experts_per_token == 0)
      return invalid_input(fmt::format(
          "{}: routed_experts is flat: --top-k must say how many experts a token chooses", place));
    const std::vector<std::byte> bytes =
        GRACE_TRY(decode_base64(answer.encoded->get_ref<const std::string&>(), place));
    std::vector<std::int32_t> ids;
    if (bytes.size() % sizeof(std::int32_t) != 0)
      return invalid_input(
          fmt::format("{}: routed_experts has {} bytes, no whole int32", place, bytes.size()));
    GRACE_TRY(ids_of(bytes, Dtype::kI32, place, ids));
    // The last token was never run.
    const std::int64_t tokens = answer.prompt + answer.generated - 1;
    const std::int64_t per_layer = tokens * options_.experts_per_token;
    if (tokens < 1 || std::ssize(ids) % per_layer != 0 || ids.empty())
      return invalid_input(fmt::format("{}: {} ids do not divide into {} tokens of {} choices", place,
                                       ids.size(), tokens, options_.experts_per_token));
    return add_ids(ids, tokens, answer.prompt, place);
  }

 private:
  Status add_ids(std::span<const std::int32_t> ids, std::int64_t tokens, std::int64_t prompt,
                 const std::string& place) {
    const auto width = static_cast<std::size_t>(options_.experts_per_token);
    const std::size_t layers = ids.size() / static_cast<std::size_t>(tokens) / width;
    if (rows_.empty()) {
      GRACE_TRY(begin(ids, layers, place));
    } else if (layers != num_layers_) {
      return invalid_input(
          fmt::format("{}: {} layers, an earlier answer has {}", place, layers, num_layers_));
    }
    std::vector<std::int32_t> kept;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (const int row : rows_) {
        const auto choice = ids.subspan(
            (static_cast<std::size_t>(t) * layers + static_cast<std::size_t>(row)) * width, width);
        kept.insert(kept.end(), choice.begin(), choice.end());
      }
    const auto split = static_cast<std::size_t>(std::min(prompt, tokens)) * rows_.size() * width;
    GRACE_TRY(sink_.begin_sequence());
    GRACE_TRY(sink_.add_tokens(std::span(kept).first(split), Phase::kPrefill, {place, 0}));
    return sink_.add_tokens(std::span(kept).subspan(split), Phase::kDecode,
                            {place, std::min(prompt, tokens)});
  }

  Status begin(std::span<const std::int32_t> ids, std::size_t layers, const std::string& place) {
    std::vector<bool> is_empty(layers, true);
    const auto width = static_cast<std::size_t>(options_.experts_per_token);
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (ids[i] > 0) is_empty[i / width % layers] = false;
    rows_ = GRACE_TRY(moe_rows(is_empty, options_, place, sink_));
    num_layers_ = layers;
    return sink_.begin_tokens(0, options_.experts_per_token, rows_);
  }

  const ImportOptions& options_;
  RecordingSink& sink_;
  std::vector<int> rows_;
  std::size_t num_layers_ = 0;
};

}  // namespace

bool is_sglang_api(const std::filesystem::path& path) {
  const std::string head = first_bytes(path, 1 << 20);
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || (head[begin] != '{' && head[begin] != '[')) return false;
  return head.find("\"sglext\"") != std::string::npos ||
         (head.find("\"meta_info\"") != std::string::npos &&
          head.find("\"routed_experts\"") != std::string::npos);
}

Status read_sglang_api(std::span<const std::filesystem::path> files, const ImportOptions& options,
                       RecordingSink& sink) {
  ApiReader reader(options, sink);
  return for_each_json(files, sink,
                       [&](const Json& json, const std::string& place) { return reader.add(json, place); });
}

}  // namespace grace
