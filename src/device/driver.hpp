// What Isthmus needs of a device's driver, found at run time: memory that peers can map, copies that the
// copy engines make, and the stream operations that order them. CUDA, HIP and Level Zero implement it; no
// other folder knows how they differ.
//
// Devices are ordinals of the platform. Every function may be called by any thread, with any device
// current, and leaves current what was current before. Functions throw isthmus::error: OUT_OF_MEMORY where
// the device says so, UNSUPPORTED where the platform has no such thing, else BACKEND with the native code.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace isthmus {

// The platform's own: CUstream, hipStream_t, an immediate ze_command_list_handle_t; and its events.
using native_stream = void*;
using native_event = void*;
using native_kernel = void*;  // CUfunction, hipFunction_t

// Plain bytes with which another process of this machine and user maps a block, while its owner lives.
struct shared_handle {
  std::array<std::byte, 128> bytes;
};

// One contiguous copy between any two places that the stream's device reaches.
struct device_copy {
  void* to;
  const void* from;
  std::uint64_t bytes;
};

// One step of a list of words (device_driver::words).
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

// raised: before normal streams and behind high ones, where the device has a level between.
enum class stream_priority { normal, raised, high };

// How a block reaches another process: as a file descriptor of physical memory that the peer maps where it
// likes (CUDA VMM), or as the older interprocess handle of a plain allocation (CUDA and HIP IPC).
enum class sharing_method { descriptor, handle };

// CUDA's and HIP's NULL stream, by both its names: it waits for all blocking streams, takes no batches and
// can't be captured.
inline bool is_null_stream(native_stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 1; }

class device_driver {
 public:
  // The process's driver of `platform`, loaded at the first call and kept; nullptr and `reason` where this
  // machine has none. Never throws.
  static device_driver* get(isthmus_platform platform, std::string& reason);

  virtual ~device_driver() = default;

  virtual std::string version() = 0;
  virtual int device_count() = 0;
  virtual std::string name(int device) = 0;
  // Names the same device in every process of the machine, whatever its ordinals are.
  virtual std::string bus_id(int device) = 0;
  virtual device_memory_info memory_info(int device) = 0;
  virtual bool can_access_peer(int device, int peer) = 0;
  // The device that owns `pointer`, or -1 for host memory and for what the driver doesn't know.
  virtual int owner_of(const void* pointer) = 0;

  // What other libraries of the program are given to meet ours: CUDA's primary context, never released; Level
  // Zero's context of this driver. UNSUPPORTED where the platform has no contexts.
  virtual void* native_context(int device);

  // ---- memory ---------------------------------------------------------------------------------------
  // Plain memory of one device: no mirror in host memory. bytes > 0.
  virtual void* allocate(int device, std::uint64_t bytes) = 0;
  virtual void free(int device, void* pointer) = 0;
  // Plain memory whose size changes by mapping pages, without a copy: resize_mapped returns its address, at
  // which the contents are as far as they fit. The caller has waited for the work that uses it; on failure it
  // is as it was. Other devices reach it after enable_peer. UNSUPPORTED where the platform maps no pages.
  virtual void* allocate_mapped(int device, std::uint64_t bytes);
  virtual void* resize_mapped(int device, void* pointer, std::uint64_t bytes);
  virtual void free_mapped(int device, void* pointer);
  // Pinned host memory that every device of the platform reaches.
  virtual void* allocate_host(std::uint64_t bytes) = 0;
  virtual void free_host(void* pointer) = 0;

