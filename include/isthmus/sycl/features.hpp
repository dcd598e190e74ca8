// What differs between SYCL implementations, in one place. The rest of the front end is SYCL 2020.
//
// Known implementations: DPC++ (Intel oneAPI and the open compiler) and AdaptiveCpp. Others compile too:
// they get the standard's paths, and their devices get a platform through the configuration.
#ifndef ISTHMUS_SYCL_FEATURES_HPP
#define ISTHMUS_SYCL_FEATURES_HPP

#include <isthmus/types.h>

#include <cstddef>
#include <exception>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sycl/sycl.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__ADAPTIVECPP__) || defined(__ACPP__) || defined(__HIPSYCL__)
#define ISTHMUS_SYCL_ADAPTIVECPP 1
#elif defined(SYCL_IMPLEMENTATION_ONEAPI) || defined(SYCL_EXT_ONEAPI_FREE_FUNCTION_QUERIES)
#define ISTHMUS_SYCL_DPCPP 1
// sycl.hpp leaves HIP's traits out unless the compiler driver asked for them.
#if __has_include(<sycl/ext/oneapi/backend/hip.hpp>)
#include <sycl/ext/oneapi/backend/hip.hpp>
#endif
#endif

namespace isthmus::detail {

// Buffers of all shapes travel as one-dimensional buffers of bytes (the SuCL paper, section 4.2).
using byte_buffer = sycl::buffer<unsigned char, 1>;
using device_accessor = sycl::accessor<unsigned char, 1, sycl::access_mode::read_write, sycl::target::device>;

// ---- bfloat16 -----------------------------------------------------------------------------------------
#if defined(SYCL_EXT_ONEAPI_BFLOAT16)
using bfloat16 = sycl::ext::oneapi::bfloat16;
#else
struct bfloat16 {};  // matches no user type
#endif

// ---- is an in-order queue known to be empty? (a cheap test that saves a wait) -------------------------
/// Whether the in-order queue is known to be empty, which saves a wait. False is always a right answer.
/// Asked of the class, not of a macro: DPC++ 2025 announces khr_empty and leaves it out.
template <typename Queue>
bool is_known_idle(const Queue& queue) {
  if constexpr (requires { queue.khr_empty(); })
    return queue.khr_empty();
  else if constexpr (requires { queue.ext_oneapi_empty(); })
    return queue.ext_oneapi_empty();
  else
    return false;
}

// ---- native enqueue: run a function that puts work on the native stream, without a host wait ----------
#if defined(SYCL_EXT_CODEPLAY_ENQUEUE_NATIVE_COMMAND) || defined(SYCL_EXT_ONEAPI_ENQUEUE_NATIVE_COMMAND)
inline constexpr const char* native_enqueue_name = "ext_codeplay_enqueue_native_command";
/// Puts `body(interop_handle)` into the command group: it runs when the native stream is known, maybe in
/// another thread, and only enqueues on that stream. It must not throw.
template <typename Body>
void native_enqueue(sycl::handler& handler, Body body) {
  handler.ext_codeplay_enqueue_native_command(
      [body = std::move(body)](sycl::interop_handle interop) { body(interop); });
}
#elif defined(ACPP_EXT_ENQUEUE_CUSTOM_OPERATION)
inline constexpr const char* native_enqueue_name = "AdaptiveCpp_enqueue_custom_operation";
template <typename Body>
void native_enqueue(sycl::handler& handler, Body body) {
  handler.AdaptiveCpp_enqueue_custom_operation([=](sycl::interop_handle& interop) { body(interop); });
}
#elif defined(HIPSYCL_EXT_ENQUEUE_CUSTOM_OPERATION)
inline constexpr const char* native_enqueue_name = "hipSYCL_enqueue_custom_operation";
template <typename Body>
void native_enqueue(sycl::handler& handler, Body body) {
  handler.hipSYCL_enqueue_custom_operation([=](sycl::interop_handle& interop) { body(interop); });
}
#else
inline constexpr const char* native_enqueue_name = nullptr;  // this implementation has none
template <typename Body>
void native_enqueue(sycl::handler&, Body) {}
#endif

// ---- does this program have native commands for a platform? --------------------------------------------
// AdaptiveCpp launches them by code that its compiler makes for each backend; without it the first ends the
// program.
#if !defined(ISTHMUS_SYCL_ADAPTIVECPP)
inline bool has_native_commands(isthmus_platform) { return true; }
#else
#if defined(__ACPP_ENABLE_CUDA_TARGET__) || defined(__HIPSYCL_ENABLE_CUDA_TARGET__) || \
    defined(__ACPP_ENABLE_LLVM_SSCP_TARGET__) || defined(__HIPSYCL_ENABLE_LLVM_SSCP_TARGET__)
inline constexpr bool has_cuda_target = true;
#else
inline constexpr bool has_cuda_target = false;
#endif
#if defined(__ACPP_ENABLE_HIP_TARGET__) || defined(__HIPSYCL_ENABLE_HIP_TARGET__) || \
    defined(__ACPP_ENABLE_LLVM_SSCP_TARGET__) || defined(__HIPSYCL_ENABLE_LLVM_SSCP_TARGET__)
inline constexpr bool has_hip_target = true;
#else
inline constexpr bool has_hip_target = false;
#endif
inline bool has_native_commands(isthmus_platform platform) {
  return (platform != ISTHMUS_PLATFORM_CUDA || has_cuda_target) &&
         (platform != ISTHMUS_PLATFORM_HIP || has_hip_target);
}
#endif

// ---- dependencies of native commands -------------------------------------------------------------------
#if defined(ISTHMUS_SYCL_DPCPP) && defined(SYCL_EXT_ONEAPI_ENQUEUE_BARRIER)
/// Whether a native command comes after its dependencies without more.
inline constexpr bool has_ordered_native_commands = false;
/// Makes what is submitted to the queue next come after `events`. DPC++'s adapters for CUDA and HIP (2026.2)
/// choose a stream for a native command and do not make it wait for the command's dependencies in other
/// streams: other queues, and all of an out-of-order queue. A barrier waits for them, and every stream of its
/// queue for the barrier.
inline void order_after(sycl::queue& queue, const std::vector<sycl::event>& events) {
  if (!events.empty()) queue.ext_oneapi_submit_barrier(events);
}
/// The same for all that a command of the queue should have waited for.
inline void order_after_dependencies(sycl::queue& queue, sycl::event command) {
  order_after(queue, command.get_wait_list());
}
/// The same for what a command with these accessors, which `take(handler)` makes and returns, has to wait for:
/// one that does nothing finds out what that is.
template <typename MakeAccessors>
void order_after_accesses(sycl::queue& queue, MakeAccessors make_accessors) {
  order_after_dependencies(queue, queue.submit([&](sycl::handler& handler) {
    const auto views = make_accessors(handler);
    native_enqueue(handler, [views](auto&) {});
  }));
}
#else
inline constexpr bool has_ordered_native_commands = true;
inline void order_after(sycl::queue&, const std::vector<sycl::event>&) {}
inline void order_after_dependencies(sycl::queue&, const sycl::event&) {}
template <typename MakeAccessors>
void order_after_accesses(sycl::queue&, MakeAccessors) {}
#endif

// ---- work on the host, as a command of a queue ---------------------------------------------------------
#if defined(ISTHMUS_SYCL_ADAPTIVECPP)
/// Whether a command on `device` can run a function on the host once its dependencies are done. AdaptiveCpp has
/// no host_task. On its OpenMP backend the custom operation is one; on its other backends that function runs
/// when the graph is submitted, so host work there must be refused or done by a host that waits.
inline bool can_run_host_work(const sycl::device& device) { return device.get_backend() == sycl::backend::omp; }

/// Runs `body` on the host after the command group's dependencies; only where runs_host_work(device). What it
/// throws reaches the queue's async handler: AdaptiveCpp's threads would end the program, so it becomes an
/// error of its runtime, a sycl::exception that has the message.
template <typename Body>
void host_work(sycl::handler& handler, Body body) {
  // Accessors are found by address in this very lambda, so `body` must hold them by value.
  native_enqueue(handler, [=](sycl::interop_handle&) {
    try {
      body();
    } catch (const std::exception& failure) {
      hipsycl::rt::register_error(hipsycl::rt::make_error(__acpp_here(), {failure.what()}));
    }
  });
}

/// A command that does nothing: its event comes after the command group's dependencies, on every backend.
inline void submit_nothing(sycl::handler& handler) {
  native_enqueue(handler, [](sycl::interop_handle&) {});
}

/// The target of accessors that host_work uses.
inline constexpr sycl::target host_work_target = sycl::target::device;
#else
inline bool can_run_host_work(const sycl::device&) { return true; }
template <typename Body>
void host_work(sycl::handler& handler, Body body) {
  handler.host_task([=] { body(); });
}
inline void submit_nothing(sycl::handler& handler) {
  handler.host_task([] {});
}
inline constexpr sycl::target host_work_target = sycl::target::host_task;
#endif

// ---- commands that the runtime keeps back ----------------------------------------------------------------
#if defined(ISTHMUS_SYCL_ADAPTIVECPP)
/// Hands the commands submitted so far to their devices, without waiting for them to be done: native commands
/// have run when it returns. AdaptiveCpp keeps commands back until somebody waits for one.
inline void start_commands(const sycl::context& context) noexcept {
  context.AdaptiveCpp_runtime()->dag().flush_sync();
}
#else
inline void start_commands(const sycl::context&) noexcept {}
#endif

// ---- an event after everything that is on an in-order queue now ----------------------------------------
#if defined(SYCL_EXT_ONEAPI_ENQUEUE_BARRIER)
/// An event that is complete when everything that is on the in-order queue now is; the host does not wait.
inline sycl::event submit_marker(sycl::queue& queue) { return queue.ext_oneapi_submit_barrier(); }
#else
inline sycl::event submit_marker(sycl::queue& queue) {
  return queue.submit([](sycl::handler& handler) { join(handler); });
}
#endif

// ---- native objects -----------------------------------------------------------------------------------
/// The stream of a command, the memory of an accessor and the number of a device, for one sycl::backend that is
/// fixed at compile time.
template <sycl::backend Backend>
struct native_interop {
  template <typename Interop>
  static isthmus_stream stream(const Interop& interop) {
    return reinterpret_cast<isthmus_stream>(interop.template get_native_queue<Backend>());
  }
  template <typename Interop>
  static void* memory(const Interop& interop, const device_accessor& accessor) {
    return (void*)interop.template get_native_mem<Backend>(accessor);  // an integer or a pointer
  }
  static int ordinal(const sycl::device& device) { return static_cast<int>(sycl::get_native<Backend>(device)); }
};

#if defined(ISTHMUS_SYCL_ADAPTIVECPP)
/// Where a buffer lies for a command of `device` that holds `accessor` of it. The buffer is asked: in a custom
/// operation that the compiler `generic` made (24.06) accessors know no address.
template <typename Accessor>
void* buffer_address(const Accessor&, const byte_buffer& buffer, const sycl::device& device) {
  return buffer.get_pointer(device);
}
template <typename Native, typename Interop>
void* buffer_address(Native, const Interop&, const device_accessor& accessor, const byte_buffer& buffer,
                const sycl::device& device) {
  return buffer_address(accessor, buffer, device);
}
#else
/// Where a buffer lies for a host task that holds `accessor` of it.
template <typename Accessor>
void* buffer_address(const Accessor& accessor, const byte_buffer&, const sycl::device&) {
  return &accessor[0];
}
/// The same for a native command.
template <typename Native, typename Interop>
void* buffer_address(Native, const Interop& interop, const device_accessor& accessor, const byte_buffer&,
                const sycl::device&) {
  return Native::memory(interop, accessor);
}
#endif

// Calls function(native_interop<...>{}) for the backend that drives `platform`; false when there is none.
#if defined(ISTHMUS_SYCL_DPCPP)
inline constexpr sycl::backend cuda_backend = sycl::backend::ext_oneapi_cuda;
inline constexpr sycl::backend hip_backend = sycl::backend::ext_oneapi_hip;
#elif defined(ISTHMUS_SYCL_ADAPTIVECPP)
inline constexpr sycl::backend cuda_backend = sycl::backend::cuda;
inline constexpr sycl::backend hip_backend = sycl::backend::hip;
#endif

// The native stream of a whole queue. AdaptiveCpp chooses one for each operation, so it has none to give, and
// it needs none: it has native enqueue.
#if defined(ISTHMUS_SYCL_DPCPP)
template <sycl::backend Backend>
isthmus_stream stream_of(native_interop<Backend>, const sycl::queue& queue) {
  return reinterpret_cast<isthmus_stream>(sycl::get_native<Backend>(queue));
}
#elif defined(ISTHMUS_SYCL_ADAPTIVECPP)
template <sycl::backend Backend>
isthmus_stream stream_of(native_interop<Backend>, const sycl::queue&) {
  throw std::logic_error("isthmus: an AdaptiveCpp queue has no native stream of its own");
}
#endif

#if defined(ISTHMUS_SYCL_DPCPP) || defined(ISTHMUS_SYCL_ADAPTIVECPP)
template <typename Function>
bool visit_native(isthmus_platform platform, Function&& function) {
  switch (platform) {
    case ISTHMUS_PLATFORM_CUDA: function(native_interop<cuda_backend>{}); return true;
    case ISTHMUS_PLATFORM_HIP: function(native_interop<hip_backend>{}); return true;
    case ISTHMUS_PLATFORM_HOST:
    case ISTHMUS_PLATFORM_LEVEL_ZERO:
    case ISTHMUS_PLATFORM_OPENCL:
    case ISTHMUS_PLATFORM_COUNT: return false;
  }
  return false;
}
#else
template <typename Function>
bool visit_native(isthmus_platform, Function&&) {
  return false;
}
#endif

// The native context whose device memory the context's kernels can use, where the platform has several for one
// device: Level Zero's. Null elsewhere.
#if defined(ISTHMUS_SYCL_DPCPP)
inline void* native_memory_context(const sycl::context& context) {
  if (context.get_backend() != sycl::backend::ext_oneapi_level_zero) return nullptr;
  return sycl::get_native<sycl::backend::ext_oneapi_level_zero>(context);
}
#else
inline void* native_memory_context(const sycl::context&) { return nullptr; }
#endif

// Whether work of `device` may read and write memory of `peer`, in one context.
#if defined(SYCL_EXT_ONEAPI_PEER_ACCESS)
// OpenCL has no peers, and DPC++ 2026.2 ends the process that asks there.
inline bool has_peer_access(sycl::device device, const sycl::device& peer) {
  return device == peer ||
         (device.get_backend() != sycl::backend::opencl && device.ext_oneapi_can_access_peer(peer));
}
// Makes it so. The program may have done it already, which is an error to the implementation and none here.
inline void enable_peer_access(sycl::device device, const sycl::device& peer) {
  if (device == peer) return;
  try {
    device.ext_oneapi_enable_peer_access(peer);
  } catch (const sycl::exception&) {
    if (!device.ext_oneapi_can_access_peer(peer)) throw;
  }
}
#else
inline bool has_peer_access(const sycl::device& device, const sycl::device& peer) { return device == peer; }
inline void enable_peer_access(const sycl::device&, const sycl::device&) {}
#endif

// The platform behind a backend value that this header knows.
#if defined(ISTHMUS_SYCL_DPCPP)
inline std::optional<isthmus_platform> known_platform(sycl::backend backend) {
  if (backend == sycl::backend::ext_oneapi_cuda) return ISTHMUS_PLATFORM_CUDA;
  if (backend == sycl::backend::ext_oneapi_hip) return ISTHMUS_PLATFORM_HIP;
  if (backend == sycl::backend::ext_oneapi_level_zero) return ISTHMUS_PLATFORM_LEVEL_ZERO;
  if (backend == sycl::backend::opencl) return ISTHMUS_PLATFORM_OPENCL;
  if (backend == sycl::backend::ext_oneapi_native_cpu) return ISTHMUS_PLATFORM_HOST;
  return std::nullopt;
}
#elif defined(ISTHMUS_SYCL_ADAPTIVECPP)
inline std::optional<isthmus_platform> known_platform(sycl::backend backend) {
  if (backend == sycl::backend::cuda) return ISTHMUS_PLATFORM_CUDA;
  if (backend == sycl::backend::hip) return ISTHMUS_PLATFORM_HIP;
  if (backend == sycl::backend::level_zero) return ISTHMUS_PLATFORM_LEVEL_ZERO;
  if (backend == sycl::backend::ocl) return ISTHMUS_PLATFORM_OPENCL;
  if (backend == sycl::backend::omp) return ISTHMUS_PLATFORM_HOST;
  return std::nullopt;
}
#else
inline std::optional<isthmus_platform> known_platform(sycl::backend) { return std::nullopt; }
#endif

// The enumerator's name as the configuration's [sycl_backends] map may have it; "" where it cannot be told.
#if defined(ISTHMUS_SYCL_DPCPP)
/// The enumerator's name as the configuration's [sycl_backends] map may have it; "" where it cannot be told.
inline std::string backend_name(sycl::backend backend) {
  std::ostringstream text;
  text << backend;
  return text.str();
}
#else
inline std::string backend_name(sycl::backend) { return {}; }
#endif

}  // namespace isthmus::detail

#endif
