#include "grace/files/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "grace/files/json_file.h"

namespace grace {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kMaxDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32;
enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kNumTypes
};
constexpr std::array<std::size_t, kNumTypes> kBytesOfType = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

std::optional<Dtype> dtype_of(std::uint32_t type) {
  switch (type) {
    case 0:
      return Dtype::kF32;
    case 1:
      return Dtype::kF16;
    case 24:
      return Dtype::kI8;
    case 25:
      return Dtype::kI16;
    case 26:
      return Dtype::kI32;
    case 27:
      return Dtype::kI64;
    case 28:
      return Dtype::kF64;
    case 30:
      return Dtype::kBf16;
    default:
      return std::nullopt;
  }
}

class Reader {
 public:
  Reader(std::span<const std::byte> file, std::string_view place) : file_(file), place_(place) {}

  Result<GgufContent> read() {
    GRACE_TRY(read_head());
    for (std::uint64_t i = 0; i < num_keys_; ++i) GRACE_TRY(read_key());
    for (std::uint64_t i = 0; i < num_tensors_; ++i) GRACE_TRY(read_tensor());
    const std::uint64_t begin = (at_ + alignment_ - 1) / alignment_ * alignment_;
    for (auto& [name, tensor] : content_.tensors) GRACE_TRY(place_tensor(name, tensor, begin));
    return std::move(content_);
  }

 private:
  Error cut_short() const { return invalid_input(fmt::format("{}: cut short at byte {}", place_, at_)); }

