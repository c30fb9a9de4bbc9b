#include "grace/files/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "grace/files/json_file.h"
#include "grace/files/zip.h"

namespace grace {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
constexpr std::size_t kMaxDimensions = 64;
constexpr std::int64_t kMaxRepeated = 1 << 24;  // elements that a small storage may become

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};  // chars may alias any bytes
}

// Sizes or strides: whole numbers from 0.
Result<std::vector<std::int64_t>> sizes_of(const PickleValue& list, std::string_view what,
                                           std::string_view place) {
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const PickleValue size = list.at(i);
    if (!size.is(PickleKind::kInt) || size.integer() < 0 || sizes.size() == kMaxDimensions)
      return invalid_input(fmt::format("{}: {} has {}, not a size", place, what, size.shown()));
    sizes.push_back(size.integer());
  }
  return sizes;
}

// Elements from the first to the last that shape and strides reach; nothing where that overflows.
std::optional<std::int64_t> reach_of(const StridedTensor& tensor) {
  std::int64_t reach = 1, product = 1;
  bool empty = false;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::int64_t step = 0;
    empty = empty || tensor.shape[d] == 0;
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(tensor.shape[d], 1), &product))
      return std::nullopt;
    if (tensor.shape[d] == 0) continue;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.stride[d], &step) ||
        __builtin_add_overflow(reach, step, &reach))
      return std::nullopt;
  }
  // A stride of 0 repeats elements: many come out of few.
  if (product > (std::int64_t{1} << 48)) return std::nullopt;
  return empty ? 0 : reach;
}

}  // namespace

std::int64_t StridedTensor::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

bool StridedTensor::is_row_major() const {
  std::int64_t expected = 1;
  for (std::size_t d = shape.size(); d-- > 0; expected *= shape[d])
    if (shape[d] > 1 && stride[d] != expected) return false;
  return true;
}

std::vector<std::byte> row_major_bytes(const StridedTensor& tensor) {
  const std::size_t width = bytes_of(tensor.dtype);
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  std::vector<std::byte> out(count * width);
  if (tensor.is_row_major()) {
    if (!out.empty()) std::memcpy(out.data(), tensor.bytes.data(), out.size());
    return out;
  }
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  std::int64_t from = 0;
  for (std::size_t to = 0; to < out.size(); to += width) {
    std::memcpy(out.data() + to, tensor.bytes.data() + static_cast<std::size_t>(from) * width, width);
    for (std::size_t d = index.size(); d-- > 0;) {
      from += tensor.stride[d];
      if (++index[d] < tensor.shape[d]) break;
      from -= tensor.stride[d] * tensor.shape[d];
      index[d] = 0;
    }
  }
  return out;
}

Result<TorchFile> TorchFile::parse(std::span<const std::byte> file, std::string_view place,
                                   const PickleOptions& options, const MappedFile* mapped) {
  constexpr std::string_view kOldMagic = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  if (text_of(file).starts_with(kOldMagic))
    return unsupported(
        fmt::format("{}: written in the format of torch before 1.6; load it and torch.save it again", place));
  const std::vector<ZipEntry> entries = GRACE_TRY(parse_zip(file, place, mapped));
  TorchFile result;
  const ZipEntry* pickle = nullptr;
  for (const ZipEntry& entry : entries) {
    if (entry.deflated)
      return unsupported(
          fmt::format("{}: member {} is compressed, torch stores them", place, shown(Json(entry.name))));
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos) continue;
    const std::string_view inner = std::string_view(entry.name).substr(slash + 1);
    if (inner == kPickleName) {
      if (pickle != nullptr)
        return invalid_input(fmt::format("{}: two members are a {}", place, kPickleName));
      pickle = &entry;
    }
    if (inner == "byteorder" && text_of(entry.data) != "little")
      return unsupported(fmt::format("{}: its storages are {}-endian", place,
                                     shown(Json(std::string(text_of(entry.data))))));
    if (inner.starts_with("data/")) result.storages_.emplace(inner.substr(5), entry.data);
  }
  if (pickle == nullptr)
    return invalid_input(
        fmt::format("{}: a zip archive without a {}: not of torch.save", place, kPickleName));
  result.pickle_ = std::make_unique<Pickle>(GRACE_TRY(Pickle::parse(pickle->data, place, options)));
  return result;
}

Result<StridedTensor> TorchFile::tensor(const PickleValue& value, std::string_view place) const {
  if (!value.is(PickleKind::kTensor))
    return invalid_input(fmt::format("{}: {} is not a tensor", place, value.shown()));
  const PickleValue storage = value.at(0);
  const auto found = storages_.find(storage.text());
  if (found == storages_.end())
    return invalid_input(fmt::format("{}: its storage {} is not in the file", place,
                                     shown(Json(std::string(storage.text())))));
  StridedTensor tensor;
  tensor.dtype = storage.dtype();
  tensor.shape = GRACE_TRY(sizes_of(value.at(2), "its shape", place));
  tensor.stride = GRACE_TRY(sizes_of(value.at(3), "its strides", place));
  tensor.bytes = found->second;
  if (tensor.shape.size() != tensor.stride.size())
    return invalid_input(
        fmt::format("{}: {} sizes and {} strides", place, tensor.shape.size(), tensor.stride.size()));
  const auto width = static_cast<std::int64_t>(bytes_of(tensor.dtype));
  const std::int64_t held = std::ssize(tensor.bytes) / width;
  if (storage.integer() < 0 || storage.integer() > held)
    return invalid_input(
        fmt::format("{}: its storage has {} elements, says {}", place, held, storage.integer()));
  const std::int64_t offset = value.at(1).integer();
  const std::optional<std::int64_t> reach = reach_of(tensor);
  if (!reach || offset < 0 || offset > held || *reach > held - offset)
    return invalid_input(fmt::format("{}: [{}] from element {} reaches over the {} of its storage", place,
                                     fmt::join(tensor.shape, ", "), offset, held));
  // Strides of 0 make many elements of one.
  if (tensor.num_elements() > std::max(held, kMaxRepeated))
    return invalid_input(fmt::format("{}: [{}] repeats {} elements, at most to {}", place,
                                     fmt::join(tensor.shape, ", "), held, kMaxRepeated));
  tensor.bytes = tensor.bytes.subspan(static_cast<std::size_t>(offset * width));
  return tensor;
}

}  // namespace grace
