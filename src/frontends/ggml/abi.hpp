// What this library uses of ggml's C interface: opaque types, and the types of functions that ggml exports.
// No layout of ggml's is declared here; the two fields of a tensor that have no accessor are found by
// experiment (tensor_layout.hpp), so that a ggml of another release is either understood or left alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::ggml {

struct ggml_backend;
struct ggml_context;
struct ggml_device;
struct ggml_event;
struct ggml_graph;
struct ggml_registry;
struct ggml_tensor;

struct context_parameters {
  std::size_t pool_bytes;
  void* pool;     // NULL: ggml allocates it
  bool no_alloc;  // tensors get no data
};

using find_procedure = void*(ggml_registry*, const char* name);

// The trio: what the meta backend looks up in the registry of its first device. init gets a temporary array;
// NULL means unsupported. allreduce gets one tensor for each backend; false means that nothing was done.
using comm_init = void*(ggml_backend** backends, std::size_t n);
using comm_free = void(void* comm);
using comm_allreduce = bool(void* comm, ggml_tensor** tensors);

}  // namespace isthmus::ggml
