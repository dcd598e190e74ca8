// Interface of a device driver that is loaded at run time: memory that peers can map, copies by the copy
// engines, and the stream operations that order them. It is implemented for CUDA, HIP and Level Zero. Code
// outside of this folder does not depend on the differences between them.
//
// Devices are ordinals of the platform.
// Thread safety: any thread may call any function, with any device current. The current device is restored.
// Errors: functions throw isthmus::error. The status is OUT_OF_MEMORY if the device reports it, UNSUPPORTED if
//   the platform lacks the feature, and BACKEND with the native code otherwise.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace isthmus {

// Native handles of the platform: CUstream, hipStream_t, an immediate ze_command_list_handle_t; and its events.
using native_stream = void*;
using native_event = void*;
using native_kernel = void*;  // CUfunction, hipFunction_t

// Trivially copyable handle with which another process of the same user on this node maps a block. It is valid
// while the owner is alive.
struct shared_handle {
  std::array<std::byte, 128> bytes;
};

// One contiguous copy between any two locations that the stream's device can access.
struct device_copy {
  void* destination;
  const void* source;
  std::uint64_t bytes;
};

// One word operation (device_driver::enqueue_words).
enum class word_action { write, wait_equal };
struct word_step {
  word_action action;
  std::uint32_t* word;
  std::uint32_t value;
};

struct device_memory_info {
  std::uint64_t free_bytes;
  std::uint64_t total_bytes;
};

// raised: between normal and high, if the device has such a level.
enum class stream_priority { normal, raised, high };

// Method of sharing a block with another process:
//   descriptor: a file descriptor of physical memory, which the peer maps at any address (CUDA VMM)
//   handle: the older interprocess handle of a plain allocation (CUDA and HIP IPC)
enum class sharing_method { descriptor, handle };

// Returns true for the NULL stream of CUDA and HIP, under either of its names. This stream waits for all
// blocking streams, does not accept batches and cannot be captured.
inline bool is_null_stream(native_stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 1; }

class device_driver {
 public:
  // Returns the process's driver for `platform`, which is loaded at the first call and never unloaded. If this
  // machine has none, returns nullptr and sets `reason`. Does not throw.
  static device_driver* get(isthmus_platform platform, std::string& reason);

  virtual ~device_driver() = default;

  virtual std::string version() = 0;
  virtual int device_count() = 0;
  virtual std::string name(int device) = 0;
  // Identifies a device across the processes of a node, independent of their ordinals.
  virtual std::string bus_id(int device) = 0;
  virtual device_memory_info memory_info(int device) = 0;
  virtual bool can_access_peer(int device, int peer) = 0;
  // Returns the device that owns `pointer`, or -1 for host memory and memory that is unknown to the driver.
  virtual int owner_of(const void* pointer) = 0;

  // Returns the context with which other libraries can use objects of this driver: CUDA's primary context
  // (never released), or this driver's Level Zero context. UNSUPPORTED if the platform has no contexts.
  virtual void* native_context(int device);

  // ---- memory ---------------------------------------------------------------------------------------
  // Plain memory of one device. bytes > 0. May be called while this thread captures a stream.
  virtual void* allocate(int device, std::uint64_t bytes) = 0;
  virtual void free(int device, void* pointer) = 0;
  // Plain memory that is resized by mapping pages, without a copy. resize_mapped returns the new address; the
  // contents are preserved up to the smaller size. Other devices can access the memory after enable_peer.
  // Preconditions: work that uses the memory has completed.
  // Errors: a failed resize leaves the block unchanged. UNSUPPORTED if the platform cannot map pages.
  virtual void* allocate_mapped(int device, std::uint64_t bytes);
  virtual void* resize_mapped(int device, void* pointer, std::uint64_t bytes);
  virtual void free_mapped(int device, void* pointer);
  // Pinned host memory, which every device of the platform can access.
  virtual void* allocate_host(std::uint64_t bytes) = 0;
  virtual void free_host(void* pointer) = 0;
  // Pins host memory of the program, such as shared memory, until the process ends. Afterwards, every device of the
  // platform can access it at the same address.
  // Errors: UNSUPPORTED if the devices cannot use this address.
  virtual void register_host(void* pointer, std::uint64_t bytes);

