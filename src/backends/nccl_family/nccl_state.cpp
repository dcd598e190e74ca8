#include "backends/nccl_family/nccl_state.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/location.hpp"
#include "base/tables.hpp"

namespace isthmus::nccl_family {
namespace {

constexpr std::chrono::seconds release_limit{30};

// Releases of aborted communicators. At exit, waits for them, because they use the native library.
class aborted_releases {
 public:
  ~aborted_releases() {
    if (m_process != getpid()) return;  // a forked child has none of the threads
    const auto deadline = deadline_after(release_limit);
    for (const background_call& call : m_calls) call.wait(deadline - wait_clock::now());
  }
  void add(background_call call) {
    const std::lock_guard lock(m_mutex);
    std::erase_if(m_calls, [](const background_call& each) { return each.wait({}).has_value(); });
    m_calls.push_back(std::move(call));
  }

 private:
  const pid_t m_process = getpid();
  std::mutex m_mutex;
  std::vector<background_call> m_calls;
};

}  // namespace

// ---- library ------------------------------------------------------------------------------------------

native_library* native_library::get(const isthmus_backend_context& context, std::string& reason) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto library = std::make_unique<native_library>();
  if (instance() == nullptr) {
    reason = library->load(context);
    if (reason.empty()) instance() = std::move(library);
  }
  return instance().get();
}

std::string native_library::load(const isthmus_backend_context& context) {
  std::string reason;
  library_search_request search = plugin_traits.library_search;
  search.option = option_of(context, "library");
  search.site_packages = option_of(context, "site_packages");
  const dynamic_library library = dynamic_library::open(search, reason);
  if (!library) return std::string("no ") + plugin_traits.display_name + " library could be loaded: " + reason;
  path = library.path();

  const std::string missing =
      functions.load("nccl", true, [&](const std::string& name) { return library.symbol(name); });
  // Check the version first: a missing function usually means that the library is too old.
  if (functions.get_version == nullptr || functions.get_version(&version) != native_success)
    return path + " is not " + plugin_traits.display_name + ": it has no usable " + symbol_prefix +
           "GetVersion";
  version_text = format_version(version);
  if (version < minimum_version)
    return path + " is " + plugin_traits.display_name + " " + version_text + "; " +
           format_version(minimum_version) + " or newer is needed";
  if (!missing.empty())
    return path + " (" + plugin_traits.display_name + " " + version_text + ") lacks " + missing;

  return device.load(plugin_traits.platform, option_of(context, "runtime_library"), search.site_packages);
}

// ---- one rank -----------------------------------------------------------------------------------------

isthmus_status nccl_state::fail(const char* location, int result, const char* function,
                                const isthmus_operation* operation) {
  const result_info info = nccl_result_info(result);
  const char* text = m_library.functions.get_last_error(m_comm != nullptr ? m_comm : m_setup_comm);
  const char* error_text = m_library.functions.get_error_string(result);
  const bool has_details = text != nullptr && *text != '\0';
  return m_context.fail(m_context.runtime, info.status, result, location, info.hint, "%s%s%s: %s (%s)%s%s",
                        symbol_prefix, function, operation != nullptr ? " for one operation" : "", info.name,
                        error_text != nullptr ? error_text : "no details", has_details ? ": " : "",
                        has_details ? text : "");
}

isthmus_status nccl_state::fail_device(const char* location, int error, const char* function) {
  return m_context.fail(m_context.runtime, ISTHMUS_ERROR_BACKEND, error, location,
                        "check the device for earlier faults and for free memory", "%s%s on device %d: %s",
                        plugin_traits.device_prefix, function, m_context.device.ordinal,
                        m_library.device.get_error_string(error));
}

isthmus_status nccl_state::fail_interrupted(const char* location, const char* activity) {
  if (is_aborted())
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, location, nullptr,
                          "the communicator was aborted during %s", activity);
  return m_context.fail(m_context.runtime, ISTHMUS_ERROR_TIMEOUT, 0, location,
                        "check for missing or stuck ranks; increase the timeout if they are only slow",
                        "%s took longer than the timeout of %.3g s", activity, m_context.timeout_s);
}

