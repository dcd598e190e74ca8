#include "frontends/mpi/attached_communicator.hpp"

#include <isthmus/interrupt.h>
#include <isthmus/tools.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.hpp"
#include "base/trust.hpp"
#include "frontends/mpi/native.hpp"

namespace isthmus::mpi_shim {
namespace {

constexpr std::array reason_texts = {MPI_PASS_REASONS(ISTHMUS_PASS_REASON_TEXT)};
constexpr preload::statistics_labels labels = {"mpi",
                                               "MPI",
                                               "ISTHMUS_MPI_REPORT",
                                               mpi_function_names,
                                               mpi_function_count,
                                               reason_texts.data(),
                                               static_cast<int>(reason_texts.size())};

// Backends that gain nothing over the program's MPI between nodes.
constexpr const char* mpi_equivalent_backends = "mpi,ucx";

// All collectives that an engine can run.
constexpr std::uint32_t supported_collectives =
    (1u << ISTHMUS_COLLECTIVE_COUNT) - 1 - (1u << ISTHMUS_SEND) - (1u << ISTHMUS_RECV);

// Time that a communicator spends in collectives of MPI before it is attached: about as long as attaching takes.
double seconds_before_attach() {
  static const double seconds = [] {
    constexpr double default_ms = 1;
    const char* const text = environment_variable("ISTHMUS_MPI_ATTACH_MS");
    if (text == nullptr || *text == '\0') return default_ms / 1e3;
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (*end == '\0' && value >= 0) return value / 1e3;
    statistics().warn_once((std::string("ISTHMUS_MPI_ATTACH_MS = ") + text +
                            " must be a number of milliseconds that is at least 0; 1 is used")
                               .c_str());
    return default_ms / 1e3;
  }();
  return seconds;
}

bool has_mapped_this_library(const std::filesystem::path& process) {
  std::ifstream file(process / "maps");
  for (std::string line; std::getline(file, line);)
    if (line.ends_with("/libisthmus_mpi_preload.so")) return true;
  return false;
}

// Counts the processes of this process's launcher that run this library, including this process.
int count_preloaded_siblings() {
  int count = 0;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry("/proc", failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const long pid = std::strtol(entry->path().filename().c_str(), nullptr, 10);  // 0: not a process
    if (pid > 0 && parent_process(pid) == getppid() && has_mapped_this_library(entry->path())) ++count;
  }
  return count;
}

// Returns whether every rank of MPI_COMM_WORLD runs this library. A rank without it could not take part in attaching, and no
// message can detect such a rank: it would be received by the program. On one node, the processes of the launcher show
// it: all ranks have loaded their libraries when MPI_Init returns. On several nodes, the variable must state it.
// `isthmus run` sets the variable, because it starts all ranks with the library.
bool are_all_ranks_preloaded() {
  static const bool value = [] {
    if (const char* const text = environment_variable("ISTHMUS_MPI_ALL_RANKS");
        text != nullptr && *text != '\0')
      return std::string_view(text) != "0";
    int size = 0;
    return PMPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS && size == count_preloaded_siblings();
  }();
  return value;
}

// Returns whether all ranks are in this process's MPI_COMM_WORLD. The result is the same on all ranks. Processes of
// other worlds (MPI_Comm_spawn, MPI_Comm_accept) may run without this library.
bool is_within_world(MPI_Comm comm, int size) {
  if (comm == MPI_COMM_WORLD) return true;
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  std::vector<int> ranks(static_cast<std::size_t>(size)), world_ranks(ranks.size(), MPI_UNDEFINED);
  std::iota(ranks.begin(), ranks.end(), 0);
  if (PMPI_Comm_group(comm, &group) == MPI_SUCCESS && PMPI_Comm_group(MPI_COMM_WORLD, &world) == MPI_SUCCESS)
    PMPI_Group_translate_ranks(group, size, ranks.data(), world, world_ranks.data());
  for (MPI_Group* const each : {&group, &world})
    if (*each != MPI_GROUP_NULL) PMPI_Group_free(each);
  return std::ranges::find(world_ranks, MPI_UNDEFINED) == world_ranks.end();
}

// Copies a communicator without its attributes, because the program could observe their copy callbacks.
// Errors: returns MPI_COMM_NULL without calling the program's error handler.
MPI_Comm copy_without_attributes(MPI_Comm comm) {
  MPI_Errhandler user_errhandler = MPI_ERRHANDLER_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm created = MPI_COMM_NULL;
  if (PMPI_Comm_get_errhandler(comm, &user_errhandler) != MPI_SUCCESS) return MPI_COMM_NULL;
  PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  if (PMPI_Comm_group(comm, &group) == MPI_SUCCESS) {
    if (PMPI_Comm_create(comm, group, &created) != MPI_SUCCESS) created = MPI_COMM_NULL;
    PMPI_Group_free(&group);
  }
  PMPI_Comm_set_errhandler(comm, user_errhandler);
  PMPI_Errhandler_free(&user_errhandler);
  if (created != MPI_COMM_NULL) PMPI_Comm_set_errhandler(created, MPI_ERRORS_RETURN);
  return created;
}

bool spans_nodes(isthmus_communicator handle) {
  int nodes = 0;
  return isthmus_communicator_nodes(handle, &nodes) != ISTHMUS_SUCCESS || nodes != 1;
}

outcome handle_failure(attached_communicator& communicator, MPI_Comm comm, mpi_function function,
                       isthmus_status status) {
  if (preload::is_rank_lost(status)) {
    communicator.pass_all_calls(pass_reason_code::rank_lost);
    return pass_through(pass_reason_code::rank_lost);
  }
  if (status == ISTHMUS_ERROR_INVALID_ARGUMENT) return {outcome::result_kind::refused};
  if (status == ISTHMUS_ERROR_UNSUPPORTED) return pass_through(pass_reason_code::no_backend);
  const std::string name = mpi_function_names[static_cast<int>(function)];
  statistics().warn_once((name + " failed: " + preload::last_error_message()).c_str());
  return completed(raise_error(comm, status == ISTHMUS_ERROR_OUT_OF_MEMORY ? MPI_ERR_NO_MEM : MPI_ERR_INTERN));
}

}  // namespace

preload::call_statistics& statistics() {
  static auto* const instance = new preload::call_statistics(labels);
  return *instance;
}

// All attached communicators of the process.
class communicator_registry {
 public:
  static communicator_registry& get() {
    static auto* const instance = new communicator_registry;
    return *instance;
  }

