// The core, libisthmus.so, opened when the first communicator is made: most programs into which this library
// is preloaded never make one, and shall not be given the core's dependencies.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <string>

namespace isthmus::ggml {

struct core {
  decltype(&isthmus_tensor_parallel_init) init;
  decltype(&isthmus_tensor_parallel_allreduce) allreduce;
  decltype(&isthmus_tensor_parallel_free) free;
  decltype(&isthmus_last_error) last_error;
};

// NULL, and why in `reason`, where the library beside this one can't be loaded. Thread-safe.
const core* open_core(std::string& reason);

// The engine for SYCL queues, from the library beside this one that was built with a SYCL runtime. NULL, and
// why, where it was not built or where this process uses another SYCL runtime.
const isthmus_tensor_parallel_engine* open_sycl_engine(std::string& reason);

}  // namespace isthmus::ggml
