// Buffer: memory of an array of any library, imported through DLPack or the buffer protocol without a copy.
// Checks of arguments and their error messages are in isthmus/_buffers.py.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "common.hpp"

namespace isthmus::python {
namespace {

using read_only_array = nb::ndarray<nb::ro>;

struct buffer {
  read_only_array array;  // keeps the memory alive
  std::optional<isthmus_datatype> datatype;
  bool writable;
  bool contiguous;
};

// Returns the datatype of a DLPack element type, or none if it is not supported (complex, bool, ...).
std::optional<isthmus_datatype> datatype_of(nb::dlpack::dtype type) {
  if (type.lanes != 1) {
    return std::nullopt;
  }
  switch (static_cast<nb::dlpack::dtype_code>(type.code)) {
    case nb::dlpack::dtype_code::Int:
      return type.bits == 8    ? std::optional(ISTHMUS_INT8)
             : type.bits == 16 ? std::optional(ISTHMUS_INT16)
             : type.bits == 32 ? std::optional(ISTHMUS_INT32)
             : type.bits == 64 ? std::optional(ISTHMUS_INT64)
                               : std::nullopt;
    case nb::dlpack::dtype_code::UInt:
      return type.bits == 8    ? std::optional(ISTHMUS_UINT8)
             : type.bits == 16 ? std::optional(ISTHMUS_UINT16)
             : type.bits == 32 ? std::optional(ISTHMUS_UINT32)
             : type.bits == 64 ? std::optional(ISTHMUS_UINT64)
                               : std::nullopt;
    case nb::dlpack::dtype_code::Float:
      return type.bits == 16   ? std::optional(ISTHMUS_FLOAT16)
             : type.bits == 32 ? std::optional(ISTHMUS_FLOAT32)
             : type.bits == 64 ? std::optional(ISTHMUS_FLOAT64)
                               : std::nullopt;
    case nb::dlpack::dtype_code::Bfloat:
      return type.bits == 16 ? std::optional(ISTHMUS_BFLOAT16) : std::nullopt;
    case nb::dlpack::dtype_code::Float8_E4M3FN: return ISTHMUS_FLOAT8_E4M3;
    case nb::dlpack::dtype_code::Float8_E5M2: return ISTHMUS_FLOAT8_E5M2;
    default:  // unknown or unsupported DLPack type
      return std::nullopt;
  }
}

bool is_contiguous(const read_only_array& array) {
  if (array.size() == 0) {
    return true;
  }
  int64_t expected = 1;
  for (size_t axis = array.ndim(); axis-- > 0;) {
    if (array.shape(axis) != 1 && array.stride(axis) != expected) {
      return false;
    }
    expected *= static_cast<int64_t>(array.shape(axis));
  }
  return true;
}

// Returns none if the object supports neither protocol, or if its element type cannot be expressed in them.
std::optional<buffer> import_buffer(nb::handle object) {
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable, false)) {
    read_only_array array(writable);
    return buffer{array, datatype_of(array.dtype()), true, is_contiguous(array)};
  }
  PyErr_Clear();
  read_only_array array;
  if (nb::try_cast(object, array, false)) {
    return buffer{array, datatype_of(array.dtype()), false, is_contiguous(array)};
  }
  PyErr_Clear();
  return std::nullopt;
}

}  // namespace

void bind_buffer(nb::module_& module) {
  nb::class_<buffer>(module, "Buffer", "The memory of an array; keeps it alive.")
      .def_prop_ro("address", [](const buffer& self) { return reinterpret_cast<uintptr_t>(self.array.data()); })
      .def_prop_ro("elements", [](const buffer& self) { return self.array.size(); })
      .def_prop_ro("item_bytes", [](const buffer& self) { return self.array.itemsize(); })
      .def_ro("datatype", &buffer::datatype)
      .def_ro("writable", &buffer::writable)
      .def_ro("contiguous", &buffer::contiguous)
      .def_prop_ro("device_type", [](const buffer& self) { return self.array.device_type(); })
      .def_prop_ro("device_id", [](const buffer& self) { return self.array.device_id(); });
  module.def("import_buffer", &import_buffer, nb::arg("object"));
}

}  // namespace isthmus::python
