// A stand-in for ggml: the functions of its C interface that libisthmus_ggml.so uses, over tensors with a
// layout of their own, and what a test needs to build backends and to read what was called.
//
// The library libstandin_ggml.so looks up its registry functions through the linker's table, as
// libggml-base.so does: a preloaded definition is called instead.
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
}

namespace standin {

enum class kind { cpu, cuda, cuda_static, cuda_no_events, cuda_restless, vulkan, sycl };
enum class type : std::int32_t { f32 = 0, f16 = 1, q8_0 = 8, i32 = 26, bf16 = 30 };

// What a registry's own trio was asked, and what happened to the backends.
struct calls {
  int init = 0, allreduce = 0, free = 0;
  std::vector<ggml_backend*> backends;  // of the last init
  int events = 0, events_freed = 0, synchronized = 0;
};
calls& recorded();

// A registry of `kind` with n devices, each with one backend. `has_trio`: it has an allreduce of its own.
std::vector<ggml_backend*> make_backends(kind what, std::size_t n, bool has_trio);
// SYCL backends on queues of the test's; `record` records an event on a queue.
std::vector<ggml_backend*> make_sycl_backends(const std::vector<void*>& queues, void (*record)(void* queue),
                                              bool has_trio = false);
ggml_backend_reg* registry_of(ggml_backend* backend);
void* stream_of(ggml_backend* backend);  // of the CUDA kinds
int ordinal_of(ggml_backend* backend);   // counted downwards, unlike the position

ggml_tensor* make_tensor(type what, void* data, std::int64_t count, bool computed, bool contiguous = true);

// As the meta backend does it.
struct trio {
  void* (*init)(ggml_backend** backends, std::size_t n);
  void (*free)(void* comm);
  bool (*allreduce)(void* comm, ggml_tensor** tensors);
};
trio look_up(ggml_backend_reg* registry);
trio own_trio();

}  // namespace standin
