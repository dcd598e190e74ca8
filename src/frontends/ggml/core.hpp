// The libraries of Isthmus that are opened when the first device group is created: the core, libisthmus.so, and the
// engine for the program's SYCL runtime. Most programs into which this library is preloaded never create a group and
// should not load the core's dependencies.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <string>

// sycl::event sycl::queue::ext_oneapi_submit_barrier(const detail::code_location&), which ggml uses
// to record an event.
#define ISTHMUS_SYCL_SUBMIT_BARRIER \
  "_ZN4sycl3_V15queue25ext_oneapi_submit_barrierERKNS0_6detail13code_locationE"

namespace isthmus::ggml {

struct core_functions {
  decltype(&isthmus_tensor_parallel_create) create;
  decltype(&isthmus_tensor_parallel_allreduce) allreduce;
  decltype(&isthmus_tensor_parallel_destroy) destroy;
  decltype(&isthmus_last_error) last_error;
};

// Returns NULL and sets `reason` if the core in this library's folder cannot be loaded. Thread-safe.
const core_functions* open_core(std::string& reason);

// Opens the engine for the SYCL runtime whose submit_barrier is at `function`, from this library's folder. DPC++
// releases have incompatible runtimes (libsycl.so.8, .9), and each program comes with its own, so there is one engine
// per runtime. Returns NULL and sets `reason` if there is no engine for that runtime.
const isthmus_tensor_parallel_engine* open_sycl_engine(const void* function, std::string& reason);

}  // namespace isthmus::ggml
