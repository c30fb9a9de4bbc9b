// TensorRT-LLM's load balancer configuration: YAML of three keys, layers by their decoder layer. It is read
// by hand: of YAML it takes mappings in block style and lists in either, which is what the engine's tool
// writes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <optional>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/interop/export/engines.h"

namespace grace::interop {
namespace {

constexpr std::string_view kSlots = "num_slots";
constexpr std::string_view kRows = "initial_global_assignments";
constexpr std::string_view kUpdates = "layer_updates_per_iter";

Result<Exported> write(const SlotMap& slots, const ExportOptions& options) {
  Exported out;
  out.bytes = fmt::format("{}: {}\n{}:\n", kSlots, slots.num_slots(), kRows);
  for (std::size_t m = 0; m < slots.expert_of_slot.size(); ++m)
    fmt::format_to(std::back_inserter(out.bytes), "  {}: [{}]\n", slots.decoder_layers[m],
                   fmt::join(slots.expert_of_slot[m], ", "));
  const int behind = std::max(options.num_decoder_layers, slots.decoder_layers.back() + 1);
  for (int i = 0; i < options.mtp_layers; ++i)
    fmt::format_to(std::back_inserter(out.bytes), "  {}: [{}]\n", behind + i,
                   fmt::join(default_row(slots), ", "));
  fmt::format_to(std::back_inserter(out.bytes), "{}: 0\n", kUpdates);
  out.start_with = {fmt::format("--tp_size {} --ep_size {} --extra_llm_api_options OPTIONS.yaml",
                                slots.num_devices, slots.num_devices),
                    "and in OPTIONS.yaml:",
                    "  enable_attention_dp: true",
                    "  moe_config:",
                    "    backend: WIDEEP",
                    fmt::format("    load_balancer: {}", options.file)};
  out.notes = {
      "Layers are named by their decoder layer, dense ones counted; TensorRT-LLM refuses a MoE layer that is "
      "not named, so a model with MTP layers needs them too.",
      "Without attention data parallelism and more than one expert parallel rank the section is ignored "
      "without a word.",
      "layer_updates_per_iter is 0: the placement stays as it is.",
      "TensorRT-LLM takes an expert's copies in turn, wherever they are: the plan's routing policy is not in "
      "the file."};
  return out;
}

struct Line {
  int number;
  std::size_t indent;
  std::string_view text;  // without indentation, comment and blanks at the end
};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<Line> lines_of(std::string_view bytes) {
  std::vector<Line> lines;
  int number = 0;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\n', begin), bytes.size());
    std::string_view text = bytes.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    for (std::size_t hash = text.find('#'); hash != std::string_view::npos; hash = text.find('#', hash + 1))
      if (hash == 0 || text[hash - 1] == ' ') {
        text = text.substr(0, hash);
        break;
      }
    const std::string_view bare = trimmed(text);
    if (bare.empty() || (bare == "---" && lines.empty())) continue;
    lines.push_back({number, text.find_first_not_of(' '), bare});
  }
  return lines;
}

class Reader {
 public:
  Reader(std::string_view bytes, std::string_view place) : lines_(lines_of(bytes)), place_(place) {}

  Result<SlotMap> read(int num_devices) {
    while (at_ < lines_.size()) GRACE_TRY(read_key());
    if (!slots_) return invalid_input(fmt::format("{}: {} is missing", place_, kSlots));
    if (rows_.empty()) return invalid_input(fmt::format("{}: {} is missing or empty", place_, kRows));
    std::vector<int> layers;
    std::vector<Row> rows;
    for (auto& [layer, row] : rows_) {
      if (std::cmp_not_equal(row.size(), *slots_))
        return invalid_input(
            fmt::format("{}: layer {} has {} slots, {} is {}", place_, layer, row.size(), kSlots, *slots_));
      layers.push_back(static_cast<int>(layer));
      rows.push_back(std::move(row));
    }
    return map_of_rows(std::move(rows), num_devices, place_, std::move(layers));
  }

 private:
  struct Entry {
    std::string_view key, value;
  };

  Error wrong(const Line& line, std::string_view what) const {
    return invalid_input(
        fmt::format("{}:{}: {} {}", place_, line.number, shown(Json(std::string(line.text))), what));
  }

  Result<Entry> entry_of(const Line& line) const {
    const std::size_t colon = line.text.find(':');
    if (colon == std::string_view::npos || colon == 0) return wrong(line, "is not `key: value`");
    if (colon + 1 < line.text.size() && line.text[colon + 1] != ' ')
      return wrong(line, "has no blank behind its colon");
    return Entry{trimmed(line.text.substr(0, colon)), trimmed(line.text.substr(colon + 1))};
  }