  attached_communicator* find(MPI_Comm comm) {
    const std::uintptr_t key = key_of(comm);
    if (attached_communicator* const cached = m_pool.find_cached(key)) [[likely]]
      return cached;
    if (comm == MPI_COMM_NULL || !is_running()) return nullptr;
    attached_communicator* const result = find_or_create(comm);
    if (result != nullptr) m_pool.cache(key, result);
    return result;
  }

  // Returns a communicator that contains only this rank, for receives that never match. Returns MPI_COMM_NULL
  // on failure. It is created when the first communicator is attached. If it were created earlier, it could get
  // the handle of a communicator that the program has freed, and MPI could not report that the program still
  // uses that handle.
  MPI_Comm progress_comm() {
    const std::lock_guard lock(m_mutex);
    if (m_progress_comm == MPI_COMM_NULL) m_progress_comm = copy_without_attributes(MPI_COMM_SELF);
    return m_progress_comm;
  }
  bool supports_device_memory() const { return m_supports_device_memory; }

 private:
  // Returns whether MPI is initialized and not finalized. Programs that use only MPI sessions count
  // as not initialized.
  bool is_running() {
    if (m_is_running.load(std::memory_order_acquire)) [[likely]]
      return true;
    int initialized = 0, finalized = 0;
    PMPI_Initialized(&initialized);
    PMPI_Finalized(&finalized);
    const std::lock_guard lock(m_mutex);
    if (!initialized || finalized || m_has_ended) return false;
    if (!m_is_running.load(std::memory_order_relaxed)) initialize();
    return m_is_running.load(std::memory_order_relaxed);
  }