  // Memory that peers can map, zero-filled. `bytes` is rounded up to granularity(device).
  virtual std::uint64_t granularity(int device) = 0;
  virtual sharing_method preferred_sharing(int device) = 0;
  virtual void* allocate_shared(int device, std::uint64_t bytes, sharing_method method) = 0;
  void* allocate_shared(int device, std::uint64_t bytes) {
    return allocate_shared(device, bytes, preferred_sharing(device));
  }
  virtual void free_shared(int device, void* pointer) = 0;
  // Gives kernels and copies of `device` direct access to plain memory of `peer`. May be called repeatedly.
  virtual void enable_peer(int device, int peer) = 0;
  // Gives `peer`, a device of this process, access to a shared block at the same address.
  virtual void allow_access(void* pointer, int peer) = 0;
  virtual shared_handle export_shared(void* pointer) = 0;
  // Closes the block's descriptor, so that it can no longer be imported. Call it after all peers have
  // imported the block.
  virtual void end_export(void* pointer) = 0;
  // Maps a block of another process for `device`. release_import unmaps it.
  // Errors: SYSTEM if this process is not allowed to duplicate the owner's descriptor. In that case, a block
  // that is shared by handle may work.
  virtual void* import_shared(int device, const shared_handle& handle) = 0;
  virtual void release_import(int device, void* pointer) = 0;

  // ---- streams and events ---------------------------------------------------------------------------
  virtual native_stream create_stream(int device, stream_priority priority) = 0;
  virtual void destroy_stream(int device, native_stream stream) = 0;
  virtual void synchronize(int device, native_stream stream) = 0;
  virtual bool is_capturing(int device, native_stream stream) = 0;  // always false for NULL streams
  // Returns true if the stream and the legacy default stream wait for each other. Always true for NULL streams.
  virtual bool is_blocking(int device, native_stream stream);
  virtual native_event create_event(int device) = 0;  // no timing
  virtual void destroy_event(native_event event) = 0;
  // `device` is the stream's device. The NULL stream is allowed; each device has its own NULL stream.
  virtual void record(int device, native_event event, native_stream stream) = 0;
  // Makes the stream wait; does not block the host. The event may belong to another device.
  virtual void wait(int device, native_stream stream, native_event event) = 0;
  virtual bool is_done(native_event event) = 0;
  // Creates an event for elapsed_us. UNSUPPORTED if the platform has no timed events.
  virtual native_event create_timed_event(int device);
  // Returns the microseconds between two completed timed events.
  virtual double elapsed_us(native_event begin, native_event end);

  // Runs `work` with `device` as the current device of this thread, for vendor libraries that depend on it.
  virtual void run_on_device(int device, const std::function<void()>& work);

  // ---- work on a stream; all functions are asynchronous -----------------------------------------------
  // The copies are not ordered among themselves. Uses the copy engines if the driver can select them (not if
  // the stream is being captured, and not on the NULL stream). Copies of 0 bytes are skipped.
  virtual void copy(int device, std::span<const device_copy> copies, native_stream stream) = 0;
  // Same as copy, but issues one command per copy, which has less setup overhead. The driver may use the
  // compute units for copies within one device, but not for copies between devices.
  virtual void copy_each(int device, std::span<const device_copy> copies, native_stream stream) {
    copy(device, copies, stream);
  }
  virtual void fill(int device, void* pointer, std::uint8_t value, std::uint64_t bytes,
                    native_stream stream) = 0;
  // Writes a word after all earlier work of the stream has become visible to every device that can
  // access the word.
  virtual void write_word(int device, std::uint32_t* word, std::uint32_t value, native_stream stream) = 0;
  // The stream waits until std::int32_t(*word - value) >= 0, so counters may wrap.
  virtual void wait_word(int device, const std::uint32_t* word, std::uint32_t value, native_stream stream) = 0;
  // Returns true if later work of a stream may miss what a network adapter wrote to device memory before the stream
  // waited for a word, unless the wait flushes.
  virtual bool needs_flush(int device);
  // As wait_word, followed by the flush. Precondition: needs_flush.
  virtual void wait_word_and_flush(int device, const std::uint32_t* word, std::uint32_t value,
                                   native_stream stream);
  // Executes word operations in order, as one command if the driver supports it. `write` is the same as
  // write_word; `wait_equal` makes the stream wait until *word == value. May be captured.
  virtual void enqueue_words(int device, std::span<const word_step> steps, native_stream stream);

  // ---- kernels; UNSUPPORTED if Isthmus has no kernels for the platform ---------------------------------
  // Returns the target for kernel_compiler, such as "sm_90", or "" if the compiler uses the current device.
  virtual std::string architecture(int device);
  // Returns the major version of the platform's libraries that the driver supports, such as 13 for CUDA 13.0.
  virtual int major_version();
  // Loads machine code, which is never unloaded, and returns its kernel `entry`. May be called while this
  // thread captures a stream.
  // Blocking: may wait for the device's queued work, so this work must not wait for the caller.
  virtual native_kernel load_kernel(int device, const std::string& code, const char* entry);
  // One-dimensional launch. `arguments`: the address of each parameter; they are read before launch returns.
  // May be captured.
  virtual void launch(int device, native_kernel kernel, unsigned blocks, unsigned threads,
                      std::span<void*> arguments, native_stream stream);
};

}  // namespace isthmus