  template <typename T>
  Result<T> number() {
    if (file_.size() - at_ < sizeof(T)) return cut_short();
    T value{};
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  Result<std::string> text() {
    const auto length = GRACE_TRY(number<std::uint64_t>());
    if (length > file_.size() - at_) return cut_short();
    std::string value(reinterpret_cast<const char*>(file_.data()) + at_, static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return value;
  }

  Status read_head() {
    if (file_.size() < kMagic.size() || std::memcmp(file_.data(), kMagic.data(), kMagic.size()) != 0)
      return invalid_input(fmt::format("{}: does not begin with GGUF", place_));
    at_ = kMagic.size();
    const auto version = GRACE_TRY(number<std::uint32_t>());
    if (version < 2 || version > 3)
      return unsupported(fmt::format("{}: GGUF version {} is outside [2, 3]", place_, version));
    num_tensors_ = GRACE_TRY(number<std::uint64_t>());
    num_keys_ = GRACE_TRY(number<std::uint64_t>());
    constexpr std::size_t kLeastBytes = 12;  // of a key or a tensor
    if (num_tensors_ > file_.size() / kLeastBytes || num_keys_ > file_.size() / kLeastBytes)
      return invalid_input(fmt::format("{}: {} tensors and {} keys do not fit into {} bytes", place_,
                                       num_tensors_, num_keys_, file_.size()));
    return {};
  }

  // Nothing for a list.
  Result<std::optional<GgufValue>> value_of(std::uint32_t type) {
    const auto integer = [](auto value) {
      return std::optional<GgufValue>(static_cast<std::int64_t>(value));
    };
    switch (type) {
      case kU8:
        return integer(GRACE_TRY(number<std::uint8_t>()));
      case kI8:
        return integer(GRACE_TRY(number<std::int8_t>()));
      case kU16:
        return integer(GRACE_TRY(number<std::uint16_t>()));
      case kI16:
        return integer(GRACE_TRY(number<std::int16_t>()));
      case kU32:
        return integer(GRACE_TRY(number<std::uint32_t>()));
      case kI32:
        return integer(GRACE_TRY(number<std::int32_t>()));
      case kU64:
        return integer(GRACE_TRY(number<std::uint64_t>()));
      case kI64:
        return integer(GRACE_TRY(number<std::int64_t>()));
      case kF32:
        return std::optional<GgufValue>(static_cast<double>(GRACE_TRY(number<float>())));
      case kF64:
        return std::optional<GgufValue>(GRACE_TRY(number<double>()));
      case kBool:
        return std::optional<GgufValue>(GRACE_TRY(number<std::uint8_t>()) != 0);
      case kString:
        return std::optional<GgufValue>(GRACE_TRY(text()));
      case kArray:
        GRACE_TRY(skip_list());
        return std::optional<GgufValue>();
      default:
        return invalid_input(fmt::format("{}: a value of type {} at byte {}, types are [0, {})", place_, type,
                                         at_, +kNumTypes));
    }
  }

  Status skip_list() {
    const auto type = GRACE_TRY(number<std::uint32_t>());
    const auto count = GRACE_TRY(number<std::uint64_t>());
    if (type == kString) {
      for (std::uint64_t i = 0; i < count; ++i) GRACE_TRY(text());
      return {};
    }
    const std::size_t bytes = type < kNumTypes ? kBytesOfType[type] : 0;
    if (bytes == 0) return unsupported(fmt::format("{}: a list of lists at byte {}", place_, at_));
    if (count > (file_.size() - at_) / bytes) return cut_short();
    at_ += static_cast<std::size_t>(count) * bytes;
    return {};
  }

  Status read_key() {
    std::string key = GRACE_TRY(text());
    const auto type = GRACE_TRY(number<std::uint32_t>());
    std::optional<GgufValue> value = GRACE_TRY(value_of(type));
    if (!value) return {};
    if (key == "general.alignment") {
      const std::int64_t* alignment = std::get_if<std::int64_t>(&*value);
      if (alignment == nullptr || *alignment < 1 || *alignment > (1 << 20))
        return invalid_input(fmt::format("{}: general.alignment is outside [1, {}]", place_, 1 << 20));
      alignment_ = static_cast<std::uint64_t>(*alignment);
    }
    if (!content_.metadata.emplace(key, std::move(*value)).second)
      return invalid_input(fmt::format("{}: key {} occurs twice", place_, shown(Json(key))));
    return {};
  }

  Status read_tensor() {
    const std::string name = GRACE_TRY(text());
    const std::string where = fmt::format("{}: tensor {}", place_, shown(Json(name)));
    const auto dimensions = GRACE_TRY(number<std::uint32_t>());
    if (dimensions > kMaxDimensions)
      return invalid_input(fmt::format("{}: {} dimensions, at most {}", where, dimensions, kMaxDimensions));
    TensorView tensor;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto extent = GRACE_TRY(number<std::uint64_t>());
      if (extent > std::uint64_t{INT64_MAX})
        return invalid_input(fmt::format("{}: an extent of {}", where, extent));
      tensor.shape.insert(tensor.shape.begin(),
                          static_cast<std::int64_t>(extent));  // the fastest comes first
    }
    const auto type = GRACE_TRY(number<std::uint32_t>());
    const auto offset = GRACE_TRY(number<std::uint64_t>());
    const std::optional<Dtype> dtype = dtype_of(type);
    const bool twice = content_.tensors.contains(name) ||
                       std::ranges::find(content_.quantised, name) != content_.quantised.end();
    if (twice) return invalid_input(where + " occurs twice");
    if (!dtype) {
      content_.quantised.push_back(name);
      return {};
    }
    tensor.dtype = *dtype;
    offsets_[name] = offset;
    content_.tensors.emplace(name, std::move(tensor));
    return {};
  }

  Status place_tensor(const std::string& name, TensorView& tensor, std::uint64_t begin) {
    auto bytes = static_cast<std::int64_t>(bytes_of(tensor.dtype));
    bool fits = true;
    for (const std::int64_t extent : tensor.shape)
      fits = fits && !__builtin_mul_overflow(bytes, extent, &bytes);
    const std::uint64_t offset = offsets_[name];
    fits = fits && begin <= file_.size() && offset <= file_.size() - begin &&
           static_cast<std::uint64_t>(bytes) <= file_.size() - begin - offset;
    if (!fits)
      return invalid_input(fmt::format("{}: tensor {}: {} [{}] at byte {} + {} reaches over the file's {}",
                                       place_, shown(Json(name)), name_of(tensor.dtype),
                                       fmt::join(tensor.shape, ", "), begin, offset, file_.size()));
    tensor.bytes = file_.subspan(static_cast<std::size_t>(begin + offset), static_cast<std::size_t>(bytes));
    return {};
  }

  std::span<const std::byte> file_;
  std::string_view place_;
  std::size_t at_ = 0;
  std::uint64_t num_tensors_ = 0, num_keys_ = 0, alignment_ = kDefaultAlignment;
  std::map<std::string, std::uint64_t, std::less<>> offsets_;
  GgufContent content_;
};

}  // namespace

Result<GgufContent> parse_gguf(std::span<const std::byte> file, std::string_view place) {
  return Reader(file, place).read();
}

}  // namespace grace