  void initialize() {
    if (PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &communicator_registry::handle_comm_free, &m_keyval,
                                nullptr) != MPI_SUCCESS ||
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &communicator_registry::handle_finalize,
                                &m_finalize_keyval, nullptr) != MPI_SUCCESS)
      return;
    // MPI_Finalize deletes the attributes of MPI_COMM_SELF first.
    if (PMPI_Comm_set_attr(MPI_COMM_SELF, m_finalize_keyval, this) != MPI_SUCCESS) return;
    m_supports_device_memory = mpi::detail::device_platforms() != 0;
    m_is_running.store(true, std::memory_order_release);
  }

  attached_communicator* find_or_create(MPI_Comm comm) {
    void* value = nullptr;
    int has_attribute = 0;
    if (PMPI_Comm_get_attr(comm, m_keyval, static_cast<void*>(&value), &has_attribute) != MPI_SUCCESS)
      return nullptr;
    if (has_attribute) return static_cast<attached_communicator*>(value);
    attached_communicator* const created = m_pool.acquire();
    created->reset(comm);
    if (PMPI_Comm_set_attr(comm, m_keyval, created) == MPI_SUCCESS) return created;
    release(created);
    return nullptr;
  }

  void release(attached_communicator* communicator) {
    communicator->release();
    m_pool.recycle(communicator);
  }

  static int handle_comm_free(MPI_Comm, int, void* value, void*) {
    get().release(static_cast<attached_communicator*>(value));
    return MPI_SUCCESS;
  }

  static int handle_finalize(MPI_Comm, int, void*, void*) {
    communicator_registry& all = get();
    int rank = 0, size = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    if (statistics().is_reporting() && rank == 0) statistics().print(rank, size);
    {
      const std::lock_guard lock(all.m_mutex);
      all.m_has_ended = true;
      all.m_is_running.store(false, std::memory_order_release);
    }
    for (attached_communicator* const each : all.m_pool.all()) each->release();
    if (all.m_progress_comm != MPI_COMM_NULL) PMPI_Comm_free(&all.m_progress_comm);
    return MPI_SUCCESS;
  }

  preload::communicator_pool<attached_communicator> m_pool;
  std::atomic<bool> m_is_running{false};
  std::mutex m_mutex;
  bool m_has_ended = false;
  int m_keyval = MPI_KEYVAL_INVALID, m_finalize_keyval = MPI_KEYVAL_INVALID;
  MPI_Comm m_progress_comm = MPI_COMM_NULL;
  bool m_supports_device_memory = false;
};

// Testing any request lets MPI progress messages, windows and nonblocking collectives. This request never
// completes, because no rank sends a matching message. (A probe would progress only messages.)
void attached_communicator::progress_mpi(void* context) {
  int is_done = 0;
  PMPI_Test(&static_cast<attached_communicator*>(context)->m_pending_receive, &is_done, MPI_STATUS_IGNORE);
}

attached_communicator* attached_communicator::find(MPI_Comm comm) {
  return communicator_registry::get().find(comm);
}

void attached_communicator::reset(MPI_Comm comm) {
  m_comm = comm;
  m_state = attach_state::unattached;
  m_pass_reason = pass_reason_code::not_attached;
  m_call_count = 0;
  m_seconds_in_mpi = 0;
  PMPI_Comm_rank(comm, &m_rank);
  PMPI_Comm_size(comm, &m_size);
  publish(key_of(comm));
}

void attached_communicator::release() {
  retract();
  m_state = attach_state::pass_through;
  m_pass_reason = pass_reason_code::mpi_not_running;
  if (m_handle != nullptr) isthmus_communicator_destroy(m_handle);
  m_handle = nullptr;
  if (m_pending_receive != MPI_REQUEST_NULL) {
    PMPI_Cancel(&m_pending_receive);
    PMPI_Wait(&m_pending_receive, MPI_STATUS_IGNORE);
  }
  m_store.reset();
  m_counters.clear();
  m_decisions.clear();
  m_spans_nodes = false;
}

void attached_communicator::pass_all_calls(pass_reason_code reason) {
  m_state = attach_state::pass_through;
  m_pass_reason = reason;
}

// Decides at the first call, which all ranks make, whether and when the communicator is attached. Every decision is the
// same on all ranks.
void attached_communicator::begin() {
  int is_inter = 0;
  PMPI_Comm_test_inter(m_comm, &is_inter);
  if (is_inter) return pass_all_calls(pass_reason_code::intercommunicator);
  if (m_size == 1) return pass_all_calls(pass_reason_code::one_rank);
  if (communicator_registry::get().supports_device_memory())
    return pass_all_calls(pass_reason_code::device_memory);
  if (!is_within_world(m_comm, m_size)) return pass_all_calls(pass_reason_code::other_world);
  if (!are_all_ranks_preloaded()) {
    if (m_rank == 0)
      statistics().warn_once(
          "all calls go to MPI, because not every rank of this node runs this library, or there are several "
          "nodes; set "
          "ISTHMUS_MPI_ALL_RANKS=1 if every rank runs it");
    return pass_all_calls(pass_reason_code::ranks_not_promised);
  }
}

// A single delay, for example by the scheduler, must not attach a communicator that is freed soon. Therefore a call counts
// for at most a quarter of the limit.
void attached_communicator::add_time(std::chrono::duration<double> time) {
  m_seconds_in_mpi += std::min(time.count(), seconds_before_attach() / 4);
}