  // Memory that peers can map, zero-filled. `bytes` is rounded up to granularity(device).
  virtual std::uint64_t granularity(int device) = 0;
  virtual sharing_method preferred_sharing(int device) = 0;
  virtual void* allocate_shared(int device, std::uint64_t bytes, sharing_method method) = 0;
  void* allocate_shared(int device, std::uint64_t bytes) {
    return allocate_shared(device, bytes, preferred_sharing(device));
  }
  virtual void free_shared(int device, void* pointer) = 0;
  // Kernels and copies of `device` reach plain memory of `peer` directly from now on; any number of times.
  virtual void enable_peer(int device, int peer) = 0;
  // Lets `peer`, a device of this process, use a shared block at the same address.
  virtual void allow_access(void* pointer, int peer) = 0;
  virtual shared_handle export_shared(void* pointer) = 0;
  // Once all peers have it: nobody can import the block any more, and its descriptor is closed.
  virtual void end_export(void* pointer) = 0;
  // Maps another process's block for `device`; release_import undoes it. SYSTEM where this process may not
  // take the owner's descriptor: a block with sharing::handle may then still do.
  virtual void* import_shared(int device, const shared_handle& handle) = 0;
  virtual void release_import(int device, void* pointer) = 0;

  // ---- streams and events ---------------------------------------------------------------------------
  virtual native_stream create_stream(int device, stream_priority priority) = 0;
  virtual void destroy_stream(int device, native_stream stream) = 0;
  virtual void synchronize(int device, native_stream stream) = 0;
  virtual bool is_capturing(int device, native_stream stream) = 0;  // NULL streams never are
  virtual native_event create_event(int device) = 0;                // no timing
  virtual void destroy_event(native_event event) = 0;
  // `device` is the stream's: the NULL stream, which every device has, is allowed.
  virtual void record(int device, native_event event, native_stream stream) = 0;
  // The stream waits, not the host. The event may be of another device.
  virtual void wait(int device, native_stream stream, native_event event) = 0;
  virtual bool is_done(native_event event) = 0;
  // An event that elapsed_us can ask for its time; UNSUPPORTED where the platform has no such thing.
  virtual native_event create_timed_event(int device);
  // Microseconds between two timed events that are done.
  virtual double elapsed_us(native_event from, native_event to);

  // Runs `work` with `device` current for this thread, for vendors' libraries that go by that.
  virtual void with_device(int device, const std::function<void()>& work);

  // ---- work on a stream; all return before it is done -----------------------------------------------
  // Copies without order among themselves, by the copy engines where the driver lets one choose (not while
  // the stream is captured, nor on the NULL stream). Copies of 0 bytes are left out.
  virtual void copy(int device, std::span<const device_copy> copies, native_stream stream) = 0;
  // The same, one command for each copy: less to set up. Within one device the driver may then use the compute
  // units; between devices it does not.
  virtual void copy_each(int device, std::span<const device_copy> copies, native_stream stream) {
    copy(device, copies, stream);
  }
  virtual void fill(int device, void* pointer, std::uint8_t value, std::uint64_t bytes,
                    native_stream stream) = 0;
  // Writes a word after all earlier work of the stream is visible to every device that can see it.
  virtual void write_word(int device, std::uint32_t* word, std::uint32_t value, native_stream stream) = 0;
  // Holds the stream until std::int32_t(*word - value) >= 0: counters may wrap.
  virtual void wait_word(int device, const std::uint32_t* word, std::uint32_t value, native_stream stream) = 0;
  // Steps in order, as one command where the driver has such a thing: `write` as write_word, `wait_equal` holds
  // the stream until *word == value. May be captured.
  virtual void enqueue_words(int device, std::span<const word_step> steps, native_stream stream);

  // ---- kernels; UNSUPPORTED where the platform has none in Isthmus ----------------------------------
  // What kernel_compiler makes code for: "sm_90"; "" where its compiler asks the current device.
  virtual std::string architecture(int device);
  // Of the platform's libraries that the driver serves: 13 for CUDA 13.0.
  virtual int major_version();
  // Loads machine code and keeps it: the kernel `entry` in it. May wait for the work of the device that is
  // queued, so nothing that is queued may wait for the caller. Also while this thread captures a stream.
  virtual native_kernel load_kernel(int device, const std::string& code, const char* entry);
  // One-dimensional. `arguments`: the address of each parameter, read before launch returns. May be captured.
  virtual void launch(int device, native_kernel kernel, unsigned blocks, unsigned threads,
                      std::span<void*> arguments, native_stream stream);
};

}  // namespace isthmus
