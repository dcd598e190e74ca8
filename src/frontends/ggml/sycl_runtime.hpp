// Selects the engine that was built for the SYCL runtime of ggml's queues. DPC++ releases have incompatible
// runtimes (libsycl.so.8, .9), and each program comes with its own, so there is one engine per runtime.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <string>

// sycl::event sycl::queue::ext_oneapi_submit_barrier(const detail::code_location&), which ggml uses
// to record an event.
#define ISTHMUS_SYCL_SUBMIT_BARRIER \
  "_ZN4sycl3_V15queue25ext_oneapi_submit_barrierERKNS0_6detail13code_locationE"

namespace isthmus::ggml {

// Opens the engine for the runtime whose submit_barrier is at `function`, from this library's folder. Returns
// NULL and sets `reason` if there is no engine for that runtime.
const isthmus_tensor_parallel_engine* open_sycl_engine(const void* function, std::string& reason);

}  // namespace isthmus::ggml
