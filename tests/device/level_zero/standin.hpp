// A Level Zero driver on host memory, for contract tests. Commands between two barriers of a list are executed
// in reverse, which hardware may also do; commands of an in-order list are executed in order. A missing barrier or event therefore leads to wrong data.
#pragma once

#include <level_zero/ze_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "standin.h"

struct _ze_driver_handle_t {};
struct _ze_device_handle_t {
  ze_device_type_t type;
  std::uint32_t ordinal;
  std::uint64_t used_bytes = 0;
};
struct _ze_context_handle_t {};

struct _ze_event_handle_t {
  bool is_counter_based = false;
  // Commands wait for the state at the time of the call. A command that signals a counter-based event starts a new state.
  std::shared_ptr<bool> is_signaled = std::make_shared<bool>(false);
};
struct _ze_event_pool_handle_t {
  std::uint32_t count = 0;
  int live_events = 0;
};

namespace standin {

struct command {
  bool is_barrier;
  std::function<void()> run;
  std::shared_ptr<bool> signals;  // null if the command signals no event
  std::vector<std::shared_ptr<bool>> waits;
};

}  // namespace standin

struct _ze_command_list_handle_t {
  std::uint32_t group = 0;
  bool is_in_order = false;
  std::deque<standin::command> pending;
};

namespace standin {

struct block {
  ze_memory_type_t type;
  ze_device_handle_t device;
  ze_context_handle_t context;
  std::uint64_t bytes;
  int descriptor;  // the memory is a file, so that other processes can map it
  bool imported;
};

// The code of a kernel; see standin_define_kernel_function.
struct kernel_code {
  std::vector<std::size_t> argument_bytes;
  standin_kernel_body* run;
};

// State of the process's only driver. The mutex must be held for all accesses.
struct standin_state {
  static standin_state& instance();

  void count(const char* name) { ++calls[name]; }
  block* find(const void* pointer);  // the block that contains `pointer`, or nullptr
  // Executes commands of all lists until none can run.
  void progress();

  std::mutex mutex;
  std::map<std::string, std::uint64_t> calls;
  _ze_driver_handle_t driver;
  std::vector<_ze_device_handle_t> devices = create_devices();
  std::map<std::uintptr_t, block> blocks;
  std::vector<ze_command_list_handle_t> lists;
  std::map<std::string, kernel_code> kernels;  // by name
  int event_pools = 0;
  bool peers = true;
  bool hold = false;
  std::minstd_rand random;

  // Appends a command to a list. Returns an error if there is no such list.
  ze_result_t append(ze_command_list_handle_t list, bool barrier, std::function<void()> run,
                     ze_event_handle_t signals, std::uint32_t waits, ze_event_handle_t* events);

 private:
  static std::vector<_ze_device_handle_t> create_devices();
  bool advance(ze_command_list_handle_t list);
};

// Counts a call, and locks the state for the rest of the scope.
struct counted_call {
  explicit counted_call(const char* name) : state(standin_state::instance()), lock(state.mutex) {
    state.count(name);
  }
  standin_state& state;
  std::lock_guard<std::mutex> lock;
};

// Fill the tables that the loader requests.
void add_memory(struct _ze_mem_dditable_t& table);
void add_lists(struct _ze_command_list_dditable_t& table);
void add_events(struct _ze_event_pool_dditable_t& table);
void add_events(struct _ze_event_dditable_t& table);

}  // namespace standin
