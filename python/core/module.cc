#include "bind.h"

namespace grace::python {
namespace {

py::buffer_info buffer_of(Array& array) {
  return std::visit(
      [&](auto& values) {
        using T = typename std::decay_t<decltype(values)>::value_type;
        std::vector<py::ssize_t> strides(array.shape.size());
        py::ssize_t step = sizeof(T);
        for (std::size_t axis = array.shape.size(); axis-- > 0;) {
          strides[axis] = step;
          step *= array.shape[axis];
        }
        return py::buffer_info(values.data(), sizeof(T), py::format_descriptor<T>::format(),
                               static_cast<py::ssize_t>(array.shape.size()), array.shape, strides);
      },
      array.values);
}

}  // namespace

void raise(const Error& error) {
  PyObject* kind = PyExc_RuntimeError;
  if (error.kind == ErrorKind::kInvalidInput) kind = PyExc_ValueError;
  if (error.kind == ErrorKind::kUnsupported) kind = PyExc_NotImplementedError;
  if (error.kind == ErrorKind::kIo) kind = PyExc_OSError;
  PyErr_SetString(kind, error.message.c_str());
  throw py::error_already_set();
}

PYBIND11_MODULE(_core, module) {
  module.doc() = "The planner of grace-moe; use it through the package grace_moe.";
  module.attr("__version__") = GRACE_VERSION;
  py::class_<Array>(module, "Array", py::buffer_protocol()).def_buffer(&buffer_of);
  bind_data(module);
  bind_planning(module);
  bind_interop(module);
}

}  // namespace grace::python
