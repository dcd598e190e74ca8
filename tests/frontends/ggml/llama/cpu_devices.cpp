#include "cpu_devices.hpp"

#include <memory>
#include <string>

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"

namespace {

struct cpu_device {
  std::string name;
  ggml_backend_device device;
  ggml_backend_buffer_type buffers;
};

ggml_backend_dev_t real() { return ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0); }
cpu_device& device_data(ggml_backend_dev_t device) { return *static_cast<cpu_device*>(device->context); }

// Buffers of the CPU that do not report themselves as host memory.
const char* buffer_name(ggml_backend_buffer_type_t type) {
  return static_cast<cpu_device*>(type->context)->name.c_str();
}
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, std::size_t bytes) {
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), bytes);
  if (buffer != nullptr) buffer->buft = type;
  return buffer;
}
std::size_t alignment(ggml_backend_buffer_type_t) {
  return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}
bool is_host(ggml_backend_buffer_type_t) { return false; }

const char* name(ggml_backend_dev_t device) { return device_data(device).name.c_str(); }
const char* description(ggml_backend_dev_t) { return "a share of the CPU"; }
void memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
  ggml_backend_dev_memory(real(), free, total);
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_CPU; }
void properties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  ggml_backend_dev_get_props(real(), properties);
  properties->name = name(device);
}
ggml_backend_t start(ggml_backend_dev_t device, const char* parameters) {
  ggml_backend_t backend = ggml_backend_dev_init(real(), parameters);
  if (backend == nullptr) return nullptr;
  backend->device = device;
  ggml_backend_cpu_set_n_threads(backend, 1);
  return backend;
}
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device) { return &device_data(device).buffers; }
bool supports(ggml_backend_dev_t, const ggml_tensor* operation) {
  return ggml_backend_dev_supports_op(real(), operation);
}
bool supports_buffers(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
  return type == &device_data(device).buffers;
}

std::vector<std::unique_ptr<cpu_device>>& all() {
  static auto* devices = new std::vector<std::unique_ptr<cpu_device>>;
  return *devices;
}
const char* registry_name(ggml_backend_reg_t) { return "CPU shares"; }
std::size_t count(ggml_backend_reg_t) { return all().size(); }
ggml_backend_dev_t get(ggml_backend_reg_t, std::size_t i) { return &all()[i]->device; }

}  // namespace

std::vector<ggml_backend_dev_t> make_cpu_devices(std::size_t n) {
  static ggml_backend_reg registry{GGML_BACKEND_API_VERSION, {registry_name, count, get, nullptr}, nullptr};
  std::vector<ggml_backend_dev_t> new_devices;
  for (std::size_t i = 0; i < n; ++i) {
    auto& device = *all().emplace_back(std::make_unique<cpu_device>());
    device.name = "SHARE" + std::to_string(i);
    ggml_backend_buffer_type_i buffer_functions{};
    buffer_functions.get_name = buffer_name;
    buffer_functions.alloc_buffer = allocate;
    buffer_functions.get_alignment = alignment;
    buffer_functions.is_host = is_host;
    device.buffers = {buffer_functions, &device.device, &device};
    ggml_backend_device_i functions{};
    functions.get_name = name;
    functions.get_description = description;
    functions.get_memory = memory;
    functions.get_type = device_type;
    functions.get_props = properties;
    functions.init_backend = start;
    functions.get_buffer_type = buffer_type;
    functions.supports_op = supports;
    functions.supports_buft = supports_buffers;
    device.device = {functions, &registry, &device};
    new_devices.push_back(&device.device);
  }
  return new_devices;
}
