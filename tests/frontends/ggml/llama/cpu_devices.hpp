// CPU devices with separate memory for ggml's meta backend. It refuses to split a model over plain CPU devices,
// because it treats host memory as memory for tensors that are not split.
#pragma once

#include <cstddef>
#include <vector>

#include "ggml-backend.h"

// Creates n devices of one registry without a native allreduce. They live as long as the process.
std::vector<ggml_backend_dev_t> make_cpu_devices(std::size_t n);
