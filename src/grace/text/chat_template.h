// What a chat model was trained to read: a conversation as one text, by the model folder's template.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json_file.h"
#include "grace/text/jinja/template.h"

namespace grace {

struct ChatOptions {
  bool add_generation_prompt = true;      // end where the assistant's next message begins
  Json tools;                             // a list of JSON schemas, or null
  std::map<std::string, Json> variables;  // others, by which templates are told (`enable_thinking`)
};

// Immutable, thread-safe.
class ChatTemplate {
 public:
  // Of the folder, in this order: chat_template.jinja and additional_chat_templates/*.jinja, else
  // `chat_template` of tokenizer_config.json, a text or a list of named ones. Errors: io; invalid_input where
  // there is none, or no default; those of jinja::Template.
  static Result<ChatTemplate> load(const std::filesystem::path& folder);

  // As transformers' apply_chat_template renders them: fields of messages that are null count as absent,
  // the folder's special tokens are variables. `now` is for templates that tell the date. Errors:
  // invalid_input for what is no list of messages, or that the template refuses; those of jinja::Template.
  Result<std::string> render(const Json& messages, const ChatOptions& options, const std::tm& now) const;

 private:
  std::string place_;
  std::map<std::string, jinja::Template> templates_;  // by name
  std::map<std::string, Json> special_tokens_;        // bos_token, eos_token, …
};

// A conversation as Json has it. Errors: invalid_input, with `place`, unless it is a list, not empty, of
// objects with a `role`.
Status check_messages(const Json& messages, std::string_view place);

}  // namespace grace
