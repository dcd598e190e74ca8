// A plug-in with a tensor-parallel engine for CUDA devices, also used as the SYCL engine of runtimes that do
// not exist. It sums on the host and logs what it was opened with.
#include "engine.hpp"

#include <isthmus/backend.h>
#include <isthmus/tensor_parallel.h>

#include <cstdint>
#include <vector>

namespace {

void* open(int n, const isthmus_device* devices, const isthmus_stream* streams, double, char*, std::size_t) {
  standin_engine_log& log = *standin_engine_opened();
  log.devices.assign(devices, devices + n);
  log.streams.assign(streams, streams + n);
  return &log;
}

bool allreduce(void* state, void* const* pointers, std::uint64_t count, isthmus_datatype datatype,
               std::uint64_t active, isthmus_tensor_parallel_algorithm, bool bfloat16_wire) {
  auto& log = *static_cast<standin_engine_log*>(state);
  log.bfloat16_wire = bfloat16_wire;
  ++log.calls;
  if (datatype != ISTHMUS_FLOAT32 || log.fails) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (std::size_t rank = 0; rank < log.devices.size(); ++rank)
      if ((active >> rank & 1u) != 0) sum += static_cast<float*>(pointers[rank])[i];
    for (std::size_t rank = 0; rank < log.devices.size(); ++rank) static_cast<float*>(pointers[rank])[i] = sum;
  }
  return true;
}

void close(void* state) { ++static_cast<standin_engine_log*>(state)->closed; }

isthmus_status create(const isthmus_backend_context* context, void**) {
  return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, __FILE__, "", "%s", "an engine only");
}
void destroy(void*) {}
const char* supports(void*, const isthmus_operation*, int) { return "it is an engine only"; }
isthmus_status enqueue(void*, const isthmus_operation*, const int*, std::size_t) {
  return ISTHMUS_ERROR_UNSUPPORTED;
}

}  // namespace

standin_engine_log* standin_engine_opened() {
  static standin_engine_log log;
  return &log;
}

extern "C" __attribute__((visibility("default"))) const isthmus_tensor_parallel_engine*
isthmus_tensor_parallel_engine_v1(void) {
  static const isthmus_tensor_parallel_engine engine = {
      .struct_bytes = sizeof engine,
      .abi_version = ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI,
      .platforms = 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_LEVEL_ZERO,
      .name = "standin",
      .open = open,
      .allreduce = allreduce,
      .close = close};
  return &engine;
}

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  static isthmus_backend backend{};
  backend.struct_bytes = sizeof backend;
  backend.magic = ISTHMUS_BACKEND_MAGIC;
  backend.abi_version = ISTHMUS_BACKEND_ABI;
  backend.name = "standin_engine";
  backend.description = "a tensor-parallel engine for tests";
  backend.platforms = 1u << ISTHMUS_PLATFORM_CUDA;
  backend.create = create;
  backend.destroy = destroy;
  backend.supports = supports;
  backend.enqueue = enqueue;
  return &backend;
}
