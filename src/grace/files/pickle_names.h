// The closed table of what a pickle may name, apart from the machine that reads it.
#pragma once

#include <array>
#include <string_view>

#include "grace/files/safetensors.h"

namespace grace {

// What stands for a name when it is applied to its arguments.
enum class PickleCall {
  kNothing,      // cannot be applied
  kStorageType,  // names a dtype in a persistent id
  kTensor,       // torch's rebuild function
  kDictOf,       // OrderedDict, Counter: of nothing, a dict or a list of pairs
  kDefaultDict,  // its argument makes defaults, and is ignored
  kListOf,       // of nothing or a list
  kEncode,       // bytes written as latin-1 text
  kNumpyScalar,  // of a dtype and bytes
  kNumpyDtype,   // of its short name
  kNumpyBuffer,  // an array, of bytes, dtype, shape and order
  kNumpyArray,   // an empty array, filled by BUILD
};

struct PickleName {
  std::string_view module, name;
  PickleCall call;
  Dtype dtype = Dtype::kF32;
};

inline constexpr std::array kPickleNames = {
    PickleName{"torch", "FloatStorage", PickleCall::kStorageType, Dtype::kF32},
    PickleName{"torch", "DoubleStorage", PickleCall::kStorageType, Dtype::kF64},
    PickleName{"torch", "HalfStorage", PickleCall::kStorageType, Dtype::kF16},
    PickleName{"torch", "BFloat16Storage", PickleCall::kStorageType, Dtype::kBf16},
    PickleName{"torch", "LongStorage", PickleCall::kStorageType, Dtype::kI64},
    PickleName{"torch", "IntStorage", PickleCall::kStorageType, Dtype::kI32},
    PickleName{"torch", "ShortStorage", PickleCall::kStorageType, Dtype::kI16},
    PickleName{"torch", "CharStorage", PickleCall::kStorageType, Dtype::kI8},
    PickleName{"torch", "ByteStorage", PickleCall::kStorageType, Dtype::kU8},
    PickleName{"torch", "BoolStorage", PickleCall::kStorageType, Dtype::kBool},
    PickleName{"torch._utils", "_rebuild_tensor_v2", PickleCall::kTensor},
    PickleName{"torch", "Size", PickleCall::kListOf},
    PickleName{"collections", "OrderedDict", PickleCall::kDictOf},
    PickleName{"collections", "Counter", PickleCall::kDictOf},
    PickleName{"collections", "defaultdict", PickleCall::kDefaultDict},
    PickleName{"builtins", "int", PickleCall::kNothing},
    PickleName{"builtins", "float", PickleCall::kNothing},
    PickleName{"builtins", "list", PickleCall::kListOf},
    PickleName{"builtins", "set", PickleCall::kListOf},
    PickleName{"builtins", "dict", PickleCall::kDictOf},
    PickleName{"__builtin__", "int", PickleCall::kNothing},
    PickleName{"__builtin__", "long", PickleCall::kNothing},
    PickleName{"__builtin__", "float", PickleCall::kNothing},
    PickleName{"__builtin__", "list", PickleCall::kListOf},
    PickleName{"__builtin__", "set", PickleCall::kListOf},
    PickleName{"__builtin__", "dict", PickleCall::kDictOf},
    PickleName{"_codecs", "encode", PickleCall::kEncode},
    PickleName{"numpy", "dtype", PickleCall::kNumpyDtype},
    PickleName{"numpy", "ndarray", PickleCall::kNothing},
    PickleName{"numpy.core.multiarray", "scalar", PickleCall::kNumpyScalar},
    PickleName{"numpy._core.multiarray", "scalar", PickleCall::kNumpyScalar},
    PickleName{"numpy.core.numeric", "_frombuffer", PickleCall::kNumpyBuffer},
    PickleName{"numpy._core.numeric", "_frombuffer", PickleCall::kNumpyBuffer},
    PickleName{"numpy.core.multiarray", "_reconstruct", PickleCall::kNumpyArray},
    PickleName{"numpy._core.multiarray", "_reconstruct", PickleCall::kNumpyArray},
};

struct NumpyDtype {
  std::string_view name;
  Dtype dtype;
};
inline constexpr std::array kNumpyDtypes = {
    NumpyDtype{"b1", Dtype::kBool}, NumpyDtype{"u1", Dtype::kU8},  NumpyDtype{"i1", Dtype::kI8},
    NumpyDtype{"u2", Dtype::kU16},  NumpyDtype{"i2", Dtype::kI16}, NumpyDtype{"u4", Dtype::kU32},
    NumpyDtype{"i4", Dtype::kI32},  NumpyDtype{"u8", Dtype::kU64}, NumpyDtype{"i8", Dtype::kI64},
    NumpyDtype{"f2", Dtype::kF16},  NumpyDtype{"f4", Dtype::kF32}, NumpyDtype{"f8", Dtype::kF64},
};

}  // namespace grace
