// Adapts the parts of PyTorch's C++ interface that differ between the supported versions (2.6 and newer).
#pragma once

#include <c10/core/Stream.h>
#include <pybind11/pybind11.h>
#include <torch/version.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#define ISTHMUS_TORCH_OLDER_THAN(minor) (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < (minor))

namespace isthmus::torch_backend {

#if ISTHMUS_TORCH_OLDER_THAN(7)
enum class error_type { SUCCESS, TIMEOUT, COMM_ERROR, REMOTE_ERROR };
#else
using error_type = c10d::ErrorType;
#endif

// c10d::Backend with the functions that newer versions declare. Old versions do not call them.
class versioned_backend : public c10d::Backend {
 public:
  using Backend::Backend;
#if ISTHMUS_TORCH_OLDER_THAN(7)
  virtual bool supportsCoalescing() const = 0;
  virtual error_type getError() = 0;
  virtual bool supportsTensorAlloc(c10::DeviceIndex device) = 0;
  virtual at::Tensor allocateTensor(long elements, at::TensorOptions options) = 0;
  virtual void abort() = 0;
  virtual void shutdown() = 0;
#endif
#if ISTHMUS_TORCH_OLDER_THAN(9)
  virtual c10::intrusive_ptr<Options> getBackendOptions() = 0;
  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;
#endif
#if ISTHMUS_TORCH_OLDER_THAN(10)
  virtual bool supportsShrinking() const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                                   const c10::intrusive_ptr<Options>& new_options) = 0;
#endif
};

// These are templates, so that code for other versions is not compiled.

// Returns the store with a connection of its own. Before PyTorch 2.8, stores cannot be cloned.
template <typename Store>
c10::intrusive_ptr<c10d::Store> clone_store(const c10::intrusive_ptr<Store>& store) {
  if constexpr (requires { store->clone(); })
    return store->clone();
  else
    return store;
}

template <typename Options>
void set_group_name(Options& options, const std::string& name) {
  if constexpr (requires { options.group_name = name; }) options.group_name = name;
}

template <typename Backend>
void abort_backend(Backend& backend) {
  if constexpr (requires { backend.abort(); }) backend.abort();
}

template <typename Backend>
void shut_down_backend(Backend& backend) {
  if constexpr (requires { backend.shutdown(); }) backend.shutdown();
}

// Returns the cudaStream_t or hipStream_t. Before PyTorch 2.11, only Python returns it without the headers of CUDA.
template <typename Stream>
void* native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    static std::mutex mutex;
    static std::map<std::pair<c10::DeviceIndex, c10::StreamId>, void*> handles;  // streams are never destroyed
    const std::pair key{stream.device_index(), stream.id()};
    {
      const std::lock_guard lock(mutex);
      if (const auto cached = handles.find(key); cached != handles.end()) return cached->second;
    }
    std::uintptr_t handle = 0;
    {
      namespace py = pybind11;
      const py::gil_scoped_acquire gil;
      const auto python_stream =
          py::module_::import("torch.cuda")
              .attr("Stream")(py::arg("stream_id") = stream.id(),
                              py::arg("device_index") = int{stream.device_index()},
                              py::arg("device_type") = static_cast<int>(stream.device_type()));
      handle = python_stream.attr("cuda_stream").template cast<std::uintptr_t>();
    }
    const std::lock_guard lock(mutex);
    return handles[key] = reinterpret_cast<void*>(handle);
  }
}

}  // namespace isthmus::torch_backend
