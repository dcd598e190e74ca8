#include "ggml.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "runtime.hpp"

// The field order, offsets and size differ from those of ggml in November 2026.
struct ggml_tensor {
  std::int32_t type;
  std::int64_t count;
  void* data;
  char name[90];
  std::int32_t flags;
  bool contiguous;
  char tail[40];
};
struct ggml_backend_reg {
  const char* name;
  bool has_allreduce;
};
struct ggml_backend_device {
  ggml_backend_reg* registry;
  standin::kind kind;
  std::string name;
};
struct ggml_backend {
  ggml_backend_device* device;
  void* stream;
  int ordinal;
};
struct ggml_backend_event {
  int recorded;
};
struct ggml_context {
  std::vector<char> pool;
  std::size_t used;
};
struct ggml_cgraph {
  int nodes;
};
struct ggml_init_params {
  std::size_t mem_size;
  void* mem_buffer;
  bool no_alloc;
};

namespace {

constexpr std::int32_t input_flag = 1, output_flag = 2, compute_flag = 64;

// STANDIN_GGML selects how this ggml deviates from the real one.
bool is_odd(std::string_view failure_mode) {
  const char* setting = std::getenv("STANDIN_GGML");
  return setting != nullptr && failure_mode == setting;
}

void* own_init(ggml_backend** backends, std::size_t n) {
  ++standin::recorded().init;
  standin::recorded().backends.assign(backends, backends + n);
  return &standin::recorded();
}
void own_free(void*) { ++standin::recorded().free; }
bool own_allreduce(void*, ggml_tensor**) {
  ++standin::recorded().allreduce;
  return true;
}
void set_threads() {}
void (*record_on_queue)(void* queue) = nullptr;

template <typename Object>
Object* place(ggml_context* context) {
  void* address = context->pool.data() + context->used;
  context->used += (sizeof(Object) + 31) / 32 * 32;
  return new (address) Object{};
}

}  // namespace

extern "C" {

void* ggml_backend_reg_get_proc_address(ggml_backend_reg* registry, const char* name) {
  const std::string_view function_name = name;
  if (function_name == "ggml_backend_set_n_threads") return reinterpret_cast<void*>(&set_threads);
  if (!registry->has_allreduce) return nullptr;
  if (function_name == "ggml_backend_comm_init") return reinterpret_cast<void*>(&own_init);
  if (function_name == "ggml_backend_comm_free") return reinterpret_cast<void*>(&own_free);
  if (function_name == "ggml_backend_comm_allreduce_tensor") return reinterpret_cast<void*>(&own_allreduce);
  return nullptr;
}

ggml_backend_device* ggml_backend_get_device(ggml_backend* backend) { return backend->device; }
void ggml_backend_synchronize(ggml_backend*) { ++standin::recorded().synchronized; }
ggml_backend_reg* ggml_backend_dev_backend_reg(ggml_backend_device* device) { return device->registry; }
const char* ggml_backend_reg_name(ggml_backend_reg* registry) { return registry->name; }
const char* ggml_backend_dev_name(ggml_backend_device* device) { return device->name.c_str(); }
int ggml_backend_dev_type(ggml_backend_device* device) { return device->kind == standin::kind::cpu ? 0 : 1; }

ggml_backend_event* ggml_backend_event_new(ggml_backend_device* device) {
  if (device->kind == standin::kind::cuda_no_events) return nullptr;
  ++standin::recorded().events;
  return new ggml_backend_event{0};
}
void ggml_backend_event_free(ggml_backend_event* event) {
  ++standin::recorded().events_freed;
  delete event;
}
void ggml_backend_event_record(ggml_backend_event* event, ggml_backend* backend) {
  ++event->recorded;
  if (backend->device->kind == standin::kind::cuda_static) return;  // a statically linked runtime
  void* stream = backend->stream;
  if (backend->device->kind == standin::kind::sycl) return record_on_queue(stream);
  if (backend->device->kind == standin::kind::cuda_restless) {
    static int call_index = 0;
    stream = static_cast<char*>(stream) + ++call_index;
  }
  if (cudaEventRecord(event, stream) != 0) std::abort();
}
void ggml_backend_event_synchronize(ggml_backend_event* event) {
  if (event->recorded != 1) std::abort();
}

std::int64_t ggml_nelements(const ggml_tensor* tensor) { return tensor->count; }
bool ggml_is_contiguously_allocated(const ggml_tensor* tensor) { return tensor->contiguous; }
void* ggml_get_data(const ggml_tensor* tensor) { return tensor->data; }

ggml_context* ggml_init(ggml_init_params parameters) {
  if (!parameters.no_alloc || parameters.mem_buffer != nullptr || is_odd("no_context")) return nullptr;
  return new ggml_context{std::vector<char>(parameters.mem_size), 0};
}
void ggml_free(ggml_context* context) { delete context; }
const char* ggml_type_name(int type) {
  if (is_odd("other_types")) return "q4_0";
  return type == 0 ? "f32" : type == 1 ? "f16" : type == 30 ? "bf16" : "none";
}
ggml_tensor* ggml_new_tensor_1d(ggml_context* context, int type, std::int64_t count) {
  auto* tensor = place<ggml_tensor>(context);
  tensor->type = type;
  tensor->count = count;
  return tensor;
}
ggml_tensor* ggml_dup(ggml_context* context, ggml_tensor* source) {
  return ggml_new_tensor_1d(context, source->type, source->count);
}
void ggml_set_input(ggml_tensor* tensor) {
  tensor->flags |= input_flag;
  if (is_odd("two_words")) std::strcpy(tensor->name, "input");
}
void ggml_set_output(ggml_tensor* tensor) { tensor->flags |= output_flag; }
// A graph with gradients needs much more memory than the context has.
ggml_cgraph* ggml_new_graph_custom(ggml_context* context, std::size_t, bool has_gradients) {
  return has_gradients ? nullptr : place<ggml_cgraph>(context);
}
void ggml_build_forward_expand(ggml_cgraph* graph, ggml_tensor* tensor) {
  ++graph->nodes;
  if (!is_odd("no_compute_flag")) tensor->flags |= compute_flag;
}

void* standin_look_up(ggml_backend_reg* registry, const char* name) {
  void* volatile function = ggml_backend_reg_get_proc_address(registry, name);  // not a tail call
  return function;
}

}  // extern "C"

