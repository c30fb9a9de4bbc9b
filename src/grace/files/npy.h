// NumPy's array files: .npy (one array) and .npz (a zip of them, by name).
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/safetensors.h"

namespace grace {

// A view: valid while the bytes it was parsed from live.
struct NpyArray {
  TensorView tensor;           // row-major, unless:
  bool fortran_order = false;  // the first index runs fastest
};

// Reads a whole .npy file, versions 1 to 3; `place` stands for the path in messages. Bool, whole numbers of 1
// to 8 bytes, f16, f32 and f64, little-endian. Errors: invalid_input for a header that is cut short, no such
// dictionary, lacks a key or has one twice, or for data that are not as many as the shape says; unsupported
// for other dtypes (big-endian, objects, structures), naming them.
Result<NpyArray> parse_npy(std::span<const std::byte> file, std::string_view place);
// The elements in row-major order.
std::vector<std::byte> row_major_bytes(const NpyArray& array);

// The arrays of an .npz file, by name without `.npy`; the views point into `file` where members are stored,
// else into `inflated`.
struct NpzArrays {
  std::map<std::string, NpyArray, std::less<>> arrays;
  std::vector<std::vector<std::byte>> inflated;
};
// Errors: those of parse_zip, inflate and parse_npy; invalid_input for a member that is no .npy.
Result<NpzArrays> parse_npz(std::span<const std::byte> file, std::string_view place);

// A whole .npy file, version 1. REQUIRES: the view's bytes are as many as its dtype and shape say; the dtype
// is one that parse_npy reads.
std::string npy_bytes(const TensorView& tensor);
// A whole .npz file, members stored in name order and without times, so that the same arrays give the same
// bytes. REQUIRES: as above.
std::string npz_bytes(const TensorMap& arrays);

}  // namespace grace