  Result<std::int64_t> number_of(const Line& line, std::string_view text, std::int64_t highest) const {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > highest)
      return invalid_input(fmt::format("{}:{}: {} is not a whole number in [0, {}]", place_, line.number,
                                       shown(Json(std::string(text))), highest));
    return value;
  }

  Status read_key() {
    const Line line = lines_[at_++];
    if (line.indent != 0) return wrong(line, "is indented, but belongs to no key");
    const Entry entry = GRACE_TRY(entry_of(line));
    if (entry.key == kRows) {
      if (!rows_.empty()) return wrong(line, "occurs twice");
      if (!entry.value.empty()) return wrong(line, "is not a mapping in block style");
      while (at_ < lines_.size() && lines_[at_].indent > 0) GRACE_TRY(read_layer());
      return {};
    }
    std::optional<std::int64_t>* number = entry.key == kSlots     ? &slots_
                                          : entry.key == kUpdates ? &updates_
                                                                  : nullptr;
    if (number == nullptr)
      return wrong(line,
                   fmt::format("is none of {}, {} and {}; the engine refuses it", kSlots, kRows, kUpdates));
    if (number->has_value()) return wrong(line, "occurs twice");
    *number = GRACE_TRY(number_of(line, entry.value, std::numeric_limits<std::int32_t>::max()));
    return {};
  }

  Status read_layer() {
    const Line line = lines_[at_++];
    if (layer_indent_ == 0) layer_indent_ = line.indent;
    if (line.indent != layer_indent_) return wrong(line, "is indented otherwise than the layer before it");
    const Entry entry = GRACE_TRY(entry_of(line));
    const std::int64_t layer = GRACE_TRY(number_of(line, entry.key, kMaxDecoderLayer));
    if (rows_.contains(layer)) return wrong(line, "occurs twice");
    rows_[layer] = GRACE_TRY(entry.value.empty() ? read_items(line) : read_flow(line, entry.value));
    return {};
  }

  // `- 3`, an expert a line.
  Result<Row> read_items(const Line& key) {
    Row row;
    for (; at_ < lines_.size() && lines_[at_].indent >= key.indent && lines_[at_].text.starts_with("- ");
         ++at_)
      row.push_back(static_cast<std::int32_t>(
          GRACE_TRY(number_of(lines_[at_], trimmed(lines_[at_].text.substr(2)), kMaxExperts - 1))));
    return row;
  }

  // `[3, 1, 2]`, which may go on in the next lines.
  Result<Row> read_flow(const Line& key, std::string_view text) {
    if (!text.starts_with('[')) return wrong(key, "has no list");
    text.remove_prefix(1);
    Row row;
    Line line = key;
    for (;;) {
      const std::size_t stop = text.find_first_of(",]");
      const std::string_view item = trimmed(text.substr(0, stop));
      if (stop == std::string_view::npos && item.empty()) {
        if (at_ == lines_.size()) return wrong(key, "is cut short");
        line = lines_[at_++];
        text = line.text;
        continue;
      }
      const bool ends = stop != std::string_view::npos && text[stop] == ']';
      if (stop == std::string_view::npos) return wrong(line, "has no comma between experts");
      if (!(ends && item.empty()))
        row.push_back(static_cast<std::int32_t>(GRACE_TRY(number_of(line, item, kMaxExperts - 1))));
      text.remove_prefix(stop + 1);
      if (!ends) continue;
      if (!trimmed(text).empty()) return wrong(line, "goes on behind its list");
      return row;
    }
  }

  std::vector<Line> lines_;
  std::string_view place_;
  std::size_t at_ = 0, layer_indent_ = 0;
  std::optional<std::int64_t> slots_, updates_;
  std::map<std::int64_t, Row> rows_;
};

Result<SlotMap> read(std::string_view bytes, std::string_view place, int num_devices) {
  return Reader(bytes, place).read(num_devices);
}

// By its first key, whichever that is; what stands behind it may be long.
bool recognises(std::string_view bytes) {
  const std::vector<Line> lines = lines_of(bytes.substr(0, 4096));
  if (lines.empty()) return false;
  return std::ranges::any_of(std::array{kSlots, kRows, kUpdates}, [&](std::string_view key) {
    return lines.front().text.starts_with(key) && lines.front().text.substr(key.size()).starts_with(':');
  });
}

}  // namespace

const Exporter kTensorRtLlm = {"tensorrt-llm",
                               "YAML for moe_config's load_balancer",
                               "",
                               RowNumbers::kNamedDecoderLayers,
                               false,
                               "wrr",
                               &recognises,
                               &write,
                               &read};

}  // namespace grace::interop
