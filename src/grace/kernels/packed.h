// Weights in the layout that the matrix products read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grace/base/matrix_view.h"
#include "grace/base/thread_pool.h"
#include "grace/kernels/instructions.h"

namespace grace::kernels {

// How a weight is stored. A bf16 tensor is held as it is also for kF32 (widening is exact), so that it takes
// half the memory and half the bandwidth.
enum class Storage : std::uint8_t { kF32, kBf16, kInt8 };

inline constexpr int kPanel = 32;  // output columns

// Bytes on a boundary of a cache line, large ones on one of a large page. Owner, alone or with others.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size);  // not initialised
  // Somebody else's, on a cache line's boundary, that live as long as `owner`; not to be written.
  Bytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  std::byte* data() { return owned_.get(); }  // REQUIRES: made by size
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> owned_;
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A weight [out, in] as panels of kPanel outputs, zero-padded: [ceil(out / kPanel)][depth / n][kPanel][n],
// where n values of the inner dimension lie together (1 for f32, 2 for bf16, 4 for int8) and depth is `in`
// padded to packed_depth(). Owner.
struct PackedMatrix {
  int out = 0;
  int in = 0;
  Arithmetic arithmetic;
  Storage storage = Storage::kF32;
  Bytes panels;
  // kInt8: of each output, the scale and 128 times the sum of its quantised weights; padded as panels are.
  std::vector<float> scales;
  std::vector<std::int32_t> offsets;

  bool empty() const { return out == 0; }
};

// The storage that a tensor of `element` takes, and the bytes that pack() will hold for it.
Storage storage_of(Element element, Numbers numbers);
std::size_t packed_bytes(int out, int in, Storage storage);
std::size_t packed_columns(int out);                // padded to whole panels: of scales and offsets
std::size_t packed_depth(int in, Storage storage);  // `in` rounded up: bf16 to 32, int8 to 64

// Errors are the caller's bugs. The pool shares out the panels.
PackedMatrix pack(const MatrixView& weight, const Arithmetic& arithmetic, ThreadPool& pool);
// The same from f32 [out, in], row-major, on the calling thread.
PackedMatrix pack(std::span<const float> weight, int out, int in, const Arithmetic& arithmetic = {});

// One expert: gate and up in one matrix, their outputs in turn by sixteen, so that a panel holds both of the
// same sixteen; down.
struct PackedExpert {
  PackedMatrix gate_up;  // [2 * F rounded up to sixteen, H]
  PackedMatrix down;     // [H, F]
  int ffn = 0;           // F
};
PackedExpert pack_expert(const MatrixView& gate, const MatrixView& up, const MatrixView& down,
                         const Arithmetic& arithmetic, ThreadPool& pool);
// The same from f32, row-major, on the calling thread.
PackedExpert pack_expert(std::span<const float> gate, std::span<const float> up, std::span<const float> down,
                         int hidden, int ffn, const Arithmetic& arithmetic = {});
// What pack_expert() makes of these.
struct ExpertShape {
  Storage storage = Storage::kF32;  // of all three: the widest that any of them needs
  int gate_up_columns = 0;
};
ExpertShape expert_shape(const MatrixView& gate, const MatrixView& up, const MatrixView& down,
                         const Arithmetic& arithmetic);
std::size_t packed_expert_bytes(int hidden, int ffn, Storage storage);

}  // namespace grace::kernels
