// Any bytes as a chat template over a conversation: a refusal in one line, or UTF-8.
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <string>
#include <string_view>

#include "grace/base/check.h"
#include "grace/files/json_file.h"
#include "grace/text/jinja/template.h"
#include "grace/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const grace::Result<grace::jinja::Template> chat = grace::jinja::Template::parse(source, "fuzz");
  static const std::map<std::string, grace::Json> variables = {
      {"messages", grace::Json::parse(R"([{"role": "user", "content": "h\u00e9 <b>\n"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}])")},
      {"tools", nullptr},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"}};
  const grace::Result<std::string> text =
      chat.ok() ? chat.value().render(variables, std::tm{}) : grace::Result<std::string>(chat.error());
  if (text.ok()) {
    GRACE_CHECK(grace::find_invalid_utf8(text.value()) == std::string_view::npos, "a text that is not UTF-8");
  } else {
    GRACE_CHECK(text.error().message.find('\n') == std::string::npos, "a message of several lines");
  }
  return 0;
}