// Waits with a timeout for a call that a non-blocking communicator completes in the background.
isthmus_status nccl_state::wait_for(native_comm comm, const char* function) {
  int progress = native_in_progress;
  int query_code = native_success;
  const bool is_done = wait_until(
      [&] {
        query_code = m_library.functions.comm_get_async_error(comm, &progress);
        return query_code != native_success || progress != native_in_progress;
      },
      std::chrono::duration<double>(m_context.timeout_s), [this] { return is_aborted(); });
  if (!is_done) return fail_interrupted(ISTHMUS_HERE, function);
  if (query_code != native_success) return fail(ISTHMUS_HERE, query_code, "CommGetAsyncError", nullptr);
  if (progress != native_success) return fail(ISTHMUS_HERE, progress, function, nullptr);
  return ISTHMUS_SUCCESS;
}

isthmus_status nccl_state::create_setup_comm(const native_unique_id& id) {
  auto config = setup_config();
  const int result =
      m_library.functions.comm_init_rank_config(&m_setup_comm, m_context.size, id, m_context.rank, &config);
  if (result != native_success && result != native_in_progress)
    return fail(ISTHMUS_HERE, result, "CommInitRankConfig", nullptr);
  return wait_for(m_setup_comm, "CommInitRankConfig");
}

isthmus_status nccl_state::create_working_comm() {
  auto config = blocking_config();
  const int result = m_library.functions.comm_split(m_setup_comm, 0, m_context.rank, &m_comm, &config);
  if (result != native_success && result != native_in_progress)
    return fail(ISTHMUS_HERE, result, "CommSplit", nullptr);
  return wait_for(m_setup_comm, "CommSplit");
}

isthmus_status nccl_state::connect(const votes<probe_record>& all, native_comm split_comm) {
  m_setup_comm = split_comm;
  const scoped_device guard(m_library.device, m_context.device.ordinal);
  if (guard.code() != 0) return fail_device(ISTHMUS_HERE, guard.code(), "SetDevice");
  m_capability = all[0].value.capability;
  for (const auto& each : all) m_capability = std::min(m_capability, each.value.capability);
  if (split_comm == nullptr) {
    native_unique_id id;
    std::memcpy(&id, all[0].value.id, sizeof(id));
    if (const isthmus_status status = create_setup_comm(id); status != ISTHMUS_SUCCESS) return status;
  }
  if (const isthmus_status status = create_working_comm(); status != ISTHMUS_SUCCESS) return status;
  if (const int error = m_library.device.malloc(&m_barrier_byte, 1); error != 0)
    return fail_device(ISTHMUS_HERE, error, "Malloc");
  return ISTHMUS_SUCCESS;
}

const char* nccl_state::supports(const isthmus_operation& operation) const {
  if (!row_of(operation.collective).is_reduction) return nullptr;
  if (!native_datatype_of(operation.datatype)) return "the library cannot reduce 16-bit integers";
  if (!native_op_of(operation.op)) return "the library has no native counterpart of this reduction operation";
  if (is_float8(operation.datatype)) {
    if (m_library.version < float8_version) return "fp8 reductions require library version 2.24 or newer";
    if (m_capability < plugin_traits.float8_capability)
      return "fp8 reductions require compute capability 9.0 or newer on all devices";
  }
  return nullptr;
}

isthmus_status nccl_state::enqueue_one(const isthmus_operation& operation) {
  const enqueue_target target{m_library.functions,     &m_library.device, m_comm,
                              m_context.rank,          m_context.size,    m_barrier_byte,
                              m_context.device.ordinal};
  scratch_memory scratch;
  const enqueue_result result = enqueue_collective(target, operation, scratch);
  if (scratch.pointer != nullptr) m_scratch.push_back(scratch);
  if (result.ok()) return ISTHMUS_SUCCESS;
  return result.is_device_error ? fail_device(ISTHMUS_HERE, result.result, result.function)
                                : fail(ISTHMUS_HERE, result.result, result.function, &operation);
}

isthmus_status nccl_state::enqueue(const isthmus_operation* operations, std::size_t n) {
  if (m_aborted.load(std::memory_order_acquire)) return fail_interrupted(ISTHMUS_HERE, "enqueue");
  m_last_stream = operations[n - 1].stream;
  if (n == 1) return enqueue_one(operations[0]);
  if (const int result = m_library.functions.group_start(); result != native_success)
    return fail(ISTHMUS_HERE, result, "GroupStart", nullptr);
  isthmus_status status = ISTHMUS_SUCCESS;
  for (std::size_t i = 0; i < n && status == ISTHMUS_SUCCESS; ++i) status = enqueue_one(operations[i]);
  const int result = m_library.functions.group_end();
  return status == ISTHMUS_SUCCESS && result != native_success ? fail(ISTHMUS_HERE, result, "GroupEnd", nullptr)
                                                               : status;
}

