// What EPLB's rebalance_experts returns, as .npz: physical_to_logical_map [L, P], logical_to_physical_map
// [L, E, X] padded with -1, expert_count [L, E]; and placements as arrays of zeros and ones.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "grace/base/limits.h"
#include "grace/files/npy.h"
#include "grace/interop/export/engines.h"

namespace grace::interop {
namespace {

constexpr const char* kSlots = "physical_to_logical_map";
constexpr const char* kCopies = "logical_to_physical_map";
constexpr const char* kCounts = "expert_count";

std::span<const std::byte> as_bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TensorView view_of(const std::vector<std::int64_t>& values, std::vector<std::int64_t> shape) {
  return {Dtype::kI64, std::move(shape), std::as_bytes(std::span(values))};
}

struct Triple {
  std::vector<std::int64_t> slots, copies, counts;
  std::size_t most = 0;  // X
};

Triple triple_of(const SlotMap& map, const std::vector<Row>& rows) {
  const auto num_experts = static_cast<std::size_t>(map.num_experts);
  Triple triple;
  triple.counts.assign(rows.size() * num_experts, 0);
  for (std::size_t m = 0; m < rows.size(); ++m)
    for (const std::int32_t e : rows[m]) {
      triple.slots.push_back(e);
      const auto count = ++triple.counts[m * num_experts + static_cast<std::size_t>(e)];
      triple.most = std::max(triple.most, static_cast<std::size_t>(count));
    }
  triple.copies.assign(rows.size() * num_experts * triple.most, -1);
  std::vector<std::size_t> next(rows.size() * num_experts, 0);
  for (std::size_t m = 0; m < rows.size(); ++m)
    for (std::size_t p = 0; p < rows[m].size(); ++p) {
      const std::size_t at = m * num_experts + static_cast<std::size_t>(rows[m][p]);
      triple.copies[at * triple.most + next[at]++] = static_cast<std::int64_t>(p);
    }
  return triple;
}

Result<Exported> write(const SlotMap& slots, const ExportOptions& options) {
  const std::vector<Row> rows = rows_with_mtp(slots, options);
  const Triple triple = triple_of(slots, rows);
  const auto layers = static_cast<std::int64_t>(rows.size());
  const TensorMap arrays = {
      {kSlots, view_of(triple.slots, {layers, slots.num_slots()})},
      {kCopies, view_of(triple.copies, {layers, slots.num_experts, static_cast<std::int64_t>(triple.most)})},
      {kCounts, view_of(triple.counts, {layers, slots.num_experts})}};
  Exported out;
  out.bytes = npz_bytes(arrays);
  out.start_with = {fmt::format("numpy.load(\"{}\")   # for {} replicas on {} GPUs", options.file,
                                slots.num_slots(), slots.num_devices)};
  out.notes = {
      "The three arrays that EPLB's rebalance_experts returns, int64, by the names of its docstring; rows "
      "are "
      "MoE layers, slot p is on GPU p / (replicas / GPUs). An expert's slots are in ascending order.",
      "Which copy a token goes to is the engine's to choose: the plan's routing policy is not in the file."};
  return out;
}

// Whole numbers of any width as int64.
Result<std::vector<std::int64_t>> numbers_of(const NpyArray& array, const std::string& place) {
  const std::vector<std::byte> bytes = row_major_bytes(array);
  std::vector<std::int64_t> values;
  const auto convert = [&]<typename T>(T) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + i, sizeof(T));
      values.push_back(static_cast<std::int64_t>(value));
    }
  };
  switch (array.tensor.dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
      convert(std::uint8_t{});
      return values;
    case Dtype::kI8:
      convert(std::int8_t{});
      return values;
    case Dtype::kI16:
      convert(std::int16_t{});
      return values;
    case Dtype::kU16:
      convert(std::uint16_t{});
      return values;
    case Dtype::kI32:
      convert(std::int32_t{});
      return values;
    case Dtype::kU32:
      convert(std::uint32_t{});
      return values;
    case Dtype::kI64:
      convert(std::int64_t{});
      return values;
    case Dtype::kF32:
    case Dtype::kF64:
      break;
    default:
      return invalid_input(
          fmt::format("{}: dtype {} is no number of an expert", place, name_of(array.tensor.dtype)));
  }
  const std::size_t each = array.tensor.dtype == Dtype::kF32 ? 4 : 8;
  for (std::size_t i = 0; i < bytes.size(); i += each) {
    float narrow = 0;
    double value = 0;
    std::memcpy(each == 4 ? static_cast<void*>(&narrow) : &value, bytes.data() + i, each);
    if (each == 4) value = static_cast<double>(narrow);
    if (!(value >= -1 && value <= kMaxExperts) ||
        value != static_cast<double>(static_cast<std::int64_t>(value)))
      return invalid_input(fmt::format("{}: element {} is {}, not a whole number in [-1, {}]", place,
                                       i / each, value, kMaxExperts));
    values.push_back(static_cast<std::int64_t>(value));
  }
  return values;
}

