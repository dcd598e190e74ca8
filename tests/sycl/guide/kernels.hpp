// Lets g++ compile the program of docs/guide/sycl_gpus.md, which has kernels. NVRTC compiles their text on CUDA
// devices, for which DPC++'s runtime compiler generates no code. On other devices, host tasks run the work-items.
// SYCL orders both like kernels.
#pragma once

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <isthmus/sycl/mpi.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "device/driver.hpp"
#include "device/kernel_compiler.hpp"
#include "guide/device_text.hpp"  // generated: the kernels of the page

namespace guide {

using native = isthmus::detail::native_interop<isthmus::detail::cuda_backend>;

inline constexpr const char* cuda_prelude = R"(
namespace sycl {
template <int Dimensions>
struct id {
  unsigned long index;
  unsigned long operator[](int) const { return index; }
  operator unsigned long() const { return index; }
};
}
)";
inline constexpr const char* cuda_entry = R"(
extern "C" __global__ void entry(KERNEL kernel, unsigned long items) {
  const unsigned long i = blockIdx.x * static_cast<unsigned long>(blockDim.x) + threadIdx.x;
  if (i < items) kernel(sycl::id<1>{i});
}
)";

template <typename Kernel>
void launch_on_cuda(int device, isthmus_stream stream, Kernel kernel, unsigned long items) {
  std::string reason;
  isthmus::device_driver* const driver = isthmus::device_driver::get(ISTHMUS_PLATFORM_CUDA, reason);
  isthmus::kernel_compiler* const compiler =
      driver != nullptr ? isthmus::kernel_compiler::get(ISTHMUS_PLATFORM_CUDA, *driver, nullptr, reason)
                        : nullptr;
  if (compiler == nullptr) throw std::runtime_error(reason);
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(Kernel).name(), nullptr, nullptr, nullptr), &std::free);
  const std::string text = std::string(cuda_prelude) + device_text + cuda_entry;
  // The text has no CUDA keywords: all functions are device code by default.
  void* const entry = compiler->kernel(*driver, device,
                                       {name.get(),
                                        text.c_str(),
                                        "none.hpp",
                                        "",
                                        {std::string("KERNEL=") + name.get()},
                                        "entry",
                                        {"--device-as-default-execution-space"}});
  constexpr unsigned threads = 256;
  void* arguments[] = {&kernel, &items};
  driver->launch(device, entry, static_cast<unsigned>((items + threads - 1) / threads), threads, arguments,
                 stream);
}

// Returns the command group that stands for a kernel.
template <typename Kernel>
auto make_command(const sycl::queue& queue, const sycl::range<1>& items, const Kernel& kernel) {
  return [device = queue.get_device(), n = items[0], kernel](sycl::handler& handler) {
    if (device.get_backend() != isthmus::detail::cuda_backend) {
      handler.host_task([n, kernel] {
        for (std::size_t i = 0; i < n; ++i) kernel(sycl::id<1>(i));
      });
      return;
    }
    isthmus::detail::native_enqueue(handler, [ordinal = native::ordinal(device), n, kernel](auto& interop) {
      try {
        launch_on_cuda(ordinal, native::stream(interop), kernel, n);
      } catch (const std::exception& failure) {  // no exception may leave a native command
        std::fprintf(stderr, "kernel: %s\n", failure.what());
        std::_Exit(1);
      }
    });
  };
}

}  // namespace guide

// The page's queue is called `queue`.
#define parallel_for(items, ...) submit(guide::make_command(queue, items, __VA_ARGS__))