// The ranks compare their mean time with the mean of their limits, because both can differ. They do this after 0, 1, 3, 7
// ... calls, so that communicators that are never attached compare rarely. Sums of integers are equal on all ranks.
bool attached_communicator::attach_when_due() {
  if (++m_call_count == 1) begin();
  if (m_state != attach_state::unattached || !std::has_single_bit(m_call_count)) return false;
  constexpr double max_ns = 1e14;  // cannot overflow with fewer than 90,000 ranks
  const auto own_excess_ns = static_cast<std::int64_t>(
      std::clamp((m_seconds_in_mpi - seconds_before_attach()) * 1e9, -max_ns, max_ns));
  std::int64_t total_excess_ns = 0;
  if (PMPI_Allreduce(&own_excess_ns, &total_excess_ns, 1, MPI_INT64_T, MPI_SUM, m_comm) != MPI_SUCCESS) {
    pass_all_calls(pass_reason_code::attach_failed);
    return false;
  }
  return total_excess_ns >= 0 && attach();
}

bool attached_communicator::attach() {
  if (!create()) {
    pass_all_calls(pass_reason_code::attach_failed);
    return false;
  }
  const MPI_Comm progress_comm = communicator_registry::get().progress_comm();
  if (progress_comm != MPI_COMM_NULL && PMPI_Irecv(nullptr, 0, MPI_BYTE, /*source*/ 0, /*tag*/ 0, progress_comm,
                                                   &m_pending_receive) == MPI_SUCCESS)
    isthmus_communicator_set_progress(m_handle, progress_mpi, this);
  m_state = attach_state::attached;
  return true;
}

// Returns the same result on all ranks.
bool attached_communicator::create() {
  MPI_Comm copy = copy_without_attributes(m_comm);
  if (copy == MPI_COMM_NULL) return false;
  const bool is_created = create_communicator(copy);
  PMPI_Comm_free(&copy);
  if (is_created || m_handle == nullptr) return is_created;
  isthmus_communicator_destroy(m_handle);
  m_handle = nullptr;
  m_store.reset();
  return false;
}

bool attached_communicator::create_communicator(MPI_Comm copy) {
  m_store = std::make_unique<message_store>(copy, m_rank, m_size);
  isthmus_communicator_options options = preload::attach_options(mpi_equivalent_backends);
  options.collectives = supported_collectives;
  const isthmus_store_table table = m_store->table();
  const isthmus_status status = isthmus_communicator_create_store(&table, m_rank, m_size, &options, &m_handle);
  if (status != ISTHMUS_SUCCESS && m_rank == 0)
    statistics().warn_once(
        ("cannot create a communicator; its calls go to MPI: " + preload::last_error_message()).c_str());
  if (status == ISTHMUS_SUCCESS) m_spans_nodes = spans_nodes(m_handle);
  return m_store->finish(status == ISTHMUS_SUCCESS);
}

// Returns the same result on all ranks. Calls with one count per rank are not cached, because the rules depend
// on the mean of the counts.
bool attached_communicator::is_better_than_mpi(const isthmus_operation& operation) {
  const auto select = [&] {
    const std::string path = preload::select_path(m_handle, operation);
    return !path.empty() && path != "mpi" && !path.starts_with("ucx");
  };
  if (operation.send_counts != nullptr || operation.recv_counts != nullptr) return select();
  return m_decisions.find(operation, select);
}

call_counter& attached_communicator::counter_for(mpi_function function, const isthmus_operation& operation,
                                                 std::uint64_t bytes) {
  call_counter*& counter = m_counters[{function, operation.datatype, bytes}];
  if (counter != nullptr) return *counter;
  const std::string path = preload::select_path(m_handle, operation);
  counter = &statistics().counter_of(static_cast<int>(function), path.empty() ? "isthmus" : path.c_str());
  return *counter;
}

int raise_error(MPI_Comm comm, int code) {
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

outcome execute(attached_communicator& communicator, MPI_Comm comm, mpi_function function,
                const isthmus_operation& operation, std::uint64_t bytes) {
  if (!communicator.handles(operation)) return pass_through(pass_reason_code::no_rule_between_nodes);
  const preload::stopwatch timer(statistics());
  const isthmus_status status = isthmus_enqueue(communicator.handle(), &operation);
  if (status != ISTHMUS_SUCCESS) [[unlikely]]
    return handle_failure(communicator, comm, function, status);
  if (statistics().is_reporting()) {
    const std::int64_t elapsed_ns = timer.nanoseconds();
    communicator.counter_for(function, operation, bytes).add(bytes, elapsed_ns);
  }
  return completed(MPI_SUCCESS);
}

}  // namespace isthmus::mpi_shim
