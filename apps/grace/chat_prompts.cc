#include "chat_prompts.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <utility>

#include "grace/files/json_file.h"
#include "grace/text/chat_template.h"

namespace grace::app {
namespace {

// VALUE is JSON where it can be read as such, else a text.
Result<std::pair<std::string, Json>> variable_of(const std::string& assignment) {
  const std::size_t sign = assignment.find('=');
  if (sign == 0 || sign == std::string::npos)
    return invalid_input(fmt::format("--chat-variable: `{}` is not NAME=VALUE", assignment));
  const std::string value = assignment.substr(sign + 1);
  const Result<Json> json = parse_json(value, "--chat-variable");
  return std::pair(assignment.substr(0, sign), json.ok() ? json.value() : Json(value));
}

// A list of messages, or an object with `messages` and perhaps `tools`.
Result<Json> read_conversation(const std::string& path, ChatOptions& options) {
  Json json = GRACE_TRY(read_json(path));
  if (!json.is_object()) {
    GRACE_TRY(check_messages(json, path));
    return json;
  }
  const Json messages = json.value("messages", Json());
  GRACE_TRY(check_messages(messages, path));
  options.tools = json.value("tools", Json());
  if (!options.tools.is_null() && !options.tools.is_array())
    return invalid_input(fmt::format("{}: tools: {} is no list", path, shown(options.tools)));
  return messages;
}

Json conversation_of(const std::string& system, const std::string& prompt) {
  Json messages = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", prompt}});
  return messages;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace

void add_chat_flags(CLI::App& command, ChatFlags& flags) {
  command.add_flag("--chat", flags.chat,
                   "each prompt is a user's message, put to the model by its folder's chat template");
  command.add_option("--system", flags.system, "with --chat: a system message before each prompt");
  command.add_option(
      "--messages", flags.messages,
      "with --chat, in place of prompts: a conversation, a JSON list of objects with `role` and "
      "`content`, or an object with `messages` and `tools`");
  command
      .add_option(
          "--chat-variable", flags.variables,
          "with --chat: NAME=VALUE for the template, such as enable_thinking=false; may be given several "
          "times")
      ->allow_extra_args(false);
}

Status check_chat_flags(const ChatFlags& flags) {
  if (flags.chat) {
    if (flags.messages.empty() || flags.system.empty()) return {};
    return invalid_input("run: --system or --messages, whose file can have a system message of its own");
  }
  const char* needy = !flags.system.empty()      ? "--system"
                      : !flags.messages.empty()  ? "--messages"
                      : !flags.variables.empty() ? "--chat-variable"
                                                 : nullptr;
  if (needy != nullptr) return invalid_input(fmt::format("run: {} goes with --chat", needy));
  return {};
}

Result<std::vector<std::string>> chat_texts(const ChatFlags& flags, const std::filesystem::path& folder,
                                            const std::vector<std::string>& prompts) {
  ChatOptions options;
  for (const std::string& assignment : flags.variables) {
    auto [name, value] = GRACE_TRY(variable_of(assignment));
    options.variables.insert_or_assign(std::move(name), std::move(value));
  }
  std::vector<Json> conversations;
  if (!flags.messages.empty()) conversations.push_back(GRACE_TRY(read_conversation(flags.messages, options)));
  for (const std::string& prompt : prompts) conversations.push_back(conversation_of(flags.system, prompt));
  const ChatTemplate chat = GRACE_TRY(ChatTemplate::load(folder));
  const std::tm now = local_time();
  std::vector<std::string> texts;
  for (const Json& messages : conversations) texts.push_back(GRACE_TRY(chat.render(messages, options, now)));
  return texts;
}

}  // namespace grace::app