std::string shape_words(const std::vector<std::int64_t>& shape) {
  std::string words;
  for (const std::int64_t length : shape) words += fmt::format("{}{}", words.empty() ? "" : ", ", length);
  return "[" + words + "]";
}

Result<SlotMap> read_triple(std::string_view bytes, std::string_view place, int num_devices) {
  const NpzArrays file = GRACE_TRY(parse_npz(as_bytes_of(bytes), place));
  const auto found = file.arrays.find(kSlots);
  if (found == file.arrays.end()) return invalid_input(fmt::format("{}: {} is missing", place, kSlots));
  const std::string here = fmt::format("{}: {}", place, kSlots);
  const std::vector<std::int64_t>& shape = found->second.tensor.shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
    return invalid_input(fmt::format("{} is {}, must be [layers, slots]", here, shape_words(shape)));
  const std::vector<std::int64_t> slots = GRACE_TRY(numbers_of(found->second, here));
  std::vector<Row> rows(static_cast<std::size_t>(shape[0]));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::size_t m = i / static_cast<std::size_t>(shape[1]);
    if (slots[i] < 0 || slots[i] >= kMaxExperts)
      return invalid_input(
          fmt::format("{}: layer {}: {} is not an expert in [0, {})", here, m, slots[i], kMaxExperts));
    rows[m].push_back(static_cast<std::int32_t>(slots[i]));
  }
  SlotMap map = GRACE_TRY(map_of_rows(std::move(rows), num_devices, place));
  if (const auto counts = file.arrays.find(kCounts); counts != file.arrays.end()) {
    const auto said = GRACE_TRY(numbers_of(counts->second, fmt::format("{}: {}", place, kCounts)));
    if (counts->second.tensor.shape != std::vector<std::int64_t>{shape[0], map.num_experts} ||
        said != triple_of(map, map.expert_of_slot).counts)
      return invalid_input(fmt::format("{}: {} does not count {}", place, kCounts, kSlots));
  }
  return map;
}

Result<SlotMap> read_array(std::string_view bytes, std::string_view place, int /*num_devices*/) {
  const NpyArray array = GRACE_TRY(parse_npy(as_bytes_of(bytes), place));
  const std::vector<std::int64_t>& shape = array.tensor.shape;
  if (shape.size() != 3 || std::ranges::min(shape) < 1 || shape[0] > kMaxDevices || shape[2] > kMaxExperts)
    return invalid_input(fmt::format("{}: {}, must be [devices, MoE layers, experts] of at most {} and {}",
                                     place, shape_words(shape), kMaxDevices, kMaxExperts));
  const std::vector<std::int64_t> values = GRACE_TRY(numbers_of(array, std::string(place)));
  const auto devices = static_cast<std::size_t>(shape[0]), layers = static_cast<std::size_t>(shape[1]),
             experts = static_cast<std::size_t>(shape[2]);
  std::vector<std::vector<Row>> held(layers, std::vector<Row>(devices));
  std::size_t most = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t d = i / (layers * experts), m = i / experts % layers;
    if (values[i] != 0 && values[i] != 1)
      return invalid_input(fmt::format("{}: device {}, layer {}, expert {}: {} is neither 0 nor 1", place, d,
                                       m, i % experts, values[i]));
    if (values[i] == 0) continue;
    held[m][d].push_back(static_cast<std::int32_t>(i % experts));
    most = std::max(most, held[m][d].size());
  }
  SlotMap map{static_cast<int>(experts), static_cast<int>(devices), {}, {}};
  for (std::size_t m = 0; m < layers; ++m) {
    Row& row = map.expert_of_slot.emplace_back();
    map.decoder_layers.push_back(static_cast<int>(m));
    for (Row& here : held[m]) {
      here.resize(most, kEmptySlot);
      row.insert(row.end(), here.begin(), here.end());
    }
  }
  if (const std::vector<std::string> found = violations(map); !found.empty())
    return invalid_input(fmt::format("{}: {}", place, found.front()));
  return map;
}

// By the names in the directory at the end of the archive, or in its first member.
bool recognises(std::string_view bytes) {
  constexpr std::size_t kEnough = 4096;
  if (!bytes.starts_with("PK\x03\x04")) return false;
  const std::string_view begin = bytes.substr(0, kEnough),
                         end = bytes.substr(bytes.size() - std::min(bytes.size(), kEnough));
  return begin.find(kSlots) != std::string_view::npos || end.find(kSlots) != std::string_view::npos;
}

}  // namespace

const Exporter kEplb = {"eplb",      "the three arrays of EPLB's rebalance_experts, as .npz",
                        ".npz",      RowNumbers::kMoeOrdinals,
                        false,       "wrr",
                        &recognises, &write,
                        &read_triple};
const Exporter kPlacementArray = {"placement-array",
                                  "only read: zeros and ones [devices, MoE layers, experts], as .npy",
                                  ".npy",
                                  RowNumbers::kMoeOrdinals,
                                  true,
                                  "tar",
                                  [](std::string_view bytes) { return bytes.starts_with("\x93NUMPY"); },
                                  nullptr,
                                  &read_array};

}  // namespace grace::interop
