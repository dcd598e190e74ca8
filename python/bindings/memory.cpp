// Bindings of memory.h: arrays in the symmetric heap and plain arrays of a device. An array in the symmetric
// heap shares ownership of its communicator, because destroying the communicator releases its memory.
#include <isthmus/memory.h>
#include <isthmus/tools.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "common.hpp"

namespace isthmus::python {
namespace {

struct symmetric_block {
  std::shared_ptr<native_communicator> native;
  void* pointer = nullptr;

  ~symmetric_block() {
    if (pointer != nullptr) {
      isthmus_memory_free_symmetric(native->handle(), pointer);
    }
  }
};

int dlpack_device(isthmus_platform platform) {
  switch (platform) {
    case ISTHMUS_PLATFORM_HOST: return nb::device::cpu::value;
    case ISTHMUS_PLATFORM_CUDA: return nb::device::cuda::value;
    case ISTHMUS_PLATFORM_HIP: return nb::device::rocm::value;
    case ISTHMUS_PLATFORM_LEVEL_ZERO: return nb::device::oneapi::value;
    case ISTHMUS_PLATFORM_OPENCL: return nb::device::opencl::value;
    case ISTHMUS_PLATFORM_COUNT: break;
  }
  throw nb::value_error("the communicator's device has no DLPack equivalent");
}

// Allocates uninitialized bytes. The Python code sets shape and dtype. The call is collective, so the
// GIL is released.
nb::ndarray<nb::array_api, uint8_t> allocate_symmetric(const python_communicator& self, uint64_t bytes) {
  auto allocation = std::make_unique<symmetric_block>(symmetric_block{self.native(), nullptr});
  isthmus_device device{};
  check(isthmus_communicator_device(self.handle(), &device));
  const active_call call(self);
  call.run([&] { return isthmus_memory_allocate_symmetric(call.handle(), bytes, &allocation->pointer); });
  void* pointer = allocation->pointer;
  nb::capsule owner(allocation.release(),
                    [](void* object) noexcept { delete static_cast<symmetric_block*>(object); });
  const size_t shape[] = {static_cast<size_t>(bytes)};
  return nb::ndarray<nb::array_api, uint8_t>(pointer, 1, shape, owner, nullptr, nb::dtype<uint8_t>(),
                                             dlpack_device(device.platform), device.ordinal);
}

// ---- plain memory ---------------------------------------------------------------------------------------

using device_pair = std::pair<isthmus_platform, int>;

isthmus_device native_device(const device_pair& device) { return {device.first, device.second}; }

struct plain_block {
  isthmus_device device;
  void* pointer = nullptr;

  ~plain_block() {
    if (pointer != nullptr) {
      isthmus_memory_free_device(device, pointer);
    }
  }
};

// Allocates uninitialized bytes, like allocate_symmetric. The driver can be slow, so the GIL is released.
nb::ndarray<nb::array_api, uint8_t> allocate_device(const device_pair& device, uint64_t bytes, bool unpooled) {
  auto allocation = std::make_unique<plain_block>(plain_block{native_device(device), nullptr});
  const isthmus_memory_options options{
      .struct_bytes = sizeof options, .unpooled = unpooled ? 1 : 0, .growable = 0, .native_context = nullptr};
  check_without_gil([&] {
    return isthmus_memory_allocate_device(allocation->device, bytes, &options, &allocation->pointer);
  });
  void* pointer = allocation->pointer;
  nb::capsule owner(allocation.release(),
                    [](void* object) noexcept { delete static_cast<plain_block*>(object); });
  const size_t shape[] = {static_cast<size_t>(bytes)};
  return nb::ndarray<nb::array_api, uint8_t>(pointer, 1, shape, owner, nullptr, nb::dtype<uint8_t>(),
                                             dlpack_device(device.first), device.second);
}

// Returns (platform, ordinal, block address, bytes, provider, pooled) of the block that contains an address.
std::tuple<isthmus_platform, int, uint64_t, uint64_t, text, bool> query(uint64_t address) {
  isthmus_memory_info info{};
  check(isthmus_memory_query(reinterpret_cast<const void*>(address), &info));
  return {info.device.platform, info.device.ordinal, reinterpret_cast<uint64_t>(info.begin),
          info.bytes,           text(info.provider), info.pooled != 0};
}

text explain_memory(const device_pair& device) {
  return read_text([&](char* buffer, size_t capacity, size_t* required_bytes) {
    return isthmus_memory_explain(native_device(device), buffer, capacity, required_bytes);
  });
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def("allocate_symmetric", &allocate_symmetric, nb::arg("communicator"), nb::arg("bytes"));
  module.def("allocate_device", &allocate_device, nb::arg("device"), nb::arg("bytes"), nb::arg("unpooled"));
  module.def("query_memory", &query, nb::arg("address"));
  module.def("explain_memory", &explain_memory, nb::arg("device"));
  module.def("live_blocks", &isthmus_memory_live_blocks);
  module.def(
      "trim_memory", [](const device_pair& device) { check(isthmus_memory_trim(native_device(device))); },
      nb::arg("device"));
}

}  // namespace isthmus::python
