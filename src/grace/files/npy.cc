#include "grace/files/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "grace/base/check.h"
#include "grace/files/json_file.h"
#include "grace/files/zip.h"

namespace grace {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kMaxHeaderBytes = 1 << 20;  // dictionaries of three keys are far shorter
constexpr std::size_t kMaxDimensions = 64;        // numpy's bound
constexpr std::string_view kSuffix = ".npy";

struct NpyDtype {
  std::string_view name;
  Dtype dtype;
};
constexpr std::array kDtypes = {
    NpyDtype{"|b1", Dtype::kBool}, NpyDtype{"|u1", Dtype::kU8},  NpyDtype{"|i1", Dtype::kI8},
    NpyDtype{"<u2", Dtype::kU16},  NpyDtype{"<i2", Dtype::kI16}, NpyDtype{"<u4", Dtype::kU32},
    NpyDtype{"<i4", Dtype::kI32},  NpyDtype{"<u8", Dtype::kU64}, NpyDtype{"<i8", Dtype::kI64},
    NpyDtype{"<f2", Dtype::kF16},  NpyDtype{"<f4", Dtype::kF32}, NpyDtype{"<f8", Dtype::kF64},
};

std::string_view name_of_dtype(Dtype dtype) {
  const auto found = std::ranges::find(kDtypes, dtype, &NpyDtype::dtype);
  GRACE_CHECK(found != kDtypes.end(), "a dtype that numpy has");
  return found->name;
}

// Reads the header's Python dictionary: three keys, a string, a truth value and a tuple.
class Header {
 public:
  Header(std::string_view text, std::string_view place) : text_(text), place_(place) {}

  Status parse() {
    if (!take('{')) return broken("a dictionary");
    while (!take('}')) {
      const std::string_view key = GRACE_TRY(string());
      if (!take(':')) return broken("':'");
      GRACE_TRY(value_of(key));
      if (!take(',') && peek() != '}') return broken("',' or '}'");
    }
    if (at_ != text_.size()) return broken("the end");
    if (!descr || !fortran_order || !shape)
      return invalid_input(fmt::format("{}: the header lacks {}", place_,
                                       !descr           ? "descr"
                                       : !fortran_order ? "fortran_order"
                                                        : "shape"));
    return {};
  }

  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  Error broken(std::string_view wanted) const {
    return invalid_input(fmt::format("{}: the header has no {} at byte {} of {}", place_, wanted, at_,
                                     shown(Json(std::string(text_)))));
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    skip_space();
    return true;
  }
  bool take_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  Result<std::string_view> string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return broken("string");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return broken("end of a string");
    const std::string_view content = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return content;
  }
  Result<std::vector<std::int64_t>> tuple() {
    std::vector<std::int64_t> sizes;
    if (!take('(')) return broken("tuple");
    while (!take(')')) {
      std::int64_t size = 0;
      const char* const begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0 || sizes.size() == kMaxDimensions) return broken("size");
      at_ += static_cast<std::size_t>(end - begin);
      take_word("L");  // as Python 2 wrote them
      sizes.push_back(size);
      if (!take(',') && peek() != ')') return broken("',' or ')'");
    }
    return sizes;
  }
  Status value_of(std::string_view key) {
    const auto once = [&](bool is_there) -> Status {
      if (is_there) return invalid_input(fmt::format("{}: the header has {} twice", place_, key));
      return {};
    };
    if (key == "descr") {
      GRACE_TRY(once(descr.has_value()));
      if (peek() == '[') return unsupported(fmt::format("{}: its dtype is a structure", place_));
      descr = GRACE_TRY(string());
    } else if (key == "fortran_order") {
      GRACE_TRY(once(fortran_order.has_value()));
      skip_space();
      const bool is_true = take_word("True");
      if (!is_true && !take_word("False")) return broken("True or False");
      fortran_order = is_true;
    } else if (key == "shape") {
      GRACE_TRY(once(shape.has_value()));
      shape = GRACE_TRY(tuple());
    } else {
      return invalid_input(
          fmt::format("{}: the header has an unknown key {}", place_, shown(Json(std::string(key)))));
    }
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string_view place_;
};

