// ggml's structures of devices and buffers, as ggml-backend.h. Functions that the probe does not provide are pointers.
#pragma once

#include "ggml-backend.h"

constexpr int GGML_BACKEND_API_VERSION = 2;

struct ggml_backend_buffer_type_i {
  const char* (*get_name)(ggml_backend_buffer_type_t type);
  ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t type, std::size_t bytes);
  void* alloc_buffer_n;
  std::size_t (*get_alignment)(ggml_backend_buffer_type_t type);
  void* other[3];
  bool (*is_host)(ggml_backend_buffer_type_t type);
};

struct ggml_backend_buffer_type {
  ggml_backend_buffer_type_i iface;
  ggml_backend_dev_t device;
  void* context;
};

struct ggml_backend_buffer {
  void* functions[11];
  ggml_backend_buffer_type_t buft;
};

struct ggml_backend {
  void* guid;
  void* functions[16];
  ggml_backend_dev_t device;
};

struct ggml_backend_device_i {
  const char* (*get_name)(ggml_backend_dev_t device);
  const char* (*get_description)(ggml_backend_dev_t device);
  void (*get_memory)(ggml_backend_dev_t device, std::size_t* free, std::size_t* total);
  enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t device);
  void (*get_props)(ggml_backend_dev_t device, ggml_backend_dev_props* properties);
  ggml_backend_t (*init_backend)(ggml_backend_dev_t device, const char* parameters);
  ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t device);
  void* other[2];
  bool (*supports_op)(ggml_backend_dev_t device, const ggml_tensor* operation);
  bool (*supports_buft)(ggml_backend_dev_t device, ggml_backend_buffer_type_t type);
  void* more[4];
};

struct ggml_backend_device {
  ggml_backend_device_i iface;
  ggml_backend_reg_t reg;
  void* context;
};

struct ggml_backend_reg_i {
  const char* (*get_name)(ggml_backend_reg_t registry);
  std::size_t (*get_device_count)(ggml_backend_reg_t registry);
  ggml_backend_dev_t (*get_device)(ggml_backend_reg_t registry, std::size_t index);
  void* (*get_proc_address)(ggml_backend_reg_t registry, const char* name);
};

struct ggml_backend_reg {
  int api_version;
  ggml_backend_reg_i iface;
  void* context;
};
