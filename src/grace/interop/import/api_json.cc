#include "grace/interop/import/api_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "grace/files/json_cursor.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/files/npy.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};  // chars may alias any bytes
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// JSON lines: the first line is a value by itself, and another follows.
bool is_lines(std::string_view text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || is_blank(text.substr(end))) return false;
  return text.substr(0, end).find('{') != std::string_view::npos && Json::accept(text.substr(0, end));
}

// Gives back what was read, in pieces of many pages: a line may be less than one.
void let_go(const MappedFile& file, std::size_t read, std::size_t& held_from) {
  constexpr std::size_t kEnough = std::size_t{1} << 20;
  if (read - held_from < kEnough) return;
  file.give_back(file.bytes().subspan(held_from, read - held_from));
  held_from = read;
}

Status use_lines(const MappedFile& file, const std::string& path, RecordingSink& sink,
                 const std::function<Status(const Json&, const std::string&)>& use) {
  const std::string_view text = text_of(file.bytes());
  std::int64_t line_number = 0;
  std::size_t held_from = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const std::string place = fmt::format("{}:{}", path, ++line_number);
    if (!is_blank(line)) {
      const Json json = GRACE_TRY(parse_json(line, place));
      GRACE_TRY(use(json, place));
    }
    GRACE_TRY(sink.read_bytes(static_cast<std::int64_t>(std::min(end + 1, text.size()) - at)));
    at = end + 1;
    let_go(file, std::min(at, text.size()), held_from);
  }
  return {};
}

// A list, an element after another.
Status use_elements(const MappedFile& file, const std::string& path, RecordingSink& sink,
                    const std::function<Status(const Json&, const std::string&)>& use) {
  const std::string_view text = text_of(file.bytes());
  JsonCursor cursor(text);
  cursor.enter('[');
  std::size_t done = 0, held_from = 0;
  for (std::int64_t i = 0; cursor.next_element(); ++i) {
    cursor.peek();  // past the space in front
    const std::size_t begin = cursor.offset();
    cursor.skip();
    if (!cursor.ok()) break;
    const std::string place = fmt::format("{}: [{}]", path, i);
    const Json json = GRACE_TRY(parse_json(text.substr(begin, cursor.offset() - begin), place));
    GRACE_TRY(use(json, place));
    GRACE_TRY(sink.read_bytes(static_cast<std::int64_t>(cursor.offset() - done)));
    done = cursor.offset();
    let_go(file, done, held_from);
  }
  if (!cursor.ok() || !cursor.at_end())
    return invalid_input(fmt::format("{}: not JSON at byte {}", path, cursor.offset()));
  return sink.read_bytes(static_cast<std::int64_t>(text.size() - done));
}

// One number of a nested list.
Result<std::int32_t> id_of(const Json& value, std::string_view place) {
  constexpr std::int64_t kHighest = std::numeric_limits<std::int32_t>::max();
  if (!value.is_number_integer())
    return invalid_input(fmt::format("{}: {} is not an expert's id", place, shown(value)));
  if (value.is_number_unsigned())
    return static_cast<std::int32_t>(std::min<std::uint64_t>(value.get<std::uint64_t>(), kHighest));
  return static_cast<std::int32_t>(std::clamp(value.get<std::int64_t>(), -kHighest, kHighest));
}

Status add_layer(const Json& row, std::string_view place, Choices& choices) {
  if (!row.is_array())
    return invalid_input(fmt::format("{}: {} is not a list of choices", place, shown(row)));
  if (choices.width == 0) choices.width = std::ssize(row);
  if (std::cmp_not_equal(row.size(), choices.width) || row.empty())
    return invalid_input(fmt::format("{}: {} choices, others have {}", place, row.size(), choices.width));
  for (const Json& id : row) choices.ids.push_back(GRACE_TRY(id_of(id, place)));
  return {};
}

}  // namespace

