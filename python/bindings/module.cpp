// The extension module isthmus._isthmus: a thin layer on the C ABI. The public interface is the Python package.
#include "common.hpp"

NB_MODULE(_isthmus, module) {
  module.doc() = "Bindings of libisthmus' C ABI; use the package isthmus instead.";
  isthmus::python::bind_types(module);
  isthmus::python::bind_buffer(module);
  isthmus::python::bind_communicator(module);
  isthmus::python::bind_operations(module);
  isthmus::python::bind_memory(module);
  isthmus::python::bind_fused(module);
}
