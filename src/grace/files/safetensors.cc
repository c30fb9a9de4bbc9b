#include "grace/files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "grace/files/json_file.h"

namespace grace {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are little-endian and are not swapped");

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's bound
constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array kDtypes = {
    DtypeInfo{Dtype::kBool, "BOOL", 1},      DtypeInfo{Dtype::kU8, "U8", 1},
    DtypeInfo{Dtype::kI8, "I8", 1},          DtypeInfo{Dtype::kU16, "U16", 2},
    DtypeInfo{Dtype::kI16, "I16", 2},        DtypeInfo{Dtype::kF16, "F16", 2},
    DtypeInfo{Dtype::kBf16, "BF16", 2},      DtypeInfo{Dtype::kU32, "U32", 4},
    DtypeInfo{Dtype::kI32, "I32", 4},        DtypeInfo{Dtype::kF32, "F32", 4},
    DtypeInfo{Dtype::kU64, "U64", 8},        DtypeInfo{Dtype::kI64, "I64", 8},
    DtypeInfo{Dtype::kF64, "F64", 8},        DtypeInfo{Dtype::kF8E4m3, "F8_E4M3", 1},
    DtypeInfo{Dtype::kF8E5m2, "F8_E5M2", 1}, DtypeInfo{Dtype::kF8E8m0, "F8_E8M0", 1},
};

const DtypeInfo& info_of(Dtype dtype) {
  const auto found = std::ranges::find(kDtypes, dtype, &DtypeInfo::dtype);
  GRACE_CHECK(found != kDtypes.end(), "unknown dtype");
  return *found;
}

// Product of a shape and the element size, unless it overflows.
std::optional<std::int64_t> bytes_of_shape(std::span<const std::int64_t> shape, std::size_t element_bytes) {
  auto bytes = static_cast<std::int64_t>(element_bytes);
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// A list of whole numbers >= 0.
Result<std::vector<std::int64_t>> sizes(const Json& entry, const char* key, const std::string& place) {
  const auto found = entry.find(key);
  if (found == entry.end()) return invalid_input(fmt::format("{}: {} is missing", place, key));
  std::vector<std::int64_t> values;
  bool good = found->is_array();
  for (std::size_t i = 0; good && i < found->size(); ++i) {
    const Json& value = (*found)[i];
    good = value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
    if (good) values.push_back(value.get<std::int64_t>());
  }
  if (!good) {
    return invalid_input(fmt::format("{}: {} is {}, not a list of sizes", place, key, shown(*found)));
  }
  return values;
}

Result<Json> read_header(std::span<const std::byte> file, std::string_view place) {
  if (file.size() < kLengthBytes) {
    return invalid_input(fmt::format("{}: {} bytes, too short for the header's length", place, file.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const std::uint64_t bound = std::min<std::uint64_t>(file.size() - kLengthBytes, kMaxHeaderBytes);
  if (length > bound) {
    return invalid_input(
        fmt::format("{}: the header says it is {} bytes long, at most {} can be", place, length, bound));
  }
  // Chars may alias any bytes.
  const auto* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  Json header =
      GRACE_TRY(parse_json({text, static_cast<std::size_t>(length)}, fmt::format("{}: header", place)));
  if (!header.is_object()) {
    return invalid_input(fmt::format("{}: header: {} is not an object", place, shown(header)));
  }
  return header;
}

Result<MetadataMap> read_metadata(const Json& entry, std::string_view place) {
  MetadataMap metadata;
  if (!entry.is_object()) {
    return invalid_input(fmt::format("{}: {} is {}, not an object", place, kMetadataKey, shown(entry)));
  }
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      return invalid_input(fmt::format("{}: {} of {} is {}, not a string", place, kMetadataKey,
                                       shown(Json(key)), shown(value)));
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

Result<TensorView> read_entry(const Json& entry, std::span<const std::byte> data, const std::string& place) {
  const std::string dtype = GRACE_TRY(get_string(entry, "dtype", place));
  const auto info = std::ranges::find(kDtypes, dtype, &DtypeInfo::name);
  if (info == kDtypes.end())
    return invalid_input(fmt::format("{}: unknown dtype {}", place, shown(Json(dtype))));
  std::vector<std::int64_t> shape = GRACE_TRY(sizes(entry, "shape", place));
  TensorView tensor{info->dtype, std::move(shape), {}};
  const std::vector<std::int64_t> offsets = GRACE_TRY(sizes(entry, "data_offsets", place));
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > static_cast<std::int64_t>(data.size())) {
    return invalid_input(fmt::format("{}: data_offsets {} are outside [0, {}]", place,
                                     shown(entry["data_offsets"]), data.size()));
  }
  const std::optional<std::int64_t> bytes = bytes_of_shape(tensor.shape, info->bytes);
  if (!bytes) {
    return invalid_input(
        fmt::format("{}: shape {} has more elements than fit", place, shown(entry["shape"])));
  }
  if (*bytes != offsets[1] - offsets[0]) {
    return invalid_input(fmt::format("{}: {} {} takes {} bytes, data_offsets give it {}", place, dtype,
                                     shown(entry["shape"]), *bytes, offsets[1] - offsets[0]));
  }
  tensor.bytes = data.subspan(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(*bytes));
  return tensor;
}

// The tensors lie end to end: nothing overlaps, nothing is hidden between them.
Status check_no_gaps(const TensorMap& tensors, std::span<const std::byte> data, std::string_view place) {
  std::vector<std::pair<std::ptrdiff_t, const TensorMap::value_type*>> order;
  for (const auto& tensor : tensors) order.emplace_back(tensor.second.bytes.data() - data.data(), &tensor);
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    const auto key = [](const auto& x) { return std::pair(x.first, x.second->second.bytes.size()); };
    return key(a) != key(b) ? key(a) < key(b) : a.second->first < b.second->first;
  });
  std::ptrdiff_t end = 0;
  for (const auto& [begin, tensor] : order) {
    if (begin != end) {
      return invalid_input(
          fmt::format("{}: tensor {} begins at byte {} of the data, the one before it ends at {}", place,
                      shown(Json(tensor->first)), begin, end));
    }
    end += std::ssize(tensor->second.bytes);
  }
  if (end != std::ssize(data)) {
    return invalid_input(fmt::format("{}: {} bytes of data, the tensors take {}", place, data.size(), end));
  }
  return {};
}

template <float (*convert)(std::uint16_t)>
void widen(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    out[i] = convert(bits);
  }
}

}  // namespace

std::size_t bytes_of(Dtype dtype) { return info_of(dtype).bytes; }
std::string_view name_of(Dtype dtype) { return info_of(dtype).name; }

std::int64_t TensorView::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

Status read_as_f32(const TensorView& tensor, std::string_view name, std::int64_t begin, std::int64_t end,
                   std::span<float> out) {
  GRACE_CHECK(0 <= begin && begin <= end && end <= tensor.num_elements(), "elements outside the tensor");
  GRACE_CHECK(std::ssize(out) == end - begin, "room for another number of elements");
  const std::size_t element = bytes_of(tensor.dtype);
  const auto bytes = tensor.bytes.subspan(static_cast<std::size_t>(begin) * element, out.size() * element);
  if (out.empty()) return {};
  switch (tensor.dtype) {
    case Dtype::kF32:
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return {};
    case Dtype::kBf16:
      widen<f32_of_bf16>(bytes, out);
      return {};
    case Dtype::kF16:
      widen<f32_of_f16>(bytes, out);
      return {};
    default:
      return unsupported(
          fmt::format("{}: dtype {} is not one of BF16, F16, F32", name, name_of(tensor.dtype)));
  }
}

Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> file, std::string_view place) {
  const Json header = GRACE_TRY(read_header(file, place));
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + static_cast<std::size_t>(length));
  SafetensorsContent content;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) {
      content.metadata = GRACE_TRY(read_metadata(entry, place));
    } else {
      const std::string where = fmt::format("{}: tensor {}", place, shown(Json(name)));
      content.tensors.emplace(name, GRACE_TRY(read_entry(entry, data, where)));
    }
  }
  GRACE_TRY(check_no_gaps(content.tensors, data, place));
  return content;
}

