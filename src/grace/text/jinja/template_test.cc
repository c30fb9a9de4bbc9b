#include "grace/text/jinja/template.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace::jinja {
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

Result<std::string> rendered(std::string_view source, const std::map<std::string, Json>& variables = {}) {
  return GRACE_TRY(Template::parse(source, "t")).render(variables, fixed_time());
}

std::string error_of(std::string_view source) {
  const Result<std::string> text = rendered(source);
  return text.ok() ? "rendered: " + text.value() : text.error().message;
}

TEST(ATemplate, RendersAsTheReference) {
  const Json fixture = read_json(kSource / "tests/fixtures/chat/expressions.json").value();
  std::map<std::string, Json> variables;
  for (const auto& [name, value] : fixture["variables"].items()) variables[name] = value;
  for (const Json& test : fixture["cases"]) {
    const std::string source = test["template"];
    const Result<std::string> text = rendered(source, variables);
    if (test["text"].is_null()) {
      EXPECT_FALSE(text.ok()) << source;
      if (!text.ok()) {
        EXPECT_EQ(text.error().message.find('\n'), std::string::npos) << text.error().message;
      }
      continue;
    }
    ASSERT_TRUE(text.ok()) << source << "\n" << text.error().message;
    EXPECT_EQ(text.value(), test["text"].get<std::string>()) << source;
  }
}

TEST(ATemplate, NamesWhatItDoesNotKnowAndItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\n{{ 'x' | wordwrap }}", "t:2: filter `wordwrap`"},
      {"\n\n{{ 'x' is odder }}", "t:3: test `odder`"},
      {"{{ 'x'.casefold() }}", "t:1: method `casefold` of a text"},
      {"{% for x in y recursive %}{% endfor %}", "t:1: `recursive`"},
      {"{% include 'x' %}", "t:1: tag `include`"},
      {"{{ f(*x) }}", "t:1: `*` before an argument"},
      {"{{ '%s' % 'x' }}", "t:1: `%` after a string"},
      {"{{ loop }}{% for x in [1] %}{{ loop.depth }}{% endfor %}", "t:1: `loop.depth`"},
      {"{{ 99999999999999999999 }}", "t:1: `99999999999999999999` has over 63 bits"},
      {"{{ 2 ** 63 }}", "t:1: an integer of over 64 bits"},
      {"{% set f = [range] %}", "t:1: a function in a list"},
      {"{{ range }}", "t:1: the text of a function"},
      {"{{ [1].append(2) }}", "t:1: method `append` of a list"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_EQ(error_of(source), message);
    EXPECT_EQ(rendered(source).error().kind, ErrorKind::kUnsupported) << source;
  }
}

TEST(ATemplate, SaysWhatIsWrongAndWhere) {
  const std::pair<std::string, std::string> cases[] = {
      {"{{ a", "t:1: a tag without `}}`"},
      {"x\n{% if 1 %}\ny", "t:3: the end of the template where `endif` was expected"},
      {"{% endif %}", "t:1: unknown tag `endif`"},
      {"{{ 1 + }}", "t:1: `}}` where an expression was expected"},
      {"{{ (1 }}", "t:1: `}` closes nothing"},
      {"{{ 1) }}", "t:1: `)` closes nothing"},
      {"{{ 'a }}", "t:1: a string without an end"},
      {"{% break %}", "t:1: `break` outside a loop"},
      {"{{ a.b }}", "t:1: 'a' is undefined"},
      {"{{ {}.a.b }}", "t:1: 'dict object' has no attribute 'a'"},
      {"{{ 'a' + 1 }}", "t:1: `+` between str and int"},
      {"\n{{ 1 // 0 }}", "t:2: a division by zero"},
      {"{% for x in 3 %}{% endfor %}", "t:1: a int cannot be iterated"},
      {"{% for a, b in [[1]] %}{% endfor %}", "t:1: 1 values for 2 names"},
      {"{{ raise_exception('no\nway') }}", "t:1: the template refuses: no way"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "t:1: 2 arguments where 1 are the most"},
      {"{{ {}['a\\nb'].c }}", "t:1: 'dict object' has no attribute 'a b'"},
      {"\xff", "t: byte 0 is not UTF-8"},
  };
  for (const auto& [source, message] : cases) EXPECT_EQ(error_of(source), message);
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// Neither the stack, nor the clock, nor memory.
TEST(ATemplate, IsStoppedBeforeItTakesTooMuch) {
  const std::string sources[] = {
      "{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}",
      "{{ " + repeated("[", 100'000) + "1" + repeated("]", 100'000) + " }}",
      "{{ " + repeated("not ", 100'000) + "1 }}",
      "{{ " + repeated("-", 100'000) + "1 }}",
      "{{ 1" + repeated(" + 1", 100'000) + " }}",
      "{{ a" + repeated(".a", 100'000) + " }}",
      "{{ a" + repeated("|upper", 100'000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 100'000) + " }}",
      repeated("{% if 1 %}", 100'000) + repeated("{% endif %}", 100'000),
      "{% if 1 %}" + repeated("{% elif 1 %}", 100'000) + "{% endif %}",
      repeated("{% for x in [1] %}", 90) + repeated("{% endfor %}", 90) +
          "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(a) %}" + repeated("{% if 1 %}", 90) + "{{ m(a) }}" + repeated("{% endif %}", 90) +
          "{% endmacro %}{{ m(1) }}",
      "{% set n = namespace(x='ab') %}{% for i in range(100) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}",
      "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
      "{% set n = namespace(x={}) %}{% for i in range(1000) %}{% set n.x = {'a': n.x} %}{% endfor %}{{ n.x "
      "}}",
      "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
      "{% set n = namespace(x={}) %}{% for i in range(90) %}{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(20) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
      "{% for i in range(99999) %}{% if n.x == [n.x][0] and n.x|tojson and n.x in [n.x] %}{% endif %}{% "
      "endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(20) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
      "{{ ([n.x] * 10000)|unique|list|length }}",
      "{{ 'ab' * 1000000000 }}",
      "{{ [1] * 9223372036854775807 }}",
      "{{ ('a' * 1000000)|list|length }}{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
      "{{ 'x'|indent(99999999) * 1000 }}{{ ('\n' * 100000)|indent(1000000, blank=true) }}",
      "{{ range(9223372036854775807) }}",
      "{{ 2 ** 99999999999 }}",
  };
  for (const std::string& source : sources) {
    const Result<std::string> text = rendered(source);
    EXPECT_FALSE(text.ok()) << source.substr(0, 100);
  }
}

TEST(ATemplate, ReadsOrRefusesEveryFileOfTheCorpusInOneLine) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kSource / "fuzz/corpus/chat_template")) {
    SCOPED_TRACE(file.path().filename().string());
    const Result<std::string> text = rendered(read_text(file.path()).value());
    EXPECT_EQ(text.ok(), file.path().filename().string().starts_with("good"))
        << (text.ok() ? "" : text.error().message);
    if (!text.ok()) {
      EXPECT_EQ(text.error().message.find('\n'), std::string::npos);
    }
    ++count;
  }
  EXPECT_GT(count, 5);
}

}  // namespace
}  // namespace grace::jinja
