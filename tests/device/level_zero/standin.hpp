// A Level Zero driver on host memory, for contract tests. Commands between two barriers of a list run in
// reverse, as hardware may: a missing barrier or event shows as wrong data.
#pragma only_instance

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
  int descriptor;  // the memory is a file's, so that other processes can map it
  bool imported;
};

// The one driver of the process. Whoever touches it holds the mutex.
struct standin_state {
  static standin_state& instance();

  void count(const char* name) { ++calls[name]; }
  block* find(const void* pointer);  // the block that holds it, or nullptr
  // Runs what can run, on all lists, until nothing can.
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

// Locks the world and counts the call for the rest of a scope.
struct counted_call {
  explicit counted_call(const char* name) : state(standin_state::instance()), lock(state.mutex) { state.count(name); }
  standin_state& state;
  std::lock_guard<std::mutex> lock;
};

// Fill the tables that the loader asks for.
void add_memory(struct _ze_mem_dditable_t& table);
void add_lists(struct _ze_command_list_dditable_t& table);
void add_events(struct _ze_event_pool_dditable_t& table);
void add_events(struct _ze_event_dditable_t& table);

}  // namespace standin
