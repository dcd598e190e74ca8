// Differences between SYCL implementations, in one place. The rest of the front end is plain SYCL 2020.
//
// Known implementations: DPC++ (Intel oneAPI and the open compiler) and AdaptiveCpp. Other implementations also
// compile. They use only standard SYCL, and the configuration maps their devices to platforms.
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
// sycl.hpp includes the HIP traits only if the compiler driver requests them.
#if __has_include(<sycl/ext/oneapi/backend/hip.hpp>)
#include <sycl/ext/oneapi/backend/hip.hpp>
#endif
#endif

namespace isthmus::detail {

// Buffers of all shapes are handled as one-dimensional byte buffers (SuCL paper, section 4.2).
using byte_buffer = sycl::buffer<unsigned char, 1>;
using device_accessor = sycl::accessor<unsigned char, 1, sycl::access_mode::read_write, sycl::target::device>;

// ---- bfloat16 -----------------------------------------------------------------------------------------
#if defined(SYCL_EXT_ONEAPI_BFLOAT16)
using bfloat16 = sycl::ext::oneapi::bfloat16;
#else
struct bfloat16 {};  // matches no user type
#endif

// ---- empty in-order queues ----------------------------------------------------------------------------
/// Returns whether the in-order queue is known to be empty, which saves a wait. It is always correct to
/// return false. Tests the class instead of a feature macro, because DPC++ 2025 announces khr_empty but does
/// not implement it.
template <typename Queue>
bool is_known_idle(const Queue& queue) {
  if constexpr (requires { queue.khr_empty(); })
    return queue.khr_empty();
  else if constexpr (requires { queue.ext_oneapi_empty(); })
    return queue.ext_oneapi_empty();
  else
    return false;
}

// ---- native enqueue: a function that puts work on the native stream, without a host wait --------------
#if defined(SYCL_EXT_CODEPLAY_ENQUEUE_NATIVE_COMMAND) || defined(SYCL_EXT_ONEAPI_ENQUEUE_NATIVE_COMMAND)
inline constexpr const char* native_enqueue_name = "ext_codeplay_enqueue_native_command";
/// Adds `body(interop_handle)` to the command group. The body runs when the native stream is known, possibly in
/// another thread. It may only enqueue work on that stream and must not throw.
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

// ---- platforms for which this program has native commands ----------------------------------------------
// AdaptiveCpp launches native commands with code that its compiler generates for each backend. Without this
// code, the first native command terminates the program.
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
/// True if native commands wait for their dependencies by themselves.
inline constexpr bool has_ordered_native_commands = false;
/// Makes the next submission to the queue wait for `events`. DPC++'s adapters for CUDA and HIP (2026.2) select
/// a stream for a native command, but the stream does not wait for the command's dependencies in other streams.
/// Other streams are those of other queues and, for an out-of-order queue, also its own. A barrier waits for
/// these dependencies, and every stream of its queue waits for the barrier.
inline void order_after(sycl::queue& queue, const std::vector<sycl::event>& events) {
  if (!events.empty()) queue.ext_oneapi_submit_barrier(events);
}
/// Makes the next submission to the queue wait for the dependencies of `command`.
inline void order_after_dependencies(sycl::queue& queue, sycl::event command) {
  order_after(queue, command.get_wait_list());
}
/// Makes the next submission to the queue wait for the dependencies of a command with the accessors that
/// `make_accessors(handler)` returns. An empty command determines these dependencies.
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
/// Returns whether a command on `device` can run a host function after its dependencies. AdaptiveCpp has no
/// host_task. On the OpenMP backend, its custom operation serves as a host task. On other backends, the
/// custom operation runs when the graph is submitted, so host work must be rejected or done by a host
/// thread that waits.
inline bool can_run_host_work(const sycl::device& device) { return device.get_backend() == sycl::backend::omp; }

/// Runs `body` on the host after the command group's dependencies. Requires can_run_host_work(device).
/// Exceptions reach the queue's async handler. An exception in a thread of AdaptiveCpp would terminate
/// the program, so it is converted to a runtime error, which the handler gets as a sycl::exception with
/// the same message.
template <typename Body>
void host_work(sycl::handler& handler, Body body) {
  // AdaptiveCpp finds accessors by their address in this lambda, so `body` must hold them by value.
  native_enqueue(handler, [=](sycl::interop_handle&) {
    try {
      body();
    } catch (const std::exception& failure) {
      hipsycl::rt::register_error(hipsycl::rt::make_error(__acpp_here(), {failure.what()}));
    }
  });
}

/// Submits an empty command. On every backend, its event completes after the command group's dependencies.
inline void submit_empty_command(sycl::handler& handler) {
  native_enqueue(handler, [](sycl::interop_handle&) {});
}

/// The target of accessors for host_work.
inline constexpr sycl::target host_work_target = sycl::target::device;
#else
inline bool can_run_host_work(const sycl::device&) { return true; }
template <typename Body>
void host_work(sycl::handler& handler, Body body) {
  handler.host_task([=] { body(); });
}
inline void submit_empty_command(sycl::handler& handler) {
  handler.host_task([] {});
}
inline constexpr sycl::target host_work_target = sycl::target::host_task;
#endif

// ---- events of commands ----------------------------------------------------------------------------------
/// Submits a command group; returns its event.
struct submit_with_event {
  template <typename CommandGroup>
  sycl::event operator()(sycl::queue& queue, CommandGroup&& group) const {
    return queue.submit(group);
  }
};
/// Submits a command group of an in-order queue. No native event is created for it if the implementation can
/// avoid it.
struct submit_without_event {
  template <typename CommandGroup>
  void operator()(sycl::queue& queue, CommandGroup&& group) const {
#if defined(SYCL_EXT_ONEAPI_ENQUEUE_FUNCTIONS)
    sycl::ext::oneapi::experimental::submit(queue, group);
#else
    queue.submit(group);
#endif
  }
};

// ---- deferred commands -----------------------------------------------------------------------------------
#if defined(ISTHMUS_SYCL_ADAPTIVECPP)
/// Passes all submitted commands to their devices without waiting for completion. Native commands have run when
/// it returns. Without this call, AdaptiveCpp defers commands until a thread waits for one of them.
inline void start_commands(const sycl::queue& queue) noexcept {
  queue.get_context().AdaptiveCpp_runtime()->dag().flush_sync();
}
#else
inline void start_commands(const sycl::queue&) noexcept {}
#endif

// ---- markers --------------------------------------------------------------------------------------------
#if defined(SYCL_EXT_ONEAPI_ENQUEUE_BARRIER)
/// Returns an event that completes with all work that is on the in-order queue now. The host does not wait.
inline sycl::event submit_marker(sycl::queue& queue) { return queue.ext_oneapi_submit_barrier(); }
/// Adds an empty command that completes after `event` of another queue. The host does not wait.
inline sycl::event submit_marker_after(sycl::queue& queue, const sycl::event& event) {
  return queue.ext_oneapi_submit_barrier({event});
}
#else
inline sycl::event submit_marker(sycl::queue& queue) {
  return queue.submit([](sycl::handler& handler) { submit_empty_command(handler); });
}
inline sycl::event submit_marker_after(sycl::queue& queue, const sycl::event& event) {
  return queue.submit([&](sycl::handler& handler) {
    handler.depends_on(event);
    submit_empty_command(handler);
  });
}
#endif

// ---- native objects -----------------------------------------------------------------------------------
/// Native objects of one sycl::backend, fixed at compile time: the stream of a command, the memory of an
/// accessor and the ordinal of a device.
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
/// Returns the address of a buffer in a command of `device` that holds `accessor`. Gets it from the buffer,
/// because accessors have no address in a custom operation that the `generic` compiler (24.06) compiled.
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
/// Returns the address of a buffer in a host task that holds `accessor`.
template <typename Accessor>
void* buffer_address(const Accessor& accessor, const byte_buffer&, const sycl::device&) {
  return &accessor[0];
}
/// Returns the address of a buffer in a native command that holds `accessor`.
template <typename Native, typename Interop>
void* buffer_address(Native, const Interop& interop, const device_accessor& accessor, const byte_buffer&,
                     const sycl::device&) {
  return Native::memory(interop, accessor);
}
#endif

// Calls function(native_interop<...>{}) for the backend that drives `platform`; returns false if there is none.
#if defined(ISTHMUS_SYCL_DPCPP)
inline constexpr sycl::backend cuda_backend = sycl::backend::ext_oneapi_cuda;
inline constexpr sycl::backend hip_backend = sycl::backend::ext_oneapi_hip;
#elif defined(ISTHMUS_SYCL_ADAPTIVECPP)
inline constexpr sycl::backend cuda_backend = sycl::backend::cuda;
inline constexpr sycl::backend hip_backend = sycl::backend::hip;
#endif

// Returns the native stream of a queue. An AdaptiveCpp queue has no native stream, because AdaptiveCpp selects
// a stream for each operation; use native enqueue instead.
#if defined(ISTHMUS_SYCL_DPCPP)
template <sycl::backend Backend>
isthmus_stream stream_of(native_interop<Backend>, const sycl::queue& queue) {
  return reinterpret_cast<isthmus_stream>(sycl::get_native<Backend>(queue));
}
#elif defined(ISTHMUS_SYCL_ADAPTIVECPP)
template <sycl::backend Backend>
isthmus_stream stream_of(native_interop<Backend>, const sycl::queue&) {
  throw std::logic_error("isthmus: an AdaptiveCpp queue has no native stream; use native enqueue");
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

// Returns the native context whose device memory the kernels of `context` can use, on platforms that can have
// several contexts per device (Level Zero). Returns null on other platforms.
#if defined(ISTHMUS_SYCL_DPCPP)
inline void* native_memory_context(const sycl::context& context) {
  if (context.get_backend() != sycl::backend::ext_oneapi_level_zero) return nullptr;
  return sycl::get_native<sycl::backend::ext_oneapi_level_zero>(context);
}
#else
inline void* native_memory_context(const sycl::context&) { return nullptr; }
#endif

// Returns whether work on `device` can access memory of `peer` within one context.
#if defined(SYCL_EXT_ONEAPI_PEER_ACCESS)
// OpenCL has no peer access, and on DPC++ 2026.2 the query terminates the process there.
inline bool has_peer_access(sycl::device device, const sycl::device& peer) {
  return device == peer ||
         (device.get_backend() != sycl::backend::opencl && device.ext_oneapi_can_access_peer(peer));
}
// Enables peer access. Ignores the error that the implementation reports if the program has already enabled it.
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

// Returns the platform of a backend value; std::nullopt if this header does not know it.
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

#if defined(ISTHMUS_SYCL_DPCPP)
/// Returns the enumerator's name, as used in the [sycl_backends] map of the configuration; empty if unknown.
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
