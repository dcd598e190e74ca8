// The part of ggml's C interface that this library uses: opaque types and function types. No layout of a ggml
// structure is declared here. tensor_layout finds the two tensor fields without accessors at run time, so
// another ggml release either works or is not used.
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
  void* pool;     // NULL if ggml allocates it
  bool no_alloc;  // if true, tensors get no data
};

using proc_address_function = void*(ggml_registry*, const char* name);

// The three functions that the meta backend looks up in the registry of its first device. comm_init gets a
// temporary array and returns NULL if unsupported. comm_allreduce gets one tensor per backend and returns false
// if it did nothing.
using comm_init = void*(ggml_backend** backends, std::size_t n);
using comm_free = void(void* comm);
using comm_allreduce = bool(void* comm, ggml_tensor** tensors);

}  // namespace isthmus::ggml
