// The core, libisthmus.so, opened when the first communicator is made: most programs into which this library
// is preloaded never make one, and shall not be given the core's dependencies.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <string>

namespace isthmus::ggml {

struct core_functions {
  decltype(&isthmus_tensor_parallel_init) init;
  decltype(&isthmus_tensor_parallel_allreduce) allreduce;
  decltype(&isthmus_tensor_parallel_free) free;
  decltype(&isthmus_last_error) last_error;
};

// NULL, and why in `reason`, where the library beside this one can't be loaded. Thread-safe.
const core_functions* open_core(std::string& reason);

// The library `name` beside this one; NULL, and why, where it can't be loaded. It stays: kernels may be in
// flight at the end.
void* open_sibling(const char* name, std::string& reason);

}  // namespace isthmus::ggml