isthmus_status nccl_state::finish_group(int result) {
  after_launch();
  return result == native_success ? ISTHMUS_SUCCESS : fail(ISTHMUS_HERE, result, "GroupEnd", nullptr);
}

void nccl_state::after_launch() {
  // Stream-ordered free: the memory is released after the operation that uses it.
  for (const scratch_memory& scratch : m_scratch) m_library.device.free_async(scratch.pointer, scratch.stream);
  m_scratch.clear();
  if (!m_call_events.should_record()) return;
  const scoped_device guard(m_library.device, m_context.device.ordinal);
  if (guard.code() == 0) m_call_events.add(m_last_stream);
}

isthmus_status nccl_state::poll() {
  if (m_aborted.load(std::memory_order_acquire)) return fail_interrupted(ISTHMUS_HERE, "poll");
  int async_result = native_success;
  const int result = m_library.functions.comm_get_async_error(m_comm, &async_result);
  if (result != native_success) return fail(ISTHMUS_HERE, result, "CommGetAsyncError", nullptr);
  if (async_result == native_success || async_result == native_in_progress)
    return m_call_events.has_timed_out(std::chrono::duration<double>(m_context.timeout_s))
               ? fail_interrupted(ISTHMUS_HERE, "a call on a stream")
               : ISTHMUS_SUCCESS;
  return fail(ISTHMUS_HERE, async_result, "CommGetAsyncError", nullptr);
}

// Synchronizes the whole device, because the streams that were used may have been destroyed.
isthmus_status nccl_state::synchronize() {
  const device_runtime device = m_library.device;
  const int ordinal = m_context.device.ordinal;
  const auto result = run_with_timeout(
      [device, ordinal] {
        const scoped_device guard(device, ordinal);
        return guard.code() != 0 ? guard.code() : device.device_synchronize();
      },
      std::chrono::duration<double>(m_context.timeout_s), [this] { return is_aborted(); });
  if (!result) return fail_interrupted(ISTHMUS_HERE, "device synchronization");
  return *result == 0 ? ISTHMUS_SUCCESS : fail_device(ISTHMUS_HERE, *result, "DeviceSynchronize");
}

void nccl_state::abort() {
  const std::lock_guard lock(m_abort_mutex);
  if (m_aborted.exchange(true) || m_setup_comm == nullptr) return;
  // ncclCommAbort frees memory, which waits for all kernels on the device. They can include kernels of a backend
  // that has not been aborted yet, so this function must not wait for the call.
  m_abort_call =
      background_call([comm_abort = m_library.functions.comm_abort,
                       setup_comm = std::exchange(m_setup_comm, nullptr)] { return comm_abort(setup_comm); });
}

void nccl_state::release() {
  const bool is_healthy =
      !is_aborted() && m_comm != nullptr && synchronize() == ISTHMUS_SUCCESS && poll() == ISTHMUS_SUCCESS;
  if (!is_healthy) abort();
  m_call_events.clear();
  std::function<int()> free_all =
      [functions = m_library.functions, device = m_library.device, ordinal = m_context.device.ordinal,
       comm = std::exchange(m_comm, nullptr), setup_comm = std::exchange(m_setup_comm, nullptr),
       barrier_byte = std::exchange(m_barrier_byte, nullptr), blocks = m_registered_blocks,
       abort_call = m_abort_call, is_healthy]() mutable {
        abort_call.wait(release_limit);
        const scoped_device guard(device, ordinal);
        if (barrier_byte != nullptr) device.free(barrier_byte);
        if (comm != nullptr && is_healthy) blocks.clear(comm);
        int destroy_result = native_success;
        if (comm != nullptr)
          destroy_result = is_healthy ? functions.comm_destroy(comm) : functions.comm_abort(comm);
        if (setup_comm != nullptr) functions.comm_destroy(setup_comm);
        return destroy_result;
      };
  if (!is_healthy) {
    // Freeing an aborted communicator takes most of a second, and a captured graph that refers to it delays it
    // further. Survivors of a failure must not wait for that.
    static aborted_releases pending_releases;
    return pending_releases.add(background_call(std::move(free_all)));
  }
  if (!run_with_timeout(std::move(free_all), release_limit))
    m_context.log(
        m_context.runtime, 2,
        "%s did not release a communicator within %d s; it is leaked. The usual cause is a captured graph "
        "that still refers to it",
        plugin_traits.display_name, static_cast<int>(release_limit.count()));
}

