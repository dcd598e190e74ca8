// Bindings of types.h: enumerations and the collective table (generated from collectives.def),
// and the exception.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "common.hpp"

namespace isthmus::python {
namespace {

void bind_status(nb::module_& module) {
  nb::enum_<isthmus_status> status(module, "Status", nb::is_arithmetic());
  for (int value = ISTHMUS_SUCCESS; value <= ISTHMUS_ERROR_INTERNAL; ++value) {
    const auto code = static_cast<isthmus_status>(value);
    status.value(isthmus_status_name(code), code);
  }
}

// Binds an enumeration of the collective table. The C ABI provides the names of its values.
template <typename Enumeration>
void bind_names(nb::module_& module, const char* name, Enumeration end,
                const char* (*value_name)(Enumeration)) {
  nb::enum_<Enumeration> bound(module, name, nb::is_arithmetic());
  for (int index = 0; index < end; ++index) {
    const auto value = static_cast<Enumeration>(index);
    bound.value(value_name(value), value);
  }
}

// The rows of the collective table, in column order. isthmus.table defines the column names.
using collective_row = std::tuple<isthmus_collective, std::string, bool, std::string, std::string, std::string,
                                  std::string, std::string>;
std::vector<collective_row> collective_rows() {
  return {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {ISTHMUS_##NAME, #peer,    static_cast<bool>(reduces), #send_ranks, #send_extent, #recv_ranks,        \
   #recv_extent,   #in_place},
#include <isthmus/collectives.def>
  };
}

using datatype_row = std::tuple<isthmus_datatype, int, std::string>;
std::vector<datatype_row> datatype_rows() {
  return {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) {ISTHMUS_##NAME, bytes, #kind},
#include <isthmus/collectives.def>
  };
}

}  // namespace

void bind_types(nb::module_& module) {
  bind_names(module, "Collective", ISTHMUS_COLLECTIVE_COUNT, &isthmus_collective_name);
  bind_names(module, "Datatype", ISTHMUS_DATATYPE_COUNT, &isthmus_datatype_name);
  bind_names(module, "ReductionOp", ISTHMUS_REDUCTION_OP_COUNT, &isthmus_reduction_op_name);
  bind_names(module, "Platform", ISTHMUS_PLATFORM_COUNT, &isthmus_platform_name);
  bind_status(module);

  module.def("collective_rows", &collective_rows);
  module.def("datatype_rows", &datatype_rows);
  module.def("version", &isthmus_version);
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const core_error& error) {
      set_error(error.info, error.ranks);
    }
  });
}

}  // namespace isthmus::python
