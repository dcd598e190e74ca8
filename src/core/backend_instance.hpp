// One backend for one rank of one communicator: its state and the context that the runtime provides. All calls
// into a backend go through this class.
//
// Errors: an exception that leaves a backend is caught here and becomes a status with the
// details of the failure.
#pragma once

#include <isthmus/backend.h>

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "core/plugin.hpp"

namespace isthmus {

class communicator;

// Whether a communicator uses a backend, and if it does not, why not. `isthmus info` reports it.
enum class backend_state {
  available,
  unavailable,     // something is missing or does not work
  not_used,        // no call of this communicator would select it
  other_platform,  // it is for other devices
};

// Result of isthmus_backend::split. The create function of the subcommunicator's backend consumes it. If the
// state is never consumed, isthmus_backend::discard_split_state releases it.
struct split_state_deleter {
  void (*function)(void*) = nullptr;
  void operator()(void* state) const noexcept;
};
using split_state = std::unique_ptr<void, split_state_deleter>;

class backend_instance {
 public:
  backend_instance(communicator& owner, backend_entry entry, std::size_t index);
  ~backend_instance() { destroy(); }
  backend_instance(const backend_instance&) = delete;
  backend_instance& operator=(const backend_instance&) = delete;

  const std::string& name() const { return m_entry.name; }
  std::size_t index() const { return m_index; }  // position in the communicator's list; equal on all ranks
  const std::string& source() const { return m_entry.source; }
  const isthmus_backend& functions() const { return *m_entry.backend; }  // for descriptions and comparisons
  // Call path: reads one cache line of this object.
  isthmus_status enqueue(const isthmus_operation* operations, const int* algorithms, std::size_t n) noexcept {
    try {
      return m_enqueue(m_state, operations, algorithms, n);
    } catch (...) {
      return report_exception("enqueue");
    }
  }
  // If the backend sets one of these functions to NULL, the call succeeds and does nothing.
  isthmus_status group_start() noexcept;
  isthmus_status group_end() noexcept;
  isthmus_status poll() noexcept;
  isthmus_status synchronize() noexcept;
  void abort() noexcept;
  // These return no status: an exception aborts the communicator and is rethrown as error.
  const char* supports(const isthmus_operation& operation, int algorithm);
  const char* plan(const isthmus_operation& operation, int algorithm);  // NULL: no plan
  split_state split(int color, int key);
  void register_block(const isthmus_heap_block& block);
  void unregister_block(const isthmus_heap_block& block);
  bool is_present() const { return m_entry.backend != nullptr; }  // on this rank
  bool is_plugin() const { return is_present() && m_entry.source != built_in_source; }
  bool is_usable() const { return m_is_created; }  // on all ranks
  bool is_blocking() const {
    const std::uint32_t on_host =
        m_context.device.platform == ISTHMUS_PLATFORM_HOST ? ISTHMUS_BACKEND_BLOCKING_ON_HOST : 0;
    return (m_capabilities & (ISTHMUS_BACKEND_BLOCKING | on_host)) != 0;
  }
  backend_state state() const { return is_usable() ? backend_state::available : m_rejected_state; }
  // Returns why the backend cannot be used, or "" if it can.
  const std::string& reason() const { return m_reason; }
  std::uint32_t capabilities() const { return m_capabilities; }  // ANDed over all ranks
  const char* version() const noexcept;
  // Warnings that the backend logged, for example options that it ignores.
  std::vector<std::string> notes() const;

  // Marks the backend as unusable because some rank rejected it, before or after create.
  void reject(backend_state state, std::string reason);
  void set_by_default(bool is_chosen_by_default) {
    m_context.is_chosen_by_default = is_chosen_by_default ? 1 : 0;
  }
  void set_capabilities(std::uint32_t shared) { m_capabilities = shared; }

  // Takes over the split state of the parent communicator's backend of this name, for create().
  void adopt(split_state state) { m_split_state = std::move(state); }
  // Collective; does not throw. On failure, take_failure() returns the details.
  isthmus_status create() noexcept;
  void destroy() noexcept;

  // Returns the failure that the backend reported most recently. If it reported none, creates a
  // failure from `status`. If `status` is no error, the failure (BACKEND) says what the backend returned.
  failure_info take_failure(isthmus_status status, const char* activity);

 private:
  static isthmus_status on_allgather(void* runtime, const void* contribution, void* all, size_t bytes);
  static const char* on_option(void* runtime, const char* key);
  static isthmus_status on_fail(void* runtime, isthmus_status status, int64_t native_code, const char* location,
                                const char* hint, const char* format, ...);
  static isthmus_status on_fail_with_ranks(void* runtime, const int* ranks, size_t n, isthmus_status status,
                                           int64_t native_code, const char* location, const char* hint,
                                           const char* format, ...);
  static void on_log(void* runtime, int level, const char* format, ...);
  static int on_aborted(void* runtime);
  static void on_set_awaited_rank(void* runtime, int rank);
  static int on_progress(void* runtime);
  static int on_heap_find(void* runtime, const void* pointer, uint64_t bytes, isthmus_heap_block* block,
                          uint64_t* offset);
  static isthmus_status on_heap_allocate(void* runtime, uint64_t bytes, isthmus_heap_block* block);
  static isthmus_status on_heap_free(void* runtime, uint64_t id);
  static isthmus_status on_create_subcommunicator(void* runtime, isthmus_device device, int color, int key,
                                                  const char* use, isthmus_communicator* result);
  static void on_abort_communicator(void* runtime, isthmus_status status);

  void report(const failure_info& info);
  [[gnu::cold]] isthmus_status report_exception(const char* function) noexcept;  // in a catch block
  template <typename Work>
  isthmus_status serve(Work&& work) noexcept;
  template <typename Call>
  isthmus_status guard_call(const char* function, Call&& call) noexcept;
  template <typename Call>
  void guard_call_or_abort(const char* function, Call&& call);

  decltype(isthmus_backend::enqueue) m_enqueue;
  void* m_state = nullptr;
  communicator& m_owner;
  backend_entry m_entry;
  std::size_t m_index;
  backend_state m_rejected_state = backend_state::unavailable;
  std::string m_reason;
  std::uint32_t m_capabilities;
  isthmus_backend_context m_context{};
  split_state m_split_state;
  bool m_is_created = false;

  mutable std::mutex m_mutex;  // backends may report and log from their own threads
  std::optional<failure_info> m_failure;
  std::set<std::pair<int, std::string>> m_logged_messages;
};

}  // namespace isthmus