native_comm nccl_state::split(int color, int key) {
  if (m_aborted.load(std::memory_order_acquire)) return nullptr;
  // Use half of the timeout, because the ranks synchronize again after the split. In total, a stopped rank must
  // not delay them for longer than the timeout.
  const std::chrono::duration<double> split_timeout(m_context.timeout_s / 2);
  const auto begin = std::chrono::steady_clock::now();
  // ncclCommSplit on the blocking communicator returns only after all ranks have called it.
  const auto child = std::make_shared<native_comm>(nullptr);
  const auto comm_split = m_library.functions.comm_split;
  const device_runtime device = m_library.device;
  const int ordinal = m_context.device.ordinal;
  const native_comm parent = m_comm;
  const auto result = run_with_timeout(
      [=] {
        const scoped_device guard(device, ordinal);
        auto config = setup_config();
        return comm_split(parent, color < 0 ? split_no_color : color, key, child.get(), &config);
      },
      split_timeout, [this] { return is_aborted(); });
  if (!result || (*result != native_success && *result != native_in_progress)) {
    m_context.log(m_context.runtime, 2, "%sCommSplit %s: a new communicator is created instead", symbol_prefix,
                  result ? nccl_result_info(*result).name : "did not return");
    return nullptr;
  }
  if (*child == nullptr) return nullptr;
  int progress = native_in_progress;
  const bool is_done = wait_until(
      [&] {
        return m_library.functions.comm_get_async_error(*child, &progress) != native_success ||
               progress != native_in_progress;
      },
      split_timeout - (std::chrono::steady_clock::now() - begin), [this] { return is_aborted(); });
  if (is_done && progress == native_success) return *child;
  m_library.functions.comm_abort(*child);
  return nullptr;
}

void nccl_state::register_block(const isthmus_heap_block& block) {
  if (m_registered_blocks.mode() == registration_mode::off || m_aborted.load(std::memory_order_acquire)) return;
  vote<> local_vote;
  if (const std::string missing = m_registered_blocks.missing_function(); !missing.empty())
    local_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, m_library.version_text + " lacks " + symbol_prefix + missing);
  const auto all_ranks_agree = [&] {
    votes<> all;
    if (gather_votes(m_context, local_vote, all) != ISTHMUS_SUCCESS) return false;
    // Warn only if the user requested this mode explicitly.
    if (first_refusal(all) >= 0)
      m_context.log(m_context.runtime, m_registered_blocks.mode() == registration_mode::windows ? 2 : 1,
                    "symmetric heap blocks are not registered with %s: %s", plugin_traits.display_name,
                    refusal_text(all).c_str());
    return first_refusal(all) < 0;
  };
  // The ranks agree before registration, because creating a window waits for every rank. They agree again
  // afterwards, because registration can fail on a single rank.
  if (!all_ranks_agree()) return;
  if (const int result = register_with_library(block); result != native_success)
    local_vote.refuse(ISTHMUS_ERROR_BACKEND,
                      symbol_prefix + std::string(m_registered_blocks.register_function()) + ": " +
                          nccl_result_info(result).name,
                      {}, result);
  if (!all_ranks_agree()) unregister_block(block);
}

int nccl_state::register_with_library(const isthmus_heap_block& block) {
  void* const local_buffer = block.peers[m_context.rank];
  const device_runtime device = m_library.device;
  const int ordinal = m_context.device.ordinal;
  const native_comm comm = m_comm;
  // The copy must remain valid for a call that does not return in time.
  const auto blocks = std::make_shared<registered_blocks>(m_registered_blocks);
  const auto result = run_with_timeout(
      [=, id = block.id, bytes = block.bytes] {
        const scoped_device guard(device, ordinal);
        return blocks->add(comm, id, local_buffer, bytes);
      },
      std::chrono::duration<double>(m_context.timeout_s), [this] { return is_aborted(); });
  if (!result) return native_internal_error;
  m_registered_blocks = *blocks;
  return *result;
}

void nccl_state::unregister_block(const isthmus_heap_block& block) {
  if (m_aborted.load(std::memory_order_acquire)) return;  // the library releases it with the communicator
  const scoped_device guard(m_library.device, m_context.device.ordinal);
  m_registered_blocks.remove(m_comm, block.id);
}

}  // namespace isthmus::nccl_family
