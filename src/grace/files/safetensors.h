// The safetensors container (huggingface/safetensors): u64 little-endian header length, JSON header, raw
// tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/bf16.h"
#include "grace/base/f16.h"
#include "grace/base/result.h"
#include "grace/files/mapped_file.h"

namespace grace {

enum class Dtype {
  kBool,
  kU8,
  kI8,
  kF8E4m3,
  kF8E5m2,
  kF8E8m0,
  kU16,
  kI16,
  kF16,
  kBf16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};
std::size_t bytes_of(Dtype dtype);
std::string_view name_of(Dtype dtype);  // as the header spells it: "BF16"

// A view of one tensor's bytes, row-major, little-endian, not necessarily aligned. Valid while its file
// lives.
struct TensorView {
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  std::int64_t num_elements() const;
};

// Elements [begin, end) of `tensor` as f32 (bf16, f16 and f32 only; anything else: unsupported, naming
// `name`). out: end - begin values.
Status read_as_f32(const TensorView& tensor, std::string_view name, std::int64_t begin, std::int64_t end,
                   std::span<float> out);

using TensorMap = std::map<std::string, TensorView, std::less<>>;
using MetadataMap = std::map<std::string, std::string, std::less<>>;

// What a file holds; the views point into the bytes it was parsed from.
struct SafetensorsContent {
  TensorMap tensors;
  MetadataMap metadata;
};
// Reads the bytes of a whole file; `place` stands for the path in messages. Errors: those of
// Safetensors::open, without io.
Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> file, std::string_view place);

// Immutable, thread-safe.
class Safetensors {
 public:
  // Errors: io; invalid_input for a header that is cut short, lies about its length (over the file, or over
  // 100 MB), is no JSON object, names an unknown dtype, a negative or overflowing shape, offsets that
  // overlap, leave holes, pass the end, or disagree with the shape.
  static Result<Safetensors> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const TensorMap& tensors() const { return content_.tensors; }
  const MetadataMap& metadata() const { return content_.metadata; }
  // Errors: invalid_input `path: no tensor NAME`.
  Result<TensorView> find(std::string_view name) const;
  // As MappedFile::give_back; false for bytes of another file.
  bool give_back(std::span<const std::byte> bytes) const { return file_.give_back(bytes); }
  // As MappedFile::offset_of.
  std::optional<std::size_t> offset_of(std::span<const std::byte> bytes) const {
    return file_.offset_of(bytes);
  }

 private:
  Safetensors(std::filesystem::path path, MappedFile file) : path_(std::move(path)), file_(std::move(file)) {}
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsContent content_;
};

// Writes tensors (name -> view) in name order, atomically; the header is padded so that data starts at a
// multiple of 8. Errors: io. REQUIRES: every view's bytes are as many as its dtype and shape say.
Status write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                         const MetadataMap& metadata);

}  // namespace grace
