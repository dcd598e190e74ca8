// The backend for NCCL and RCCL: the native library of the plug-in and the native communicators of one rank.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/nccl_family/call_events.hpp"
#include "backends/nccl_family/collectives.hpp"
#include "backends/nccl_family/native_calls.hpp"
#include "backends/nccl_family/registration.hpp"
#include "backends/nccl_family/traits.hpp"

namespace isthmus::nccl_family {

// Defined by each plug-in.
extern const vendor_traits& plugin_traits;

// Returns the value of the backend option `key`; null if it is not set.
inline const char* option_of(const isthmus_backend_context& context, const char* key) {
  return context.option != nullptr ? context.option(context.runtime, key) : nullptr;
}

// The native library and device runtime of the plug-in, loaded once per process.
struct native_library {
  native_functions functions;
  device_runtime device;
  int version = 0;
  std::string path, version_text;

  // Returns the library of this process. The first successful call loads it. Returns null and sets
  // `reason` if this machine has no usable library. There is one library per process because native group
  // calls take no communicator.
  static native_library* get(const isthmus_backend_context& context, std::string& reason);
  // Returns the library that get() has loaded, or null.
  static native_library* current() { return instance().get(); }

 private:
  static std::unique_ptr<native_library>& instance() {
    static std::unique_ptr<native_library> library;
    return library;
  }
  std::string load(const isthmus_backend_context& context);
};

// The native communicators of one rank.
//
// Each Isthmus communicator uses two native ones. `m_setup_comm` is created in the library's non-blocking mode,
// so that a wait for the other ranks can time out or be aborted. In this mode, however, the library starts a
// host thread for every later call, which costs more than the call itself and prevents graph capture. The ranks
// therefore split `m_comm` to create a blocking communicator, `m_setup_comm`, and enqueue all operations on the
// latter. `m_comm` shares the resources and the abort flag of `m_setup_comm`: aborting `m_setup_comm` releases
// all waits in `m_comm`, but does not free it while a thread is still inside.
class nccl_state {
 public:
  using probe_record = probe<sizeof(native_unique_id)>;

  nccl_state(const isthmus_backend_context& context, native_library& lib, registration_mode mode)
      : m_context(context),
        m_library(lib),
        m_call_events(lib.device),
        m_registered_blocks(lib.functions, mode) {}

  // Collective. `split_comm` is the communicator that a split has created, or null. After a failure, only
  // release() may be called.
  isthmus_status connect(const votes<probe_record>& all, native_comm split_comm);
  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n);
  isthmus_status poll();
  isthmus_status synchronize();
  void abort();  // does not wait for the native library
  void release();

  const char* supports(const isthmus_operation& operation) const;
  const char* version() const { return m_library.version_text.c_str(); }

  // Collective. Returns a setup communicator for the subcommunicator, or null if it could not be created.
  native_comm split(int color, int key);
  // register_block is collective, unregister_block is local.
  void register_block(const isthmus_heap_block& block);
  void unregister_block(const isthmus_heap_block& block);

  // Ends a native group that contains operations of this communicator.
  isthmus_status finish_group(int result);
  // Called after the enqueued operations have been launched on their streams.
  void after_launch();

 private:
  isthmus_status fail(const char* location, int result, const char* function,
                      const isthmus_operation* operation);
  isthmus_status fail_device(const char* location, int error, const char* function);
  isthmus_status fail_interrupted(const char* location, const char* activity);
  isthmus_status wait_for(native_comm comm, const char* function);
  isthmus_status create_setup_comm(const native_unique_id& id);
  isthmus_status create_working_comm();
  isthmus_status enqueue_one(const isthmus_operation& operation);
  int register_with_library(const isthmus_heap_block& block);
  bool is_aborted() const {
    return m_aborted.load(std::memory_order_acquire) || m_context.is_aborted(m_context.runtime) != 0;
  }

  const isthmus_backend_context& m_context;
  native_library& m_library;
  native_comm m_setup_comm = nullptr;
  native_comm m_comm = nullptr;
  void* m_barrier_byte = nullptr;
  int m_capability = 0;
  std::atomic<bool> m_aborted{false};
  std::mutex m_abort_mutex;
  background_call m_abort_call;  // ncclCommAbort of m_setup_comm
  std::vector<scratch_memory> m_scratch;
  call_events m_call_events;
  void* m_last_stream = nullptr;
  registered_blocks m_registered_blocks;
};

}  // namespace isthmus::nccl_family