Result<Safetensors> Safetensors::open(const std::filesystem::path& path) {
  Safetensors opened(path, GRACE_TRY(MappedFile::open(path)));
  opened.content_ = GRACE_TRY(parse_safetensors(opened.file_.bytes(), path.string()));
  return opened;
}

Result<TensorView> Safetensors::find(std::string_view name) const {
  const auto found = content_.tensors.find(name);
  if (found == content_.tensors.end()) {
    return invalid_input(fmt::format("{}: no tensor {}", path_.string(), name));
  }
  return found->second;
}

Status write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                         const MetadataMap& metadata) {
  Json header = Json::object();
  auto& fields = header.get_ref<Json::object_t&>();
  if (!metadata.empty()) fields.emplace_back(std::string(kMetadataKey), Json(metadata));
  std::vector<std::span<const std::byte>> pieces(2);
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    GRACE_CHECK(
        tensor.bytes.size() == static_cast<std::size_t>(tensor.num_elements()) * bytes_of(tensor.dtype),
        name);
    const std::size_t end = offset + tensor.bytes.size();
    fields.emplace_back(
        name,
        Json{{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}});
    pieces.push_back(tensor.bytes);
    offset = end;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  pieces[0] = std::as_bytes(std::span(&length, 1));
  pieces[1] = std::as_bytes(std::span(text.data(), text.size()));
  return write_pieces_atomically(path, pieces);
}

}  // namespace grace
