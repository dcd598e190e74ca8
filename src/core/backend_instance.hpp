// One backend for one rank of one communicator: its state and what the runtime offers to it. The only place
// that calls a backend's functions: whatever they throw ends here, as a status and the failure's details.
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

// What a backend made of a split for the part's create (isthmus_backend::split); discard_split_state releases it.
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
  std::size_t index() const { return m_index; }  // in the communicator's list, the same on all ranks
  const std::string& source() const { return m_entry.source; }
  const isthmus_backend& functions() const { return *m_entry.backend; }  // to describe and compare
  // Of the call path, which reads one cache line of this object.
  isthmus_status enqueue(const isthmus_operation* operations, const char* const* algorithms,
                         std::size_t n) noexcept {
    try {
      return m_enqueue(m_state, operations, algorithms, n);
    } catch (...) {
      return report_exception("enqueue");
    }
  }
  // The functions that may be NULL do nothing, successfully, where they are.
  isthmus_status group_start() noexcept;
  isthmus_status group_end() noexcept;
  isthmus_status poll() noexcept;
  isthmus_status synchronize() noexcept;
  void abort() noexcept;
  // These have no status: an exception poisons the communicator and leaves as error.
  const char* supports(const isthmus_operation& operation, const char* algorithm);
  const char* plan(const isthmus_operation& operation, const char* algorithm);  // NULL: nothing to say
  split_state split(int color, int key);
  void register_block(const isthmus_heap_block& block);
  void unregister_block(const isthmus_heap_block& block);
  bool is_present() const { return m_entry.backend != nullptr; }  // on this rank
  bool is_usable() const { return m_is_created; }                    // on all ranks
  bool is_blocking() const { return (m_capabilities & ISTHMUS_BACKEND_BLOCKING) != 0; }
  // The reason why it can't be used; "" when it can.
  const std::string& reason() const { return m_reason; }
  std::uint32_t capabilities() const { return m_capabilities; }  // ANDed over all ranks
  const char* version() const noexcept;
  // Texts that the backend logged as warnings: what was asked for and is not used.
  std::vector<std::string> notes() const;

  // Not usable, found before or after create by some rank.
  void reject(std::string reason);
  void set_by_default(bool is_chosen_by_default) { m_context.is_chosen_by_default = is_chosen_by_default ? 1 : 0; }
  void set_capabilities(std::uint32_t shared) { m_capabilities = shared; }

  // What the parent communicator's backend of this name left for create().
  void adopt(split_state state) { m_split_state = std::move(state); }
  // Collective; does not throw. Success, or the status with the details in take_failure().
  isthmus_status create() noexcept;
  // Whether create ended in an exception, perhaps before exchanges that the other ranks are in.
  bool has_create_thrown() const { return m_has_create_thrown; }
  void destroy() noexcept;

  // The failure that the backend reported last, or one made from `status` when it reported none.
  failure_info take_failure(isthmus_status status, const char* activity);

 private:
  static isthmus_status on_allgather(void* runtime, const void* mine, void* all, size_t bytes);
  static const char* on_option(void* runtime, const char* key);
  static isthmus_status on_fail(void* runtime, isthmus_status status, int64_t native_code, const char* location,
                                const char* hint, const char* format, ...);
  static isthmus_status on_fail_with_ranks(void* runtime, const int* ranks, size_t n, isthmus_status status,
                                   int64_t native_code, const char* location, const char* hint,
                                   const char* format, ...);
  static void on_log(void* runtime, int level, const char* format, ...);
  static int on_aborted(void* runtime);
  static int on_progress(void* runtime);
  static int on_heap_find(void* runtime, const void* pointer, uint64_t bytes, isthmus_heap_block* block,
                          uint64_t* offset);
  static isthmus_status on_heap_allocate(void* runtime, uint64_t bytes, isthmus_heap_block* block);
  static isthmus_status on_heap_free(void* runtime, uint64_t id);
  static isthmus_status on_create_subcommunicator(void* runtime, int color, int key, const char* use,
                                     isthmus_communicator* result);
  static isthmus_status on_create_subcommunicator_on(void* runtime, isthmus_device device, int color, int key,
                                        const char* use, isthmus_communicator* result);
  static void on_abort_communicator(void* runtime, isthmus_status status);

  void report(const failure_info& info);
  [[gnu::cold]] isthmus_status report_exception(const char* function) noexcept;  // in a catch block
  template <typename Call>
  isthmus_status guard_call(const char* function, Call&& call) noexcept;
  template <typename Call>
  void guard_call_or_abort(const char* function, Call&& call);

  decltype(isthmus_backend::enqueue) m_enqueue;
  void* m_state = nullptr;
  communicator& m_owner;
  backend_entry m_entry;
  std::size_t m_index;
  std::string m_reason;
  std::uint32_t m_capabilities;
  isthmus_backend_context m_context{};
  split_state m_split_state;
  bool m_is_created = false;
  bool m_has_create_thrown = false;

  mutable std::mutex m_mutex;  // backends may report and log from threads of their own
  std::optional<failure_info> m_failure;
  std::set<std::pair<int, std::string>> m_logged;
};

}  // namespace isthmus
