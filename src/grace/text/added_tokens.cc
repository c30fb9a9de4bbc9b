#include "grace/text/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "grace/files/json_file.h"
#include "grace/text/json_fields.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

// Start of the code point that ends at `end`. REQUIRES: end > 0.
std::size_t previous_start(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

char32_t code_point_at(std::string_view text, std::size_t at) { return next_code_point(text, at); }

bool touches_a_word(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word_character(code_point_at(text, previous_start(text, begin)))) return true;
  return end < text.size() && is_word_character(code_point_at(text, end));
}

std::size_t strip_left(std::string_view text, std::size_t begin, std::size_t lowest) {
  while (begin > lowest) {
    const std::size_t previous = previous_start(text, begin);
    if (previous < lowest || !is_white_space(code_point_at(text, previous))) break;
    begin = previous;
  }
  return begin;
}

std::size_t strip_right(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    std::size_t next = end;
    if (!is_white_space(next_code_point(text, next))) break;
    end = next;
  }
  return end;
}

Result<AddedToken> parse_token(const Json& json, std::string_view place) {
  AddedToken token;
  token.content = GRACE_TRY(get_string(json, "content", place));
  token.id = static_cast<std::int32_t>(GRACE_TRY(get_int(json, "id", place, 0, kMaxTokenId)));
  token.special = GRACE_TRY(get_bool_or(json, "special", false, place));
  token.single_word = GRACE_TRY(get_bool_or(json, "single_word", false, place));
  token.lstrip = GRACE_TRY(get_bool_or(json, "lstrip", false, place));
  token.rstrip = GRACE_TRY(get_bool_or(json, "rstrip", false, place));
  token.normalized = GRACE_TRY(get_bool_or(json, "normalized", !token.special, place));
  return token;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : token_of_node_(1, nullptr) {}

void AddedTokenMatcher::add(std::string_view pattern, const AddedToken& token) {
  GRACE_CHECK(!pattern.empty(), "an empty pattern is everywhere");
  std::size_t node = 0;
  for (const char c : pattern) {
    const std::uint64_t key = node * 256 + static_cast<unsigned char>(c);
    const auto [child, is_new] = children_.try_emplace(key, token_of_node_.size());
    if (is_new) token_of_node_.push_back(nullptr);
    node = child->second;
  }
  if (token_of_node_[node] == nullptr) token_of_node_[node] = &token;
  starts_[static_cast<unsigned char>(pattern[0])] = true;
}

AddedTokenMatcher::Found AddedTokenMatcher::longest_at(std::string_view text, std::size_t at) const {
  Found found{nullptr, at};
  std::size_t node = 0;
  for (; at < text.size(); ++at) {
    const auto child = children_.find(node * 256 + static_cast<unsigned char>(text[at]));
    if (child == children_.end()) break;
    node = child->second;
    if (token_of_node_[node] != nullptr) found = {token_of_node_[node], at + 1};
  }
  return found;
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Piece> pieces;
  std::size_t done = 0;  // end of the last token, with what it swallowed
  for (std::size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Found found = longest_at(text, at);
    if (found.token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = found.end;
    at = end;  // the search goes on behind the spelling, even where a token is refused or swallows more
    if (found.token->single_word && touches_a_word(text, begin, end)) continue;
    // A token may begin inside the white space that the last one swallowed; it counts all the same.
    if (found.token->lstrip) begin = std::max(strip_left(text, begin, std::min(begin, done)), done);
    if (found.token->rstrip) end = strip_right(text, end);
    if (done < begin) pieces.push_back({{done, begin}, kPlainText});
    pieces.push_back({{begin, end}, found.token->id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({{done, text.size()}, kPlainText});
  return pieces;
}

Result<AddedTokens> AddedTokens::parse(const Json& list, const Bpe& model, const Normalizer& normalizer,
                                       std::string_view place) {
  AddedTokens added;
  if (list.is_null()) return added;
  if (!list.is_array()) return invalid_input(fmt::format("{}: no array", place));
  for (std::size_t i = 0; i < list.size(); ++i) {
    AddedToken token = GRACE_TRY(parse_token(list[i], fmt::format("{}[{}]", place, i)));
    if (!token.content.empty())
      added.tokens_.push_back(std::move(token));  // the reference passes over empty ones
  }
  GRACE_TRY(added.check_ids(model, place));
  GRACE_TRY(added.build_matchers(normalizer, place));
  return added;
}

Status AddedTokens::check_ids(const Bpe& model, std::string_view place) {
  auto next_free = static_cast<std::int64_t>(model.vocabulary().size());
  for (const AddedToken& token : tokens_) {
    const std::int32_t own = model.id_of(token.content);
    const std::int64_t expected = own >= 0 ? own : next_free;
    if (token.id != expected)
      return invalid_input(fmt::format("{}: token `{}` has id {}, but the vocabulary gives it {}", place,
                                       token.content, token.id, expected));
    next_free = std::max<std::int64_t>(next_free, token.id + std::int64_t{1});
    if (!ids_.emplace(token.content, token.id).second)
      return invalid_input(fmt::format("{}: token `{}` occurs twice", place, token.content));
    if (token.special) special_.insert(token.content);
  }
  return {};
}

Status AddedTokens::build_matchers(const Normalizer& normalizer, std::string_view place) {
  RegexScratch scratch;
  for (const bool special :
       {true, false}) {  // of two tokens with one normalised spelling, the special one counts
    for (AddedToken& token : tokens_) {
      if (token.special != special) continue;
      if (!token.normalized) {
        token.spelling = token.content;
        raw_matcher_.add(token.spelling, token);
        continue;
      }
      token.spelling = GRACE_TRY(normalizer.normalize(token.content, scratch));
      if (token.spelling.empty())
        return unsupported(
            fmt::format("{}: nothing is left of token `{}` when it is normalised", place, token.content));
      normalized_matcher_.add(token.spelling, token);
    }
  }
  return {};
}

std::int32_t AddedTokens::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

}  // namespace grace
