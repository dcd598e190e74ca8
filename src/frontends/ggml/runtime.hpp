// Dependencies of the library other than ggml: streams of ggml's backends, the engine for the SYCL runtime of the
// program, and the core library.
#pragma once

#include <isthmus/tensor_parallel.h>
#include <isthmus/types.h>

#include <string>

#include "frontends/ggml/ggml_library.hpp"

// sycl::event sycl::queue::ext_oneapi_submit_barrier(const detail::code_location&), which ggml uses
// to record an event.
#define ISTHMUS_SYCL_SUBMIT_BARRIER \
  "_ZN4sycl3_V15queue25ext_oneapi_submit_barrierERKNS0_6detail13code_locationE"

namespace isthmus::ggml {

// ---- streams ----
//
// Finds the stream that a ggml backend uses: a CUDA stream or a sycl::queue. ggml exports neither, but it
// reveals the stream when it records one of its own events: the resulting call into the CUDA or SYCL runtime
// goes through this library (hooks.cpp). The library does not read ggml's internal structures.

enum class stream_kind { cuda, sycl };

// Records the streams on which the calling thread records events, during the lifetime of the object.
class stream_watch {
 public:
  explicit stream_watch(stream_kind kind);
  ~stream_watch();
  stream_watch(const stream_watch&) = delete;
  stream_watch& operator=(const stream_watch&) = delete;

  // Called by the hooks. Does nothing on a thread without a stream_watch. `function` is the runtime function
  // that the hook forwards to.
  static void record_stream(stream_kind kind, void* stream, const void* function) noexcept;

  bool has_exactly_one() const { return m_event_count == 1; }
  void* stream() const { return m_stream; }
  const void* function() const { return m_function; }

 private:
  stream_kind m_kind;
  void* m_stream = nullptr;
  const void* m_function = nullptr;
  int m_event_count = 0;
};

struct stream_lookup {
  void* stream = nullptr;
  const void* function = nullptr;  // the event-recording function of the runtime that owns the stream
  std::string reason{};            // "" if the stream was found, which can be the default stream
};

// Records two events on `backend` and waits for them. Both must use the same stream.
stream_lookup find_stream(const ggml_library& ggml, ggml_backend* backend, stream_kind kind);

// Returns the device ordinal of a CUDA stream, or -1 if the driver does not report it.
int cuda_ordinal_of(void* stream);

// ---- libraries of Isthmus ----
//
// The libraries of Isthmus that are opened when the first device group is created: the core, libisthmus.so, and the
// engine for the program's SYCL runtime. Most programs into which this library is preloaded never create a group and
// should not load the core's dependencies.

struct core_functions {
  decltype(&isthmus_tensor_parallel_create) create;
  decltype(&isthmus_tensor_parallel_allreduce) allreduce;
  decltype(&isthmus_tensor_parallel_destroy) destroy;
  decltype(&isthmus_last_error) last_error;
};

// Returns NULL and sets `reason` if the core in this library's folder cannot be loaded. Thread-safe.
const core_functions* open_core(std::string& reason);

// Opens the engine for the SYCL runtime whose submit_barrier is at `function`, from this library's folder. DPC++
// releases have incompatible runtimes (libsycl.so.8, .9), and each program comes with its own, so there is one engine
// per runtime. Returns NULL and sets `reason` if there is no engine for that runtime.
const isthmus_tensor_parallel_engine* open_sycl_engine(const void* function, std::string& reason);

}  // namespace isthmus::ggml
