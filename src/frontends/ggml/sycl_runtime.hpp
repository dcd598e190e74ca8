// The SYCL runtime that ggml's queues belong to, and the engine that was built for it. Releases of DPC++ have
// runtimes that are incompatible (libsycl.so.8, .9), and a program brings its own, so there is an engine for
// each.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <string>

// sycl::event sycl::queue::ext_oneapi_submit_barrier(const detail::code_location&), which is what ggml records
// an event with.
#define ISTHMUS_SYCL_SUBMIT_BARRIER \
  "_ZN4sycl3_V15queue25ext_oneapi_submit_barrierERKNS0_6detail13code_locationE"

namespace isthmus::ggml {

// The engine for queues of the runtime whose submit_barrier is at `function`, from the library beside this one.
// NULL, and why, for a runtime that no engine was built with.
const isthmus_tensor_parallel_engine* open_sycl_engine(const void* function, std::string& reason);

}  // namespace isthmus::ggml
