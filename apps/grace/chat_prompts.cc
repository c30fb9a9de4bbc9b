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

struct Given {
  Json messages, tools;  // tools may be null
};

// A list of messages, or an object with `messages` and perhaps `tools`.
Result<Given> read_conversation(const std::string& path) {
  Json json = GRACE_TRY(read_json(path));
  Given read{std::move(json), Json()};
  if (read.messages.is_object()) {
    const Json object = std::move(read.messages);
    read = {object.value("messages", Json()), object.value("tools", Json())};
  }
  GRACE_TRY(check_messages(read.messages, path));
  if (!read.tools.is_null() && !read.tools.is_array())
    return invalid_input(fmt::format("{}: tools: {} is no list", path, shown(read.tools)));
  return read;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace

void add_chat_flags(CLI::App& command, ChatFlags& flags) {
  command.add_flag(
      "--chat", flags.chat,
      "each prompt is a user's message, put to the model by its folder's chat template; without a prompt "
      "messages are read as they are typed, and answered in turn");
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

Result<ChatPrompts> ChatPrompts::load(const ChatFlags& flags, const std::filesystem::path& folder) {
  ChatOptions options;
  for (const std::string& assignment : flags.variables) {
    auto [name, value] = GRACE_TRY(variable_of(assignment));
    options.variables.insert_or_assign(std::move(name), std::move(value));
  }
  ChatTemplate chat = GRACE_TRY(ChatTemplate::load(folder));
  return ChatPrompts(std::move(chat), std::move(options), flags.system);
}

Json ChatPrompts::opening() const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  return messages;
}

Result<std::string> ChatPrompts::text_of(const Json& messages, const Json& tools) const {
  ChatOptions options = options_;
  options.tools = tools;
  return template_.render(messages, options, local_time());
}

Result<std::vector<std::string>> chat_texts(const ChatFlags& flags, const std::filesystem::path& folder,
                                            const std::vector<std::string>& prompts) {
  Given given;
  if (!flags.messages.empty()) given = GRACE_TRY(read_conversation(flags.messages));
  const ChatPrompts chat = GRACE_TRY(ChatPrompts::load(flags, folder));
  std::vector<std::string> texts;
  if (!flags.messages.empty()) texts.push_back(GRACE_TRY(chat.text_of(given.messages, given.tools)));
  for (const std::string& prompt : prompts) {
    Json messages = chat.opening();
    messages.push_back({{"role", "user"}, {"content", prompt}});
    texts.push_back(GRACE_TRY(chat.text_of(messages)));
  }
  return texts;
}

}  // namespace grace::app
