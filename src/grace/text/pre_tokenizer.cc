#include "grace/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "grace/files/json_file.h"
#include "grace/text/byte_level.h"
#include "grace/text/json_fields.h"

namespace grace {
namespace {

// GPT-2's words.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
    {"Removed", SplitBehavior::kRemoved},
    {"Isolated", SplitBehavior::kIsolated},
    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    {"MergedWithNext", SplitBehavior::kMergedWithNext},
    {"Contiguous", SplitBehavior::kContiguous},
}};

struct Part {
  ByteRange range;
  bool is_match;
};

// Matches and what lies between them, covering [0, size).
std::vector<Part> parts_of(const std::vector<ByteRange>& matches, std::size_t size, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  std::size_t at = 0;
  for (const ByteRange& match : matches) {
    if (at != match.begin) parts.push_back({{at, match.begin}, invert});
    parts.push_back({match, !invert});
    at = match.end;
  }
  if (at != size) parts.push_back({{at, size}, invert});
  return parts;
}

std::vector<ByteRange> merge_with_next(const std::vector<Part>& parts) {
  std::vector<ByteRange> ranges;
  bool previous_is_match = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->is_match && !previous_is_match && !ranges.empty()) {
      ranges.back().begin = part->range.begin;
    } else {
      ranges.push_back(part->range);
    }
    previous_is_match = part->is_match;
  }
  std::ranges::reverse(ranges);
  return ranges;
}

// What split_by makes of kIsolated, without the empty pieces: it is what nearly every tokenizer asks for.
void append_isolated(const std::vector<ByteRange>& matches, const ByteRange& piece,
                     std::vector<ByteRange>& out) {
  std::size_t at = piece.begin;
  const auto append_to = [&](std::size_t end) {
    if (at != end) out.push_back({at, end});
    at = end;
  };
  for (const ByteRange& match : matches) {
    append_to(piece.begin + match.begin);
    append_to(piece.begin + match.end);
  }
  append_to(piece.end);
}

}  // namespace

std::vector<ByteRange> split_by(const std::vector<ByteRange>& matches, std::size_t size,
                                SplitBehavior behavior, bool invert) {
  const std::vector<Part> parts = parts_of(matches, size, invert);
  if (behavior == SplitBehavior::kMergedWithNext) return merge_with_next(parts);
  std::vector<ByteRange> ranges;
  ranges.reserve(parts.size());
  bool previous_is_match = false;
  for (const Part& part : parts) {
    const bool joins =
        (behavior == SplitBehavior::kContiguous && part.is_match == previous_is_match) ||
        (behavior == SplitBehavior::kMergedWithPrevious && part.is_match && !previous_is_match);
    if (joins && !ranges.empty()) {
      ranges.back().end = part.range.end;
    } else if (!(behavior == SplitBehavior::kRemoved && part.is_match)) {
      ranges.push_back(part.range);
    }
    previous_is_match = part.is_match;
  }
  return ranges;
}

Result<PreTokenizer> PreTokenizer::parse(const Json& json, std::string_view place) {
  PreTokenizer pre_tokenizer;
  GRACE_TRY(pre_tokenizer.add(json, place));
  return pre_tokenizer;
}

Status PreTokenizer::add(const Json& json, std::string_view place) {
  if (json.is_null()) return {};
  const std::string_view type = GRACE_TRY(get_type(json, place));
  Step step;
  if (type == "Sequence") {
    const Json* parts = GRACE_TRY(get_array(json, "pretokenizers", place));
    for (const Json& part : *parts) GRACE_TRY(add(part, place));
    return {};
  }
  if (type == "Split") {
    step.regex = std::make_unique<Regex>(GRACE_TRY(get_pattern(json, place)));
    const std::string name = GRACE_TRY(get_string(json, "behavior", place));
    const auto* behavior = std::ranges::find(kBehaviors, name, [](const auto& entry) { return entry.first; });
    if (behavior == kBehaviors.end()) return unsupported(fmt::format("{}: split behavior {}", place, name));
    step.behavior = behavior->second;
    step.invert = GRACE_TRY(get_bool_or(json, "invert", false, place));
  } else if (type == "Digits") {
    step.regex = std::make_unique<Regex>(GRACE_TRY(Regex::compile("\\p{N}", place)));
    const bool individual = GRACE_TRY(get_bool_or(json, "individual_digits", false, place));
    step.behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  } else if (type == "ByteLevel") {
    if (GRACE_TRY(get_bool_or(json, "use_regex", true, place)))
      step.regex = std::make_unique<Regex>(GRACE_TRY(Regex::compile(kByteLevelPattern, place)));
    step.byte_level = true;
    step.add_prefix_space = GRACE_TRY(get_bool(json, "add_prefix_space", place));
  } else {
    return unsupported(fmt::format("{}: type {}", place, type));
  }
  steps_.push_back(std::move(step));
  return {};
}

Status PreTokenizer::apply_regex(const Step& step, RegexScratch& scratch, Pieces& pieces) {
  std::vector<ByteRange> out;
  std::vector<ByteRange> matches;
  for (const ByteRange& piece : pieces.ranges) {
    const std::string_view text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
    GRACE_TRY(step.regex->find_all(text, scratch, matches));
    if (step.behavior == SplitBehavior::kIsolated) {
      append_isolated(matches, piece, out);
      continue;
    }
    for (const ByteRange& range : split_by(matches, text.size(), step.behavior, step.invert))
      if (range.begin != range.end) out.push_back({piece.begin + range.begin, piece.begin + range.end});
  }
  pieces.ranges = std::move(out);
  return {};
}

bool PreTokenizer::ends_byte_level() const {
  return std::ranges::count_if(steps_, &Step::byte_level) == 1 && steps_.back().byte_level;
}

Result<Pieces> PreTokenizer::split(std::string text, RegexScratch& scratch, bool leave_bytes) const {
  Pieces pieces{std::move(text), {}};
  if (!pieces.text.empty()) pieces.ranges.push_back({0, pieces.text.size()});
  // Writes the pieces anew, each changed by `append`.
  const auto rewrite = [&pieces](auto append) {
    std::string out;
    out.reserve(2 * pieces.text.size());
    for (ByteRange& piece : pieces.ranges) {
      const std::size_t begin = out.size();
      append(out, std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin));
      piece = {begin, out.size()};
    }
    pieces.text = std::move(out);
  };
  for (const Step& step : steps_) {
    if (step.add_prefix_space) {
      rewrite([](std::string& out, std::string_view piece) {
        if (!piece.starts_with(' ')) out.push_back(' ');
        out.append(piece);
      });
    }
    if (step.regex != nullptr) GRACE_TRY(apply_regex(step, scratch, pieces));
    if (step.byte_level && !leave_bytes) rewrite(append_byte_level);
  }
  return pieces;
}

}  // namespace grace