// Where the header's text begins and ends.
Result<std::pair<std::size_t, std::size_t>> find_header(std::span<const std::byte> file,
                                                        std::string_view place) {
  constexpr std::size_t kVersionAt = kMagic.size(), kLengthAt = kVersionAt + 2;
  if (file.size() < kLengthAt + 2 || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    return invalid_input(fmt::format("{}: does not begin as a .npy file does", place));
  const int version = std::to_integer<int>(file[kVersionAt]);
  if (version < 1 || version > 3)
    return unsupported(fmt::format("{}: .npy version {} is outside [1, 3]", place, version));
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = kLengthAt + length_bytes;
  std::uint32_t length = 0;
  if (file.size() >= begin) std::memcpy(&length, file.data() + kLengthAt, length_bytes);
  if (file.size() < begin || length > std::min(file.size() - begin, kMaxHeaderBytes))
    return invalid_input(fmt::format("{}: the header says it is {} bytes long, at most {} can be", place,
                                     length,
                                     std::min(file.size() - std::min(begin, file.size()), kMaxHeaderBytes)));
  return std::pair(begin, begin + length);
}

}  // namespace

Result<NpyArray> parse_npy(std::span<const std::byte> file, std::string_view place) {
  const auto [begin, end] = GRACE_TRY(find_header(file, place));
  // Chars may alias any bytes.
  Header header({reinterpret_cast<const char*>(file.data()) + begin, end - begin}, place);
  GRACE_TRY(header.parse());
  const auto known = std::ranges::find(kDtypes, *header.descr, &NpyDtype::name);
  if (known == kDtypes.end())
    return unsupported(fmt::format("{}: dtype {} is not bool, a whole number, f16, f32 or f64, little-endian",
                                   place, shown(Json(std::string(*header.descr)))));
  NpyArray array{{known->dtype, std::move(*header.shape), file.subspan(end)}, *header.fortran_order};
  auto bytes = static_cast<std::int64_t>(bytes_of(known->dtype));
  bool fits = true;
  for (const std::int64_t extent : array.tensor.shape)
    fits = fits && !__builtin_mul_overflow(bytes, extent, &bytes);
  if (!fits || bytes != std::ssize(array.tensor.bytes))
    return invalid_input(fmt::format("{}: {} [{}] does not take the {} bytes that follow the header", place,
                                     name_of(known->dtype), fmt::join(array.tensor.shape, ", "),
                                     array.tensor.bytes.size()));
  return array;
}

std::vector<std::byte> row_major_bytes(const NpyArray& array) {
  const TensorView& tensor = array.tensor;
  std::vector<std::byte> out(tensor.bytes.size());
  if (!array.fortran_order || out.empty()) {
    std::ranges::copy(tensor.bytes, out.begin());
    return out;
  }
  const std::size_t width = bytes_of(tensor.dtype), rank = tensor.shape.size();
  std::vector<std::int64_t> index(rank, 0), stride(rank, 1);
  for (std::size_t d = 1; d < rank; ++d) stride[d] = stride[d - 1] * tensor.shape[d - 1];
  std::int64_t from = 0;
  for (std::size_t to = 0; to < out.size(); to += width) {
    std::memcpy(out.data() + to, tensor.bytes.data() + static_cast<std::size_t>(from) * width, width);
    for (std::size_t d = rank; d-- > 0;) {
      from += stride[d];
      if (++index[d] < tensor.shape[d]) break;
      from -= stride[d] * tensor.shape[d];
      index[d] = 0;
    }
  }
  return out;
}

Result<NpzArrays> parse_npz(std::span<const std::byte> file, std::string_view place) {
  const std::vector<ZipEntry> entries = GRACE_TRY(parse_zip(file, place));
  NpzArrays result;
  for (const ZipEntry& entry : entries) {
    const std::string where = fmt::format("{}: member {}", place, shown(Json(entry.name)));
    if (!entry.name.ends_with(kSuffix)) return invalid_input(where + " is no .npy file");
    std::span<const std::byte> bytes = entry.data;
    if (entry.deflated) bytes = result.inflated.emplace_back(GRACE_TRY(inflate(entry, place)));
    result.arrays.emplace(entry.name.substr(0, entry.name.size() - kSuffix.size()),
                          GRACE_TRY(parse_npy(bytes, where)));
  }
  return result;
}

std::string npy_bytes(const TensorView& tensor) {
  GRACE_CHECK(tensor.bytes.size() == static_cast<std::size_t>(tensor.num_elements()) * bytes_of(tensor.dtype),
              "as many bytes as the shape says");
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", name_of_dtype(tensor.dtype),
                  fmt::join(tensor.shape, ", "), tensor.shape.size() == 1 ? "," : "");
  const std::size_t before = kMagic.size() + 4;
  header.append((64 - (before + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  std::string out(kMagic);
  out += std::string("\x01\x00", 2);
  const auto length = static_cast<std::uint16_t>(header.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out += header;
  out.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  return out;
}

std::string npz_bytes(const TensorMap& arrays) {
  std::vector<std::pair<std::string, std::string>> members;
  for (const auto& [name, tensor] : arrays)
    members.emplace_back(name + std::string(kSuffix), npy_bytes(tensor));
  return zip_bytes(members);
}

}  // namespace grace
