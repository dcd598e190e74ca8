// A stand-in for ggml: the C functions that libisthmus_ggml.so uses, on tensors with a different layout, and
// functions for tests that create backends and read what was called.
//
// Like libggml-base.so, libstandin_ggml.so calls its registry functions through the dynamic linker, so a
// preloaded definition takes precedence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct ggml_tensor;
struct ggml_backend;
struct ggml_backend_reg;

extern "C" {
void* ggml_backend_reg_get_proc_address(ggml_backend_reg* registry, const char* name);
// Calls it from the library that contains this function.
void* standin_look_up(ggml_backend_reg* registry, const char* name);
}

namespace standin {

enum class kind { cpu, cuda, cuda_static, cuda_no_events, cuda_restless, vulkan, sycl };
enum class type : std::int32_t { f32 = 0, f16 = 1, q8_0 = 8, i32 = 26, bf16 = 30 };

// Calls of a registry's own comm functions, and operations on the backends.
struct calls {
  int init = 0, allreduce = 0, free = 0;
  std::vector<ggml_backend*> backends;  // from the last init
  int events = 0, events_freed = 0, synchronized = 0;
};
calls& recorded();

// Creates a registry of this kind with n devices, each with one backend. `has_allreduce`: it has its own allreduce.
std::vector<ggml_backend*> make_backends(kind backend_kind, std::size_t n, bool has_allreduce);
// SYCL backends on the given queues; `record` records an event on a queue.
std::vector<ggml_backend*> make_sycl_backends(const std::vector<void*>& queues, void (*record)(void* queue),
                                              bool has_allreduce = false);
ggml_backend_reg* registry_of(ggml_backend* backend);
void* stream_of(ggml_backend* backend);  // CUDA kinds only
int ordinal_of(ggml_backend* backend);   // decreasing, unlike the position

ggml_tensor* make_tensor(type datatype, void* data, std::int64_t count, bool computed, bool contiguous = true);

// Looks up the comm functions like the meta backend.
struct comm_functions {
  void* (*init)(ggml_backend** backends, std::size_t n);
  void (*free)(void* comm);
  bool (*allreduce)(void* comm, ggml_tensor** tensors);
};
comm_functions look_up(ggml_backend_reg* registry);
comm_functions own_functions();

}  // namespace standin
