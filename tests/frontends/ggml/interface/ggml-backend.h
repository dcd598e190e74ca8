// The part of ggml's C interface that the probe (../llama) uses, for a llama.cpp build without headers. Names and
// layouts are those of the release in ../sycl/llama.txt.
#pragma once

#include <cstddef>

struct ggml_backend;
struct ggml_backend_buffer;
struct ggml_backend_buffer_type;
struct ggml_backend_device;
struct ggml_backend_reg;
struct ggml_tensor;
using ggml_backend_t = ggml_backend*;
using ggml_backend_buffer_t = ggml_backend_buffer*;
using ggml_backend_buffer_type_t = ggml_backend_buffer_type*;
using ggml_backend_dev_t = ggml_backend_device*;
using ggml_backend_reg_t = ggml_backend_reg*;

enum ggml_log_level { GGML_LOG_LEVEL_ERROR = 4, GGML_LOG_LEVEL_CONT = 5 };
enum ggml_backend_dev_type { GGML_BACKEND_DEVICE_TYPE_CPU = 0, GGML_BACKEND_DEVICE_TYPE_GPU = 1 };

// The first field. Only ggml allocates this structure.
struct ggml_backend_dev_props {
  const char* name;
};

extern "C" {
void ggml_backend_load_all();
std::size_t ggml_backend_dev_count();
ggml_backend_dev_t ggml_backend_dev_get(std::size_t index);
ggml_backend_dev_t ggml_backend_dev_by_name(const char* name);
int ggml_backend_dev_type(ggml_backend_dev_t device);
ggml_backend_dev_t ggml_backend_reg_dev_get(ggml_backend_reg_t registry, std::size_t index);
ggml_backend_t ggml_backend_dev_init(ggml_backend_dev_t device, const char* parameters);
void ggml_backend_dev_memory(ggml_backend_dev_t device, std::size_t* free, std::size_t* total);
void ggml_backend_dev_get_props(ggml_backend_dev_t device, ggml_backend_dev_props* properties);
bool ggml_backend_dev_supports_op(ggml_backend_dev_t device, const ggml_tensor* operation);
ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t type, std::size_t bytes);
std::size_t ggml_backend_buft_get_alignment(ggml_backend_buffer_type_t type);
}
