// The part of ggml's C interface that the probe (../../llama/probe.cpp) uses, for a llama.cpp build without
// headers. Names and layouts are those of the release in ../llama.txt.
#pragma once

#include <cstddef>

struct ggml_backend_device;
using ggml_backend_dev_t = ggml_backend_device*;

enum ggml_log_level { GGML_LOG_LEVEL_ERROR = 4, GGML_LOG_LEVEL_CONT = 5 };
enum ggml_backend_dev_type { GGML_BACKEND_DEVICE_TYPE_GPU = 1 };

extern "C" {
void ggml_backend_load_all();
std::size_t ggml_backend_dev_count();
ggml_backend_dev_t ggml_backend_dev_get(std::size_t index);
ggml_backend_dev_t ggml_backend_dev_by_name(const char* name);
int ggml_backend_dev_type(ggml_backend_dev_t device);
}
