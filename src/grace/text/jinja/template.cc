#include "grace/text/jinja/template.h"

#include <fmt/format.h>

#include <algorithm>

#include "grace/files/json_file.h"
#include "grace/text/jinja/interpreter.h"
#include "grace/text/jinja/parser.h"
#include "grace/text/tokenizer.h"
#include "grace/text/utf8.h"

namespace grace::jinja {
namespace {

constexpr std::size_t kMaxMessageBytes = 400;

// Names and texts of the template's own stand in messages.
Error in_one_line(Error error) {
  std::string& message = error.message;
  std::ranges::replace_if(
      message, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  if (message.size() <= kMaxMessageBytes) return error;
  message.resize(kMaxMessageBytes);
  message = utf8_lossy(message) + " …";
  return error;
}

}  // namespace

struct Template::Impl {
  std::string place;
  Block block;
};

Template::Template(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Result<Template> Template::parse(std::string_view source, std::string_view place) {
  const std::size_t invalid = find_invalid_utf8(source);
  if (invalid != std::string_view::npos)
    return invalid_input(fmt::format("{}: byte {} is not UTF-8", place, invalid));
  auto impl = std::make_unique<Impl>();
  impl->place = place;
  Result<Block> block = parse_template(source, place);
  if (!block.ok()) return in_one_line(block.error());
  impl->block = std::move(block).value();
  return Template(std::move(impl));
}

Result<std::string> Template::render(const std::map<std::string, Json>& variables, const std::tm& now) const {
  std::map<std::string, Value> values;
  for (const auto& [name, json] : variables) values.emplace(name, Value::from_json(json));
  Interpreter interpreter(values, now);
  Result<std::string> text = interpreter.run(impl_->block);
  if (text.ok()) return text;
  return in_one_line(
      {text.error().kind, fmt::format("{}:{}: {}", impl_->place, interpreter.line(), text.error().message)});
}

}  // namespace grace::jinja
