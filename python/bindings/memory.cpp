// memory.h: arrays in the symmetric heap. An array shares the ownership of its communicator, whose
// destruction would release the memory under it.
#include <isthmus/memory.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common.hpp"

namespace isthmus::python {
namespace {

struct block {
  std::shared_ptr<membership> member;
  void* pointer = nullptr;

  ~block() {
    if (pointer != nullptr) {
      isthmus_memory_free(member->handle(), pointer);
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

// Uninitialised bytes; Python gives them their shape and dtype. Collective, so the GIL is released.
nb::ndarray<nb::array_api, uint8_t> allocate_symmetric(const communicator& self, uint64_t bytes) {
  auto owned = std::make_unique<block>(block{self.member(), nullptr});
  isthmus_device where{};
  check(isthmus_communicator_device(self.handle(), &where));
  check_released([&] { return isthmus_memory_allocate_symmetric(self.handle(), bytes, &owned->pointer); });
  void* pointer = owned->pointer;
  nb::capsule owner(owned.release(), [](void* dying) noexcept { delete static_cast<block*>(dying); });
  const size_t shape[] = {static_cast<size_t>(bytes)};
  return nb::ndarray<nb::array_api, uint8_t>(pointer, 1, shape, owner, nullptr, nb::dtype<uint8_t>(),
                                             dlpack_device(where.platform), where.ordinal);
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def("allocate_symmetric", &allocate_symmetric, nb::arg("communicator"), nb::arg("bytes"));
}

}  // namespace isthmus::python