Status for_each_json(std::span<const std::filesystem::path> files, RecordingSink& sink,
                     const std::function<Status(const Json& json, const std::string& place)>& use) {
  for (const std::filesystem::path& path : files) {
    const MappedFile file = GRACE_TRY(MappedFile::open(path));
    const std::string_view text = text_of(file.bytes());
    if (is_lines(text)) {
      GRACE_TRY(use_lines(file, path.string(), sink, use));
      continue;
    }
    if (JsonCursor(text).peek() == '[') {
      GRACE_TRY(use_elements(file, path.string(), sink, use));
      continue;
    }
    const Json json = GRACE_TRY(parse_json(text, path.string()));
    GRACE_TRY(use(json, path.string()));
    GRACE_TRY(sink.read_bytes(std::ssize(text)));
  }
  return {};
}

Result<Choices> choices_of(const Json& value, std::string_view place) {
  Choices choices;
  if (value.is_null()) return choices;
  if (value.is_string()) {
    const std::vector<std::byte> bytes = GRACE_TRY(decode_base64(value.get_ref<const std::string&>(), place));
    const NpyArray array = GRACE_TRY(parse_npy(bytes, place));
    if (array.tensor.shape.size() != 3)
      return invalid_input(fmt::format("{}: has {} dimensions, must be [tokens, layers, choices]", place,
                                       array.tensor.shape.size()));
    choices.tokens = array.tensor.shape[0];
    choices.layers = array.tensor.shape[1];
    choices.width = array.tensor.shape[2];
    if (choices.tokens > 0 && (choices.layers == 0 || choices.width == 0))
      return invalid_input(fmt::format("{}: {} tokens of {} layers of {} choices", place, choices.tokens,
                                       choices.layers, choices.width));
    const Dtype dtype = array.tensor.dtype;
    choices.is_unsigned = dtype == Dtype::kU8 || dtype == Dtype::kU16 || dtype == Dtype::kU32;
    GRACE_TRY(ids_of(row_major_bytes(array), array.tensor.dtype, place, choices.ids));
    return choices;
  }
  if (!value.is_array())
    return invalid_input(fmt::format("{}: {} is not a list of tokens", place, shown(value)));
  choices.tokens = std::ssize(value);
  for (std::size_t t = 0; t < value.size(); ++t) {
    const std::string where = fmt::format("{}: token {}", place, t);
    if (!value[t].is_array())
      return invalid_input(fmt::format("{}: {} is not a list of layers", where, shown(value[t])));
    if (t == 0) choices.layers = std::ssize(value[t]);
    if (std::cmp_not_equal(value[t].size(), choices.layers) || value[t].empty())
      return invalid_input(
          fmt::format("{}: {} layers, others have {}", where, value[t].size(), choices.layers));
    for (std::size_t l = 0; l < value[t].size(); ++l)
      GRACE_TRY(add_layer(value[t][l], fmt::format("{}, layer {}", where, l), choices));
  }
  return choices;
}

Result<std::vector<std::byte>> decode_base64(std::string_view text, std::string_view place) {
  static const std::array<std::int8_t, 256> kValues = [] {
    std::array<std::int8_t, 256> values{};
    values.fill(-1);
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::size_t i = 0; i < kDigits.size(); ++i)
      values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
    return values;
  }();
  std::string_view digits = text;
  while (digits.ends_with('=') && text.size() - digits.size() < 2) digits.remove_suffix(1);
  if (text.size() % 4 != 0 || digits.size() % 4 == 1)
    return invalid_input(fmt::format("{}: {} characters are no base64", place, text.size()));
  std::vector<std::byte> out;
  out.reserve(digits.size() * 3 / 4);
  std::uint32_t bits = 0;
  int held = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::int8_t value = kValues[static_cast<unsigned char>(digits[i])];
    if (value < 0) return invalid_input(fmt::format("{}: character {} is no base64", place, i));
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out.push_back(static_cast<std::byte>(bits >> static_cast<unsigned>(held) & 0xffU));
  }
  return out;
}

}  // namespace grace
