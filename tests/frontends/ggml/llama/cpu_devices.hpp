// Devices with memory of their own that compute on the CPU, for ggml's meta backend. It refuses to split a
// model over plain CPU devices: their memory is the host's, which it takes for tensors that are not split.
#pragma once

#include <cstddef>
#include <vector>

#include "ggml-backend.h"

// n devices of one registry, without an allreduce of their own. They stay for the life of the process.
std::vector<ggml_backend_dev_t> make_cpu_devices(std::size_t n);
