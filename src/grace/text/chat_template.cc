#include "grace/text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "grace/files/mapped_file.h"
#include "grace/text/json_fields.h"

namespace grace {
namespace {

constexpr std::string_view kDefault = "default";
constexpr std::string_view kForTools = "tool_use";

using Sources = std::map<std::string, std::pair<std::string, std::string>>;  // text and place by name

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Status read_files(const std::filesystem::path& folder, Sources& sources) {
  const std::filesystem::path single = folder / "chat_template.jinja";
  if (is_there(single)) {
    std::string text = GRACE_TRY(read_text(single));
    sources[std::string(kDefault)] = {std::move(text), single.string()};
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "additional_chat_templates", error)) {
    if (entry.path().extension() != ".jinja") continue;
    std::string text = GRACE_TRY(read_text(entry.path()));
    sources[entry.path().stem().string()] = {std::move(text), entry.path().string()};
  }
  return {};
}

// `chat_template` of tokenizer_config.json.
Status read_field(const Json& field, const std::string& place, Sources& sources) {
  if (field.is_null()) return {};
  if (field.is_string()) {
    sources[std::string(kDefault)] = {field.get<std::string>(), place};
    return {};
  }
  if (!field.is_array())
    return invalid_input(fmt::format("{}: neither a text nor a list of named ones", place));
  for (const Json& named : field) {
    if (!named.is_object()) return invalid_input(fmt::format("{}: {} is no object", place, shown(named)));
    const std::string name = GRACE_TRY(get_string(named, "name", place));
    std::string text = GRACE_TRY(get_string(named, "template", place));
    sources[name] = {std::move(text), fmt::format("{} `{}`", place, name)};
  }
  return {};
}

// A token is a text, or an object with the text as `content`.
void add_special_tokens(const Json& config, std::map<std::string, Json>& tokens) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
  for (const std::string_view name : kNames) {
    const Json& token = field_or_null(config, name);
    const Json& content = token.is_object() ? field_or_null(token, "content") : token;
    if (content.is_string()) tokens[std::string(name)] = content;
  }
}

// As the reference: fields that are null are absent, and reasoning is known by every name that templates use.
Json without_nulls(const Json& message) {
  static constexpr std::array<const char*, 3> kReasoning = {"reasoning_content", "thinking", "reasoning"};
  Json out = Json::object();
  const auto* const known = std::ranges::find_if(
      kReasoning, [&](const char* name) { return !field_or_null(message, name).is_null(); });
  if (known != kReasoning.end()) out["thinking"] = message.at(*known);
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) out[key] = value;
  if (known != kReasoning.end()) out["reasoning_content"] = message.at(*known);
  return out;
}

}  // namespace

Status check_messages(const Json& messages, std::string_view place) {
  if (!messages.is_array() || messages.empty())
    return invalid_input(fmt::format("{}: no list of messages", place));
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (!field_or_null(messages[i], "role").is_string())
      return invalid_input(fmt::format("{}: message {}: {} has no `role`", place, i, shown(messages[i])));
  return {};
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  ChatTemplate chat;
  Sources sources;
  GRACE_TRY(read_files(folder, sources));
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  bool knows_added_tokens = false;
  if (is_there(config_path)) {
    const Json config = GRACE_TRY(read_json(config_path));
    add_special_tokens(config, chat.special_tokens_);
    knows_added_tokens = !field_or_null(config, "added_tokens_decoder").is_null();
    if (sources.empty())
      GRACE_TRY(read_field(field_or_null(config, "chat_template"), config_path.string() + ": chat_template",
                           sources));
  }
  const std::filesystem::path tokens_path = folder / "special_tokens_map.json";
  if (!knows_added_tokens && is_there(tokens_path))  // an older folder's, which then count
    add_special_tokens(GRACE_TRY(read_json(tokens_path)), chat.special_tokens_);
  chat.place_ = folder.string();
  if (sources.empty())
    return invalid_input(
        fmt::format("{}: no chat template (`chat_template` in tokenizer_config.json, or chat_template.jinja)",
                    chat.place_));
  for (const auto& [name, source] : sources)
    chat.templates_.emplace(name, GRACE_TRY(jinja::Template::parse(source.first, source.second)));
  return chat;
}

Result<std::string> ChatTemplate::render(const Json& messages, const ChatOptions& options,
                                         const std::tm& now) const {
  GRACE_TRY(check_messages(messages, "conversation"));
  auto found = templates_.find(std::string(options.tools.is_null() ? kDefault : kForTools));
  if (found == templates_.end()) found = templates_.find(std::string(kDefault));
  if (found == templates_.end())
    return invalid_input(
        fmt::format("{}: {} chat templates, and none is the default", place_, templates_.size()));
  Json plain = Json::array();
  for (const Json& message : messages) plain.push_back(without_nulls(message));
  std::map<std::string, Json> variables = special_tokens_;
  for (const auto& [name, value] : options.variables) variables.insert_or_assign(name, value);
  variables.insert_or_assign("messages", std::move(plain));
  variables.insert_or_assign("tools", options.tools);
  variables.try_emplace("documents", nullptr);
  variables.insert_or_assign("add_generation_prompt", options.add_generation_prompt);
  return found->second.render(variables, now);
}

}  // namespace grace
