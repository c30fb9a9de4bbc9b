// Conversations in place of prompts: `run --chat`.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json_file.h"
#include "grace/text/chat_template.h"

namespace CLI {
class App;
}

namespace grace::app {

struct ChatFlags {
  bool chat = false;
  std::string system;
  std::string messages;                // a file
  std::vector<std::string> variables;  // NAME=VALUE
};

// --chat, --system, --messages, --chat-variable.
void add_chat_flags(CLI::App& command, ChatFlags& flags);

// How a model folder's template puts conversations, with what the flags say of it. Immutable.
class ChatPrompts {
 public:
  // Errors: those of the folder's template and of the flags.
  static Result<ChatPrompts> load(const ChatFlags& flags, const std::filesystem::path& folder);

  // The messages that every conversation begins with, a JSON list: the system's, or none.
  Json opening() const;
  Result<std::string> text_of(const Json& messages, const Json& tools = nullptr) const;

 private:
  ChatPrompts(ChatTemplate chat, ChatOptions options, std::string system)
      : template_(std::move(chat)), options_(std::move(options)), system_(std::move(system)) {}
  ChatTemplate template_;
  ChatOptions options_;
  std::string system_;
};

// What the model of `folder` is to read: one text for each prompt, a conversation of its own, or the one of
// --messages. Errors: invalid_input where flags contradict one another; those of the file and of the folder's
// template. REQUIRES: prompts are empty with --messages, and only with it.
Result<std::vector<std::string>> chat_texts(const ChatFlags& flags, const std::filesystem::path& folder,
                                            const std::vector<std::string>& prompts);

// Errors: invalid_input for one of the flags without --chat.
Status check_chat_flags(const ChatFlags& flags);

}  // namespace grace::app
