// grace tokenize: text to token ids and back.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "context.h"
#include "grace/files/json_file.h"
#include "options.h"

namespace grace::app {
namespace {

struct Flags {
  std::string model, text, decode;
  bool json = false;
};

// A list of ids, or what `tokenize --json` prints, or a list of lists with one entry.
Result<std::vector<std::int32_t>> read_ids(const std::string& path, int vocab_size) {
  Json json = GRACE_TRY(read_json(path));
  if (json.is_object() && json.contains("token_ids")) json = Json(json.at("token_ids"));
  if (!json.is_array()) return invalid_input(path + ": not a list of token ids");
  if (json.size() == 1 && json[0].is_array()) json = Json(json[0]);
  std::vector<std::int32_t> ids;
  for (const Json& id : json) {
    if (!id.is_number_integer())
      return invalid_input(fmt::format("{}: place {}: {} is not a token id", path, ids.size(), id.dump()));
    const auto value = id.get<std::int64_t>();
    if (value < 0 || value >= vocab_size)
      return invalid_input(
          fmt::format("{}: place {}: token id {} is outside [0, {})", path, ids.size(), value, vocab_size));
    ids.push_back(static_cast<std::int32_t>(value));
  }
  return ids;
}

Result<int> tokenize(const Flags& flags) {
  if (flags.text.empty() == flags.decode.empty())
    return invalid_input("tokenize: give either --text FILE or --decode IDS.json");
  const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.model));
  if (!flags.decode.empty()) {
    const std::vector<std::int32_t> ids = GRACE_TRY(read_ids(flags.decode, tokenizer.vocab_size()));
    const std::string text = GRACE_TRY(tokenizer.decode(ids));
    print_json({{"text", text}});
    return 0;
  }
  const std::vector<std::int32_t> ids = GRACE_TRY(read_and_encode(tokenizer, flags.text));
  print(Json{{"token_ids", ids}}.dump() + "\n");
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Text to token ids (JSON: token_ids), or ids back to text.");
  command->add_option("MODEL", flags->model, "a model folder or a tokenizer.json")->required();
  command->add_option("--text", flags->text,
                      "a UTF-8 text file; special tokens in it are recognised, none are added");
  command->add_option("--decode", flags->decode, "a JSON list of token ids, or what --text printed");
  command->add_flag("--json", flags->json, "JSON (always so)");
  command->footer("Example:\n  grace tokenize models/demo --text models/demo/heldout/judge/en.txt");
  command->callback([flags, &context] { context.action = [flags] { return tokenize(*flags); }; });
}

}  // namespace grace::app