namespace standin {

calls& recorded() {
  static calls all;
  return all;
}

std::vector<ggml_backend*> make_backends(kind backend_kind, std::size_t n, bool has_allreduce) {
  const char* name = backend_kind == kind::cpu ? "CPU" : backend_kind == kind::vulkan ? "Vulkan" : "CUDA";
  auto* registry = new ggml_backend_reg{name, has_allreduce};
  std::vector<ggml_backend*> new_backends;
  for (std::size_t i = 0; i < n; ++i) {
    auto* device = new ggml_backend_device{registry, backend_kind, name + std::to_string(i)};
    const int ordinal = static_cast<int>(n - i) + 2;
    new_backends.push_back(new ggml_backend{device, make_stream(ordinal), ordinal});
  }
  return new_backends;
}

std::vector<ggml_backend*> make_sycl_backends(const std::vector<void*>& queues, void (*record)(void* queue),
                                              bool has_allreduce) {
  record_on_queue = record;
  auto* registry = new ggml_backend_reg{"SYCL", has_allreduce};
  std::vector<ggml_backend*> new_backends;
  for (void* queue : queues)
    new_backends.push_back(new ggml_backend{new ggml_backend_device{registry, kind::sycl, "SYCL"}, queue, 0});
  return new_backends;
}

ggml_backend_reg* registry_of(ggml_backend* backend) { return backend->device->registry; }
void* stream_of(ggml_backend* backend) { return backend->stream; }
int ordinal_of(ggml_backend* backend) { return backend->ordinal; }

ggml_tensor* make_tensor(type datatype, void* data, std::int64_t count, bool computed, bool contiguous) {
  auto* tensor = new ggml_tensor{};
  tensor->type = static_cast<std::int32_t>(datatype);
  tensor->count = count;
  tensor->data = data;
  tensor->flags = input_flag | (computed ? compute_flag : 0);
  tensor->contiguous = contiguous;
  return tensor;
}

comm_functions look_up(ggml_backend_reg* registry) {
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        ggml_backend_reg_get_proc_address(registry, name));
  };
  comm_functions found{};
  find("ggml_backend_comm_init", found.init);
  find("ggml_backend_comm_free", found.free);
  find("ggml_backend_comm_allreduce_tensor", found.allreduce);
  return found;
}

comm_functions own_functions() { return {own_init, own_free, own_allreduce}; }

}  // namespace standin
