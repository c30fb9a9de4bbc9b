// Conversations in place of prompts: `run --chat`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "grace/base/result.h"

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

// What the model of `folder` is to read: one text for each prompt, a conversation of its own, or the one of
// --messages. Errors: invalid_input where flags contradict one another; those of the file and of the folder's
// template. REQUIRES: prompts are empty with --messages, and only with it.
Result<std::vector<std::string>> chat_texts(const ChatFlags& flags, const std::filesystem::path& folder,
                                            const std::vector<std::string>& prompts);

// Errors: invalid_input for one of the flags without --chat.
Status check_chat_flags(const ChatFlags& flags);

}  // namespace grace::app
