#include "grace/text/ascii_matcher.h"

#include <algorithm>
#include <string>

namespace grace {

using Kind = AsciiMatcher::Answer::Kind;

namespace {

constexpr std::size_t kEndless = SIZE_MAX;
constexpr int kMaxSets = 64;

bool is_ascii_byte(char c) { return static_cast<unsigned char>(c) < 128; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

class AsciiMatcher::Compiler {
 public:
  Compiler(std::string_view pattern, const SetOf& set_of, AsciiMatcher& out)
      : pattern_(pattern), set_of_(set_of), out_(out) {}

  bool run() {
    do {
      if (!sequence()) return false;
    } while (skip("|"));
    if (at_ != pattern_.size()) return false;
    for (const Sequence& sequence : out_.alternatives_)
      if (!find_starts(sequence)) return false;
    const Item& first = out_.alternatives_.front().front();
    if (out_.alternatives_.size() == 1 && first.most == kEndless) out_.repeated_start_ = first.set;
    return true;
  }

 private:
  bool at_end() const { return at_ == pattern_.size() || pattern_[at_] == '|'; }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool skip(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }

  bool sequence() {
    if (next_is("(?i:")) return either_case_group();
    Sequence sequence;
    while (!at_end()) {
      Item item;
      if (skip("$")) {
        item.kind = Item::Kind::kLineEnd;
      } else if (skip("(?!\\S)")) {
        item.kind = Item::Kind::kNoneAhead;
        if (!add_set("\\S", item)) return false;
      } else if (!set_with_quantifier(item)) {
        return false;
      }
      sequence.push_back(item);
    }
    out_.alternatives_.push_back(std::move(sequence));
    return true;
  }

  // `(?i:'s|'t)` as a whole alternative, of letters and apostrophes.
  bool either_case_group() {
    skip("(?i:");
    Sequence sequence;
    while (at_ < pattern_.size() && pattern_[at_] != ')') {
      const char c = pattern_[at_++];
      if (c == '|') {
        out_.alternatives_.push_back(std::move(sequence));
        sequence.clear();
        continue;
      }
      if (c != '\'' && !is_letter(c)) return false;
      Item item;
      if (!add_set(is_letter(c) ? std::string("(?i:") + c + ")" : std::string(1, c), item)) return false;
      sequence.push_back(item);
    }
    out_.alternatives_.push_back(std::move(sequence));
    return skip(")") && at_end();
  }

  bool set_with_quantifier(Item& item) {
    const std::size_t begin = at_;
    if (!one_character()) return false;
    if (!add_set(pattern_.substr(begin, at_ - begin), item)) return false;
    if (skip("?")) {
      item.least = 0;
    } else if (skip("+")) {
      item.most = kEndless;
    } else if (skip("*")) {
      item.least = 0;
      item.most = kEndless;
    } else if (skip("{1,3}")) {
      item.most = 3;
    }
    // A second quantifier makes another thing of the first.
    return at_end() || std::string_view("?+*{").find(pattern_[at_]) == std::string_view::npos;
  }

  // Moves behind a class, an escape or a literal.
  bool one_character() {
    if (skip("[")) {
      while (at_ < pattern_.size() && pattern_[at_] != ']') {
        if (pattern_[at_] == '[' || next_is("&&")) return false;
        at_ += pattern_[at_] == '\\' ? 2 : 1;
      }
      return skip("]");
    }
    if (skip("\\")) {
      if (skip("p{") || skip("P{")) {
        at_ = std::min(pattern_.find('}', at_), pattern_.size());
        return skip("}");
      }
      if (std::string_view("sSdrnt").find(peek()) == std::string_view::npos) return false;
      return ++at_, true;
    }
    if (!is_ascii_byte(peek()) || std::string_view("^$.|?*+(){}").find(peek()) != std::string_view::npos)
      return false;
    return ++at_, true;
  }
  char peek() const { return at_ < pattern_.size() ? pattern_[at_] : '$'; }

  bool add_set(std::string_view source, Item& item) {
    if (num_sets_ == kMaxSets) return false;
    const Result<AsciiSet> members = set_of_(source);
    if (!members.ok()) return false;
    item.set = std::uint64_t{1} << num_sets_++;
    for (std::size_t c = 0; c < members.value().size(); ++c)
      if (members.value()[c]) out_.sets_of_[c] |= item.set;
    return true;
  }

  // False where the sequence may match nothing.
  bool find_starts(const Sequence& sequence) {
    for (const Item& item : sequence) {
      if (item.kind != Item::Kind::kSet) return false;
      for (std::size_t c = 0; c < out_.starts_.size(); ++c)
        out_.starts_[c] = out_.starts_[c] || (out_.sets_of_[c] & item.set) != 0;
      if (item.least > 0) return true;
    }
    return false;
  }

  std::string_view pattern_;
  const SetOf& set_of_;
  AsciiMatcher& out_;
  std::size_t at_ = 0;
  int num_sets_ = 0;
};

std::optional<AsciiMatcher> AsciiMatcher::compile(std::string_view pattern, const SetOf& set_of) {
  AsciiMatcher matcher;
  if (!Compiler(pattern, set_of, matcher).run()) return std::nullopt;
  return matcher;
}

struct AsciiMatcher::Cursor {
  std::string_view text;
  std::size_t at;  // after a match: its end
};

// Greedy, and back one by one where what follows does not match.
Kind AsciiMatcher::match(const Sequence& sequence, std::size_t item_idx, Cursor& cursor) const {
  const std::string_view text = cursor.text;
  for (; item_idx < sequence.size(); ++item_idx) {
    const Item& item = sequence[item_idx];
    const bool more = cursor.at < text.size();
    if (item.kind == Item::Kind::kLineEnd) {
      if (more && text[cursor.at] != '\n') return Kind::kNoMatch;
      continue;
    }
    if (item.kind == Item::Kind::kNoneAhead) {
      if (!more) continue;
      const auto next = static_cast<unsigned char>(text[cursor.at]);
      if (next >= 128) return Kind::kUnknown;
      if ((sets_of_[next] & item.set) != 0) return Kind::kNoMatch;
      continue;
    }
    const std::size_t begin = cursor.at;
    const std::size_t limit = item.most < text.size() - begin ? begin + item.most : text.size();
    std::size_t end = begin;
    for (; end < limit; ++end) {
      const auto next = static_cast<unsigned char>(text[end]);
      if (next >= 128) return Kind::kUnknown;
      if ((sets_of_[next] & item.set) == 0) break;
    }
    if (end - begin < item.least) return Kind::kNoMatch;
    if (end - begin == item.least || item_idx + 1 == sequence.size()) {
      cursor.at = end;
      continue;
    }
    for (;; --end) {
      cursor.at = end;
      const Kind kind = match(sequence, item_idx + 1, cursor);
      if (kind != Kind::kNoMatch || end - begin == item.least) return kind;
    }
  }
  return Kind::kMatch;
}

AsciiMatcher::Answer AsciiMatcher::search(std::string_view text, std::size_t at) const {
  for (; at < text.size(); ++at) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first >= 128) return {Kind::kUnknown, at, at};
    if (!starts_[first]) continue;
    for (const Sequence& sequence : alternatives_) {
      Cursor cursor{text, at};
      const Kind kind = match(sequence, 0, cursor);
      if (kind != Kind::kNoMatch) return {kind, at, cursor.at};
    }
    // What failed with the whole of a run of the first set fails with every later part of it.
    if ((sets_of_[first] & repeated_start_) != 0) {
      while (at + 1 < text.size() && is_ascii_byte(text[at + 1]) &&
             (sets_of_[static_cast<unsigned char>(text[at + 1])] & repeated_start_) != 0)
        ++at;
    }
  }
  return {Kind::kNoMatch, text.size(), text.size()};
}

}  // namespace grace
