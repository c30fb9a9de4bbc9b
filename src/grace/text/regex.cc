#define PCRE2_CODE_UNIT_WIDTH 8
#include "grace/text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "grace/text/ascii_matcher.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

constexpr std::size_t kJitStackStart = std::size_t{32} * 1024;
constexpr std::size_t kJitStackMax =
    std::size_t{16} * 1024 * 1024;  // beyond it the interpreter, whose stack is the heap, takes over
constexpr std::size_t kLeastSteps = 10'000'000;  // PCRE2's own default
constexpr std::size_t kStepsPerByte = 64;        // a linear scan backs up over each byte a few times at most

std::string message_of(int code) {
  PCRE2_UCHAR8 text[256] = {};
  pcre2_get_error_message_8(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// By PCRE2, so that both matchers mean the same by a class.
Result<AsciiMatcher::AsciiSet> ascii_members(std::string_view pattern) {
  const Regex regex = GRACE_TRY(Regex::compile(pattern, "", Regex::Matcher::kPcreOnly));
  std::string all;
  for (char c = 0; c >= 0 && all.size() < 128; ++c) all.push_back(c);
  RegexScratch scratch;
  std::vector<ByteRange> matches;
  GRACE_TRY(regex.find_all(all, scratch, matches));
  AsciiMatcher::AsciiSet members{};
  for (const ByteRange& match : matches)
    for (std::size_t c = match.begin; c < match.end; ++c) members[c] = true;
  return members;
}

}  // namespace

struct RegexScratch::Impl {
  pcre2_match_data_8* data = pcre2_match_data_create_8(1, nullptr);
  pcre2_match_context_8* context = pcre2_match_context_create_8(nullptr);
  pcre2_jit_stack_8* stack = pcre2_jit_stack_create_8(kJitStackStart, kJitStackMax, nullptr);

  Impl() {
    GRACE_CHECK(data != nullptr && context != nullptr, "out of memory");
    if (stack != nullptr) pcre2_jit_stack_assign_8(context, nullptr, stack);
  }
  ~Impl() {
    pcre2_match_data_free_8(data);
    pcre2_match_context_free_8(context);
    if (stack != nullptr) pcre2_jit_stack_free_8(stack);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Impl {
  pcre2_code_8* code = nullptr;
  std::optional<AsciiMatcher> ascii;  // null: for PCRE2 alone

  explicit Impl(pcre2_code_8* compiled) : code(compiled) {}
  ~Impl() { pcre2_code_free_8(code); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern, std::string_view place, Matcher matcher) {
  const std::string translated = GRACE_TRY(pcre_of_oniguruma(pattern, place));
  // `.` and the line anchors know only \n, as in Oniguruma.
  pcre2_compile_context_8* context = pcre2_compile_context_create_8(nullptr);
  GRACE_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline_8(context, PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code_8* compiled =
      pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &offset, context);
  pcre2_compile_context_free_8(context);
  if (compiled == nullptr)
    return invalid_input(fmt::format("{}: pattern `{}`: {}", place, pattern, message_of(code)));
  // Without a JIT for this machine the interpreter gives the same matches, later.
  static_cast<void>(pcre2_jit_compile_8(compiled, PCRE2_JIT_COMPLETE));
  Regex regex(std::make_unique<Impl>(compiled));
  if (matcher == Matcher::kFastest) regex.impl_->ascii = AsciiMatcher::compile(pattern, ascii_members);
  return regex;
}

Status Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<ByteRange>& matches) const {
  matches.clear();
  pcre2_match_data_8* data = scratch.impl_->data;
  pcre2_match_context_8* context = scratch.impl_->context;
  const std::size_t steps =
      std::min<std::size_t>(UINT32_MAX, std::max(kLeastSteps, kStepsPerByte * text.size()));
  pcre2_set_match_limit_8(context, static_cast<std::uint32_t>(steps));
  const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
  for (std::size_t at = 0; at <= text.size();) {
    if (impl_->ascii.has_value()) {
      const AsciiMatcher::Answer answer = impl_->ascii->search(text, at);
      if (answer.kind == AsciiMatcher::Answer::Kind::kNoMatch) break;
      at = answer.begin;
      if (answer.kind == AsciiMatcher::Answer::Kind::kMatch) {
        matches.push_back({answer.begin, answer.end});
        at = answer.end;
        continue;
      }
    }
    // The text is known to be UTF-8; checking it again at each match would make the loop quadratic.
    int rc = pcre2_match_8(impl_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match_8(impl_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                         context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0)
      return unsupported(fmt::format("byte {}: the tokenizer's pattern gives up here after {} steps: {}", at,
                                     steps, message_of(rc)));
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer_8(data);
    const ByteRange match{ovector[0], ovector[1]};
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) {
      at += at < text.size() ? utf8_length(text[at]) : 1;
      continue;
    }
    matches.push_back(match);
    at = match.end;
  }
  return {};
}

std::string escape_regex(std::string_view literal) {
  std::string pattern;
  for (const char c : literal) {
    if (std::string_view("\\^$.|?*+()[]{}-#&~/").find(c) != std::string_view::npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace grace
