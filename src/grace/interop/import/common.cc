#include "grace/interop/import/common.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "grace/base/bf16.h"
#include "grace/base/f16.h"

namespace grace {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 46;  // as a load profile may have

template <typename T>
T element_at(std::span<const std::byte> bytes, std::size_t i) {
  T value{};
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Calls use(tag) with a value of the C++ type that a whole-number dtype has; false for others.
template <typename Use>
bool with_integer_type(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
      return use(std::uint8_t{}), true;
    case Dtype::kI8:
      return use(std::int8_t{}), true;
    case Dtype::kU16:
      return use(std::uint16_t{}), true;
    case Dtype::kI16:
      return use(std::int16_t{}), true;
    case Dtype::kU32:
      return use(std::uint32_t{}), true;
    case Dtype::kI32:
      return use(std::int32_t{}), true;
    case Dtype::kU64:
      return use(std::uint64_t{}), true;
    case Dtype::kI64:
      return use(std::int64_t{}), true;
    default:
      return false;
  }
}

std::optional<double> float_at(std::span<const std::byte> bytes, Dtype dtype, std::size_t i) {
  switch (dtype) {
    case Dtype::kF64:
      return element_at<double>(bytes, i);
    case Dtype::kF32:
      return static_cast<double>(element_at<float>(bytes, i));
    case Dtype::kF16:
      return static_cast<double>(f32_of_f16(element_at<std::uint16_t>(bytes, i)));
    case Dtype::kBf16:
      return static_cast<double>(f32_of_bf16(element_at<std::uint16_t>(bytes, i)));
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<std::vector<int>> decoder_layers_of(std::size_t count, const ImportOptions& options,
                                           std::string_view place, RecordingSink& sink) {
  if (!options.decoder_layers.empty()) {
    if (options.decoder_layers.size() != count)
      return invalid_input(fmt::format("--layers: {} layers, but {} has {} MoE layers",
                                       options.decoder_layers.size(), place, count));
    return options.decoder_layers;
  }
  if (options.dense_layers < 0)
    sink.warn(fmt::format(
        "{} numbers MoE layers alone: taken as decoder layers 0 to {}; --dense-layers N where the model "
        "begins with N dense ones",
        place, static_cast<std::int64_t>(count) - 1));
  std::vector<int> layers(count);
  std::iota(layers.begin(), layers.end(), std::max(options.dense_layers, 0));
  return layers;
}

Result<std::vector<int>> moe_rows(const std::vector<bool>& is_empty, const ImportOptions& options,
                                  std::string_view place, RecordingSink& sink) {
  const int count = static_cast<int>(is_empty.size());
  if (!options.decoder_layers.empty()) {
    for (const int row : options.decoder_layers)
      if (row < 0 || row >= count)
        return invalid_input(
            fmt::format("--layers: {} is outside [0, {}), the layers of {}", row, count, place));
    return options.decoder_layers;
  }
  std::vector<int> rows, dense;
  for (int row = 0; row < count; ++row) {
    const bool moe =
        options.dense_layers >= 0 ? row >= options.dense_layers : !is_empty[static_cast<std::size_t>(row)];
    (moe ? rows : dense).push_back(row);
  }
  if (rows.empty())
    return invalid_input(fmt::format("{}: nothing was recorded in any of {} layers", place, count));
  if (options.dense_layers < 0 && rows.size() == 1 && count > 1)
    sink.warn(fmt::format(
        "all assignments are in layer {}, the other {} layers have none: did the recorder count every "
        "layer into one?",
        rows[0], count - 1));
  else if (!dense.empty() && options.dense_layers < 0)
    sink.warn(fmt::format("nothing was recorded in {} of {} layers ({}): taken as dense", dense.size(), count,
                          fmt::join(dense, ", ")));
  return rows;
}

Result<std::vector<std::int64_t>> counts_of(std::span<const std::byte> elements, Dtype dtype,
                                            std::string_view place, std::int64_t& rounded) {
  std::vector<std::int64_t> counts(elements.size() / bytes_of(dtype));
  const auto refuse = [&](std::size_t i, const std::string& value) {
    return invalid_input(
        fmt::format("{}: element {} is {}, no count in [0, {}]", place, i, value, kMaxCount));
  };
  std::optional<std::size_t> bad;
  const bool whole = with_integer_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for (std::size_t i = 0; i < counts.size() && !bad; ++i) {
      const T value = element_at<T>(elements, i);
      if (std::cmp_less(value, 0) || std::cmp_greater(value, kMaxCount)) bad = i;
      counts[i] = static_cast<std::int64_t>(value);
    }
  });
  if (bad) return refuse(*bad, std::to_string(counts[*bad]));
  if (whole) return counts;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::optional<double> value = float_at(elements, dtype, i);
    if (!value) return invalid_input(fmt::format("{}: {} is no dtype of counts", place, name_of(dtype)));
    if (!(*value >= 0 && *value <= static_cast<double>(kMaxCount)))
      return refuse(i, fmt::format("{}", *value));
    const double nearest = std::nearbyint(*value);
    if (nearest != *value) ++rounded;
    counts[i] = static_cast<std::int64_t>(nearest);
  }
  return counts;
}

