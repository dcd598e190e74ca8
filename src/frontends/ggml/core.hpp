// Functions of the core, libisthmus.so, which is opened when the first device group is created. Most programs
// into which this library is preloaded never create one and should not load the core's dependencies.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <string>

namespace isthmus::ggml {

struct core_functions {
  decltype(&isthmus_tensor_parallel_create) create;
  decltype(&isthmus_tensor_parallel_allreduce) allreduce;
  decltype(&isthmus_tensor_parallel_destroy) destroy;
  decltype(&isthmus_last_error) last_error;
};

// Returns NULL and sets `reason` if the core in this library's folder cannot be loaded. Thread-safe.
const core_functions* open_core(std::string& reason);

// Opens the library `name` in this library's folder. Returns NULL and sets `reason` on failure. The library is
// never closed, because kernels may be in flight at exit.
void* open_from_own_folder(const char* name, std::string& reason);

}  // namespace isthmus::ggml
