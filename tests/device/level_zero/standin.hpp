// A Level Zero driver on host memory, for contract tests. Commands between two barriers of a list are executed
// in reverse, which hardware may also do. A missing barrier or event therefore leads to wrong data.
#pragma once

#include <level_zero/ze_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

struct _ze_driver_handle_t {};
struct _ze_device_handle_t {
  ze_device_type_t type;
  std::uint32_t ordinal;
  std::uint64_t used_bytes = 0;
};
struct _ze_context_handle_t {};

struct _ze_event_handle_t {
  bool is_signaled = false;
};
struct _ze_event_pool_handle_t {
  std::uint32_t count = 0;
  int live_events = 0;
};

namespace standin {

struct command {
  bool is_barrier;
  std::function<void()> run;
  ze_event_handle_t signals;
  std::vector<ze_event_handle_t> waits;
};

}  // namespace standin

struct _ze_command_list_handle_t {
  std::uint32_t group = 0;
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
  _ze_device_handle_t devices[3] = {{ZE_DEVICE_TYPE_VPU, 0}, {ZE_DEVICE_TYPE_GPU, 1}, {ZE_DEVICE_TYPE_GPU, 2}};
  std::map<std::uintptr_t, block> blocks;
  std::vector<ze_command_list_handle_t> lists;
  int event_pools = 0;
  bool peers = true;
  bool hold = false;

 private:
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
