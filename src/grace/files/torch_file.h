// What torch.save writes: a zip archive of a pickle and raw storages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/pickle.h"
#include "grace/files/safetensors.h"

namespace grace {

// A view of a tensor: element (i, j, ...) is element i * stride[0] + j * stride[1] + ... of `bytes`, which
// reach to the end of its storage. Valid while the file's bytes live.
struct StridedTensor {
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape, stride;
  std::span<const std::byte> bytes;

  std::int64_t num_elements() const;
  bool is_row_major() const;
};
// The elements in row-major order.
std::vector<std::byte> row_major_bytes(const StridedTensor& tensor);

// Immutable, thread-safe. Tensors of any device are read where they lie: in the file.
class TorchFile {
 public:
  // Reads the bytes of a whole file; `place` stands for the path in messages. Errors: those of parse_zip and
  // Pickle::parse; invalid_input for an archive without a pickle; unsupported for big-endian storages and for
  // the format of torch before 1.6. mapped: as of parse_zip.
  static Result<TorchFile> parse(std::span<const std::byte> file, std::string_view place,
                                 const PickleOptions& options = {}, const MappedFile* mapped = nullptr);
  PickleValue root() const { return pickle_->root(); }
  // The tensor that a value is. `place` names it in messages. Errors: invalid_input where it is none, its
  // storage is absent or shorter than it says, or its shape, strides or offset reach over the storage.
  Result<StridedTensor> tensor(const PickleValue& value, std::string_view place) const;

 private:
  TorchFile() = default;
  std::unique_ptr<Pickle> pickle_;  // values point to it
  std::map<std::string, std::span<const std::byte>, std::less<>> storages_;
};

}  // namespace grace
