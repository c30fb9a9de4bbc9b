#include "grace/interop/import/megatron_line.h"

#include <fmt/format.h>

#include <array>

#include "grace/files/json_cursor.h"
#include "grace/files/json_file.h"

namespace grace {
namespace {

enum Key { kStep, kLayer, kRank, kNumTokens, kTopk, kNumValid, kDummy, kStage, kBlock, kIndices, kNumKeys };
constexpr std::array<std::string_view, kNumKeys> kKeys = {
    "step", "layer", "rank", "num_tokens", "topk", "num_valid", "dummy", "stage", "block", "top_indices"};

void read_value(Key key, JsonCursor& at, MegatronLine& line) {
  switch (key) {
    case kStep:
      line.step = at.integer();
      break;
    case kLayer:
      line.layer = at.integer();
      break;
    case kRank:
      line.rank = at.integer();
      break;
    case kNumTokens:
      line.num_tokens = at.integer();
      break;
    case kTopk:
      line.topk = at.integer();
      break;
    case kNumValid:
      line.num_valid = at.integer();
      break;
    case kDummy:
      line.is_dummy = at.boolean();
      break;
    case kStage:
      line.stage = at.text();
      break;
    case kBlock:
      line.block = at.text();
      break;
    case kIndices:
      at.rows(line.ids, line.num_rows, line.width);
      break;
    case kNumKeys:
      break;
  }
}

Status check(const MegatronLine& line, const std::array<bool, kNumKeys>& seen, std::string_view place) {
  for (const Key key : {kStep, kLayer, kNumTokens, kTopk, kIndices})
    if (!seen[key]) return invalid_input(fmt::format("{}: {} is missing", place, kKeys[key]));
  const auto bounded = [&](std::string_view name, std::int64_t value, std::int64_t lowest,
                           std::int64_t highest) -> Status {
    if (value >= lowest && value <= highest) return {};
    return invalid_input(fmt::format("{}: {} is {}, outside [{}, {}]", place, name, value, lowest, highest));
  };
  constexpr std::int64_t kMax = 1'000'000'000;
  GRACE_TRY(bounded("step", line.step, 0, INT64_MAX));
  GRACE_TRY(bounded("layer", line.layer, 0, 1'000'000));
  GRACE_TRY(bounded("topk", line.topk, 1, 1024));
  GRACE_TRY(bounded("num_tokens", line.num_tokens, 0, kMax));
  GRACE_TRY(bounded("num_valid", line.num_valid, -1, line.num_tokens));
  if (line.num_rows != line.num_tokens)
    return invalid_input(
        fmt::format("{}: top_indices has {} rows, num_tokens is {}", place, line.num_rows, line.num_tokens));
  if (line.num_rows > 0 && line.width != line.topk)
    return invalid_input(
        fmt::format("{}: top_indices has {} choices a token, topk is {}", place, line.width, line.topk));
  return {};
}

}  // namespace

Status parse_megatron_line(std::string_view text, std::string_view place, MegatronLine& line) {
  std::vector<std::int32_t> ids = std::move(line.ids);
  ids.clear();
  line = MegatronLine{};
  line.ids = std::move(ids);
  JsonCursor at(text);
  std::array<bool, kNumKeys> seen{};
  std::string_view name;
  at.enter('{');
  while (at.next_key(name)) {
    std::size_t key = 0;
    while (key < kKeys.size() && kKeys[key] != name) ++key;
    if (key == kKeys.size()) {
      at.skip();
      continue;
    }
    if (seen[key]) return invalid_input(fmt::format("{}: key {} occurs twice", place, name));
    seen[key] = true;
    read_value(static_cast<Key>(key), at, line);
    if (!at.ok())
      return invalid_input(fmt::format("{}: {}: {} at byte {}", place, name, at.problem(), at.offset()));
  }
  if (!at.ok() || !at.at_end())
    return invalid_input(fmt::format("{}: not JSON at byte {}", place, at.offset()));
  return check(line, seen, place);
}

}  // namespace grace