Status ids_of(std::span<const std::byte> elements, Dtype dtype, std::string_view place,
              std::vector<std::int32_t>& out) {
  out.resize(elements.size() / bytes_of(dtype));
  const bool whole = with_integer_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_same_v<T, std::int32_t>) {
      if (!out.empty()) std::memcpy(out.data(), elements.data(), elements.size());
    } else {
      for (std::size_t i = 0; i < out.size(); ++i) {
        const T value = element_at<T>(elements, i);
        constexpr auto kLowest = std::numeric_limits<std::int32_t>::min(),
                       kHighest = std::numeric_limits<std::int32_t>::max();
        out[i] = std::cmp_less(value, kLowest)       ? kLowest
                 : std::cmp_greater(value, kHighest) ? kHighest
                                                     : static_cast<std::int32_t>(value);
      }
    }
  });
  if (!whole) return invalid_input(fmt::format("{}: ids are {}, not whole numbers", place, name_of(dtype)));
  return {};
}

Result<std::vector<std::vector<std::int64_t>>> sum_steps(std::span<const std::int64_t> counts,
                                                         std::size_t layers, std::size_t experts,
                                                         std::string_view place) {
  std::vector<std::vector<std::int64_t>> sums(layers, std::vector<std::int64_t>(experts, 0));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::int64_t& sum = sums[i / experts % layers][i % experts];
    if (__builtin_add_overflow(sum, counts[i], &sum) || sum > kMaxCount)
      return invalid_input(fmt::format("{}: layer {}, expert {}: counts add up to more than {}", place,
                                       i / experts % layers, i % experts, kMaxCount));
  }
  return sums;
}

Status add_physical(std::span<const std::int64_t> physical, std::span<const std::int64_t> map,
                    std::vector<std::int64_t>& logical, std::string_view place) {
  if (physical.size() != map.size())
    return invalid_input(
        fmt::format("{}: {} physical experts, but a map of {}", place, physical.size(), map.size()));
  for (std::size_t p = 0; p < map.size(); ++p) {
    if (map[p] < 0 || std::cmp_greater_equal(map[p], logical.size()))
      return invalid_input(fmt::format("{}: the map's slot {} holds expert {}, outside [0, {})", place, p,
                                       map[p], logical.size()));
    std::int64_t& load = logical[static_cast<std::size_t>(map[p])];
    if (__builtin_add_overflow(load, physical[p], &load))
      return invalid_input(fmt::format("{}: counts of expert {} overflow", place, map[p]));
  }
  return {};
}

void warn_of_rounding(std::int64_t rounded, std::string_view place, RecordingSink& sink) {
  if (rounded > 0)
    sink.warn(fmt::format("{}: {} counts were no whole numbers and are rounded", place, rounded));
}

std::optional<int> rank_in_name(const std::filesystem::path& path, std::string_view before,
                                std::string_view after) {
  const std::string name = path.filename().string();
  if (name.size() < before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
    return std::nullopt;
  int rank = 0;
  const char* const end = name.data() + name.size() - after.size();
  const auto [stop, error] = std::from_chars(name.data() + before.size(), end, rank);
  if (error != std::errc() || stop != end || rank < 0) return std::nullopt;
  return rank;
}

}  // namespace grace
