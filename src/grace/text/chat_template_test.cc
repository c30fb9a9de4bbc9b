#include "grace/text/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "grace/files/mapped_file.h"

namespace grace {
namespace {

const std::filesystem::path kSource = GRACE_SOURCE_DIR;

std::tm fixed_time() {
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 10;
  now.tm_mday = 30;
  now.tm_hour = 7;
  now.tm_wday = 1;
  return now;
}

Json fixture(const std::string& name) { return read_json(kSource / "tests/fixtures/chat" / name).value(); }

// A model folder that is gone when the test ends.
class AChatTemplate : public testing::Test {
 protected:
  AChatTemplate() {
    folder_ = std::filesystem::temp_directory_path() / ("chat_template_test." + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "additional_chat_templates");
  }
  ~AChatTemplate() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    write_text_atomically(folder_ / name, text).value();
  }
  void write_config(const Json& config) { write("tokenizer_config.json", config.dump()); }
  std::string render(const Json& messages, const ChatOptions& options = {}) {
    return ChatTemplate::load(folder_).value().render(messages, options, fixed_time()).value();
  }
  std::string refusal() {
    const Result<ChatTemplate> chat = ChatTemplate::load(folder_);
    return chat.ok() ? "" : chat.error().message;
  }
  std::filesystem::path folder_;
};

void expect_as_the_reference(const ChatTemplate& chat, const Json& cases, const Json& table) {
  for (const Json& test : cases) {
    const Json& asked = table["options"][test["options"].get<std::size_t>()];
    ChatOptions options;
    options.add_generation_prompt = asked["add_generation_prompt"];
    if (asked.contains("tools")) options.tools = asked["tools"];
    if (asked.contains("variables"))
      for (const auto& [name, value] : asked["variables"].items()) options.variables[name] = value;
    SCOPED_TRACE(test["name"].get<std::string>() + " " + asked.dump());
    const Json& messages = table["conversations"][test["name"].get<std::string>()];
    const Result<std::string> text = chat.render(messages, options, fixed_time());
    if (test["text"].is_null()) {
      EXPECT_FALSE(text.ok());
    } else {
      ASSERT_TRUE(text.ok()) << text.error().message;
      EXPECT_EQ(text.value(), test["text"].get<std::string>());
    }
  }
}

TEST_F(AChatTemplate, RendersConversationsAsTheReference) {
  const Json table = fixture("conversations.json");
  for (const Json& entry : table["templates"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    Json config = table["special"];
    config["chat_template"] = entry["template"];
    write_config(config);
    expect_as_the_reference(ChatTemplate::load(folder_).value(), entry["cases"], table);
  }
}

TEST_F(AChatTemplate, OfAPublishedModelRendersConversationsAsTheReference) {
  const std::filesystem::path folder = kSource / "../shared/data/tokenizers/qwen3";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no shared data beside the source";
  expect_as_the_reference(ChatTemplate::load(folder).value(), fixture("qwen3.json")["cases"],
                          fixture("conversations.json"));
}

const Json kHello = Json::parse(R"([{"role": "user", "content": "Hello"}])");

TEST_F(AChatTemplate, IsTheFilesBesideTheConfigurationFirst) {
  EXPECT_EQ(refusal(),
            folder_.string() +
                ": no chat template (`chat_template` in tokenizer_config.json, or chat_template.jinja)");
  write_config({{"chat_template", "of the field"}});
  EXPECT_EQ(render(kHello), "of the field");
  write("additional_chat_templates/tool_use.jinja", "for tools");
  EXPECT_EQ(ChatTemplate::load(folder_).value().render(kHello, {}, fixed_time()).error().message,
            folder_.string() + ": 1 chat templates, and none is the default");
  write("chat_template.jinja", "of the file\n");
  EXPECT_EQ(render(kHello), "of the file");
  ChatOptions with_tools;
  with_tools.tools = Json::array();
  EXPECT_EQ(render(kHello, with_tools), "for tools");
}

TEST_F(AChatTemplate, IsChosenByNameAmongSeveral) {
  write_config(
      {{"chat_template",
        {{{"name", "default"}, {"template", "plain"}}, {{"name", "tool_use"}, {"template", "for tools"}}}}});
  EXPECT_EQ(render(kHello), "plain");
  ChatOptions with_tools;
  with_tools.tools = Json::array();
  EXPECT_EQ(render(kHello, with_tools), "for tools");
  write_config({{"chat_template", 3}});
  EXPECT_NE(refusal().find("tokenizer_config.json: chat_template: neither a text nor a list of named ones"),
            std::string::npos);
  write_config({{"chat_template", "{% if %}"}});
  EXPECT_NE(refusal().find("tokenizer_config.json: chat_template:1: `%}` where an expression was expected"),
            std::string::npos);
}

TEST_F(AChatTemplate, KnowsTheFoldersSpecialTokens) {
  write("chat_template.jinja", "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}");
  write_config({{"bos_token", {{"content", "<s>"}, {"lstrip", false}}},
                {"eos_token", "</s>"},
                {"unk_token", nullptr}});
  EXPECT_EQ(render(kHello), "<s></s>False");
  write("special_tokens_map.json", R"({"eos_token": {"content": "<end>"}})");
  EXPECT_EQ(render(kHello), "<s><end>False");
  write_config({{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"added_tokens_decoder", Json::object()}});
  EXPECT_EQ(render(kHello), "<s></s>False");
  ChatOptions options;
  options.variables["bos_token"] = "<mine>";
  EXPECT_EQ(render(kHello, options), "<mine></s>False");
}

TEST(Messages, AreAListOfObjectsWithARole) {
  for (const std::string bad : {"[]", "{}", "[3]", R"([{"content": "x"}])", R"([{"role": 3}])", "null"})
    EXPECT_FALSE(check_messages(Json::parse(bad), "m.json").ok()) << bad;
  EXPECT_EQ(check_messages(Json::parse(R"([{"role": "user"}, 7])"), "m.json").error().message,
            "m.json: message 1: 7 has no `role`");
}

}  // namespace
}  // namespace grace
