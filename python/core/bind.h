// What the parts of the extension module share: arrays without a library of arrays, and errors.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"

namespace grace::python {

namespace py = pybind11;

// An owner of values of one type, row-major, that any library of arrays takes through Python's buffer
// protocol: so that the module depends on none and on no version of it.
struct Array {
  std::variant<std::vector<double>, std::vector<std::int64_t>, std::vector<std::int32_t>,
               std::vector<std::uint16_t>, std::vector<float>>
      values;
  std::vector<py::ssize_t> shape;
};
template <typename T>
Array array_of(std::vector<T> values, std::vector<py::ssize_t> shape) {
  return {std::move(values), std::move(shape)};
}

// The values of a C-contiguous buffer of T. Valid while the buffer lives and is not written. Throws
// ValueError for another type or order.
template <typename T>
std::span<const T> values_of(const py::buffer_info& buffer, const char* name) {
  if (!py::detail::compare_buffer_info<T>::compare(buffer))
    throw py::value_error(std::string(name) + ": an array of another type");
  py::ssize_t step = buffer.itemsize;
  for (py::ssize_t axis = buffer.ndim; axis-- > 0;) {
    const auto a = static_cast<std::size_t>(axis);
    if (buffer.shape[a] > 1 && buffer.strides[a] != step)
      throw py::value_error(std::string(name) + ": not contiguous");
    step *= buffer.shape[a];
  }
  return {static_cast<const T*>(buffer.ptr), static_cast<std::size_t>(buffer.size)};
}

// ValueError for what was asked or a file's content, NotImplementedError, OSError, RuntimeError.
[[noreturn]] void raise(const Error& error);
template <typename T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) raise(result.error());
  return std::move(result).value();
}
inline void raise_unless_ok(const Status& status) {
  if (!status.ok()) raise(status.error());
}

// Work done without the interpreter's lock. The result is made, and an error raised, with it.
template <typename Work>
auto unlocked(Work work) {
  const py::gil_scoped_release release;
  return work();
}

void bind_data(py::module_& module);      // Trace, LoadProfile, Cluster, Plan, their files
void bind_planning(py::module_& module);  // plan, evaluate, simulate, compare
void bind_interop(py::module_& module);   // import, export, rebalance_experts

}  // namespace grace::python
