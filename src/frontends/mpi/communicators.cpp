#include "frontends/mpi/communicators.hpp"

#include <isthmus/interrupt.h>

#include <cstdlib>
#include <cstring>
#include <isthmus/mpi/native.hpp>
#include <mutex>
#include <string>
#include <vector>

#include "frontends/mpi/native.hpp"
#include "frontends/preload/handle_cache.hpp"

namespace isthmus::mpi_shim {
namespace {

// The longest that the core takes: MPI waits for ever, so we do.
constexpr double no_timeout_s = 1e9;

// Between nodes these do what the program's MPI does itself.
constexpr const char* no_better_than_mpi = "mpi,ucx";

// All that an engine may be asked for.
constexpr std::uint32_t all_collectives =
    (1u << ISTHMUS_COLLECTIVE_COUNT) - 1 - (1u << ISTHMUS_SEND) - (1u << ISTHMUS_RECV);

// How many calls a communicator leaves to MPI before it is attached. Equal on all ranks, like the environment.
std::uint64_t calls_before_attach() {
  static const std::uint64_t calls = [] {
    const char* const value = std::getenv("ISTHMUS_MPI_FIRST_CALLS");
    return value == nullptr ? std::uint64_t{16} : std::strtoull(value, nullptr, 10);
  }();
  return calls;
}

// A copy of a communicator without its attributes, whose callbacks the program would see. MPI_COMM_NULL where
// MPI cannot make one; the program's error handler hears nothing of it.
MPI_Comm copy_of(MPI_Comm comm) {
  MPI_Errhandler theirs = MPI_ERRHANDLER_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  if (PMPI_Comm_get_errhandler(comm, &theirs) != MPI_SUCCESS) return MPI_COMM_NULL;
  PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  if (PMPI_Comm_group(comm, &group) == MPI_SUCCESS) {
    if (PMPI_Comm_create(comm, group, &made) != MPI_SUCCESS) made = MPI_COMM_NULL;
    PMPI_Group_free(&group);
  }
  PMPI_Comm_set_errhandler(comm, theirs);
  PMPI_Errhandler_free(&theirs);
  if (made != MPI_COMM_NULL) PMPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  return made;
}

bool spans_nodes(isthmus_communicator ranks) {
  int nodes = 0;
  return isthmus_communicator_nodes(ranks, &nodes) != ISTHMUS_SUCCESS || nodes != 1;
}

}  // namespace

// All communicators of the process.
class registry {
 public:
  static registry& get() {
    static auto* const only = new registry;
    return *only;
  }

  communicator* find(MPI_Comm comm) {
    const std::uintptr_t key = key_of(comm);
    if (communicator* const known = m_handle_cache.find(key)) [[likely]]
      return known;
    if (comm == MPI_COMM_NULL || !is_running()) return nullptr;
    communicator* const found = look_up(comm);
    if (found != nullptr) m_handle_cache.insert(key, found);
    return found;
  }

  // Of this rank alone, for receives that nobody matches; MPI_COMM_NULL where it can't be made. Made when the
  // first communicator is attached, no earlier: it may get the handle of one that the program has freed, and
  // MPI could not report that the program still uses that.
  MPI_Comm progress_comm() {
    const std::lock_guard lock(m_mutex);
    if (m_progress_comm == MPI_COMM_NULL) m_progress_comm = copy_of(MPI_COMM_SELF);
    return m_progress_comm;
  }
  bool takes_device_memory() const { return m_takes_device_memory; }

 private:
  // MPI_Init has been called and MPI_Finalize has not. Programs of sessions alone count as neither.
  bool is_running() {
    if (m_is_running.load(std::memory_order_acquire)) [[likely]]
      return true;
    int initialized = 0, finalized = 0;
    PMPI_Initialized(&initialized);
    PMPI_Finalized(&finalized);
    const std::lock_guard lock(m_mutex);
    if (!initialized || finalized || m_has_ended) return false;
    if (!m_is_running.load(std::memory_order_relaxed)) begin();
    return m_is_running.load(std::memory_order_relaxed);
  }

  void begin() {
    if (PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &registry::on_comm_freed, &m_keyval, nullptr) !=
            MPI_SUCCESS ||
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &registry::on_finalize, &m_finalize_keyval, nullptr) !=
            MPI_SUCCESS)
      return;
    // What hangs on MPI_COMM_SELF is deleted first thing in MPI_Finalize.
    if (PMPI_Comm_set_attr(MPI_COMM_SELF, m_finalize_keyval, this) != MPI_SUCCESS) return;
    m_takes_device_memory = mpi::detail::device_platforms() != 0;
    m_is_running.store(true, std::memory_order_release);
  }

  communicator* look_up(MPI_Comm comm) {
    void* value = nullptr;
    int has_one = 0;
    if (PMPI_Comm_get_attr(comm, m_keyval, static_cast<void*>(&value), &has_one) != MPI_SUCCESS) return nullptr;
    if (has_one) return static_cast<communicator*>(value);
    communicator* const made = take_free();
    made->begin(comm);
    if (PMPI_Comm_set_attr(comm, m_keyval, made) == MPI_SUCCESS) return made;
    release(made);
    return nullptr;
  }

  communicator* take_free() {
    const std::lock_guard lock(m_mutex);
    if (m_free.empty()) return m_all.emplace_back(std::make_unique<communicator>()).get();
    communicator* const found = m_free.back();
    m_free.pop_back();
    return found;
  }

  void release(communicator* gone) {
    gone->end();
    const std::lock_guard lock(m_mutex);
    m_free.push_back(gone);
  }

  static int on_comm_freed(MPI_Comm, int, void* value, void*) {
    get().release(static_cast<communicator*>(value));
    return MPI_SUCCESS;
  }

  static int on_finalize(MPI_Comm, int, void*, void*) {
    registry& all = get();
    int rank = 0, size = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    if (statistics().is_reporting() && rank == 0) statistics().print(rank, size);
    std::vector<communicator*> left;
    {
      const std::lock_guard lock(all.m_mutex);
      all.m_has_ended = true;
      all.m_is_running.store(false, std::memory_order_release);
      for (const auto& each : all.m_all) left.push_back(each.get());
    }
    for (communicator* const each : left) each->end();
    if (all.m_progress_comm != MPI_COMM_NULL) PMPI_Comm_free(&all.m_progress_comm);
    return MPI_SUCCESS;
  }

  preload::handle_cache<communicator> m_handle_cache;
  std::atomic<bool> m_is_running{false};
  std::mutex m_mutex;
  bool m_has_ended = false;
  std::vector<std::unique_ptr<communicator>> m_all;
  std::vector<communicator*> m_free;
  int m_keyval = MPI_KEYVAL_INVALID, m_finalize_keyval = MPI_KEYVAL_INVALID;
  MPI_Comm m_progress_comm = MPI_COMM_NULL;
  bool m_takes_device_memory = false;
};

// MPI attends to everything it has to do, messages, windows and started collectives, while it looks whether a
// request is done. This one never is: nobody sends what it would receive. (A probe looks for messages alone.)
void communicator::attend_to_mpi(void* context) {
  int is_done = 0;
  PMPI_Test(&static_cast<communicator*>(context)->m_pending, &is_done, MPI_STATUS_IGNORE);
}

communicator* communicator::of(MPI_Comm comm) { return registry::get().find(comm); }

void communicator::begin(MPI_Comm comm) {
  m_comm = comm;
  m_state = state::new_one;
  m_pass_reason = pass_reason_code::not_attached;
  m_asked = 0;
  PMPI_Comm_rank(comm, &m_rank);
  PMPI_Comm_size(comm, &m_size);
  m_key.store(key_of(comm), std::memory_order_release);
}

void communicator::end() {
  m_key.store(0, std::memory_order_release);
  m_state = state::passes;
  m_pass_reason = pass_reason_code::mpi_not_running;
  if (m_handle != nullptr) isthmus_communicator_destroy(m_handle);
  m_handle = nullptr;
  if (m_pending != MPI_REQUEST_NULL) {
    PMPI_Cancel(&m_pending);
    PMPI_Wait(&m_pending, MPI_STATUS_IGNORE);
  }
  m_store.reset();
  m_tallies.clear();
  m_taken.clear();
  m_spans_nodes = false;
}

void communicator::give_up(pass_reason_code reason) {
  m_state = state::passes;
  m_pass_reason = reason;
}

bool communicator::consider() {
  if (m_asked++ == 0) {
    int is_inter = 0;
    PMPI_Comm_test_inter(m_comm, &is_inter);
    if (is_inter)
      give_up(pass_reason_code::intercommunicator);
    else if (m_size == 1)
      give_up(pass_reason_code::one_rank);
    else if (registry::get().takes_device_memory())
      give_up(pass_reason_code::device_memory);
  }
  return m_state == state::new_one && m_asked > calls_before_attach() && attach();
}

bool communicator::attach() {
  if (!make()) {
    give_up(pass_reason_code::attach_failed);
    return false;
  }
  const MPI_Comm alone = registry::get().progress_comm();
  if (alone != MPI_COMM_NULL &&
      PMPI_Irecv(nullptr, 0, MPI_BYTE, /*source*/ 0, /*tag*/ 0, alone, &m_pending) == MPI_SUCCESS)
    isthmus_communicator_set_progress(m_handle, attend_to_mpi, this);
  m_state = state::attached;
  return true;
}

// The same result on all ranks.
bool communicator::make() {
  MPI_Comm own = copy_of(m_comm);
  if (own == MPI_COMM_NULL) return false;
  const bool made = meet(own);
  PMPI_Comm_free(&own);
  if (made || m_handle == nullptr) return made;
  isthmus_communicator_destroy(m_handle);
  m_handle = nullptr;
  m_store.reset();
  return false;
}

bool communicator::meet(MPI_Comm own) {
  m_store = std::make_unique<message_store>(own, m_rank, m_size);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = no_timeout_s;
  options.collectives = all_collectives;
  options.external_backends = no_better_than_mpi;
  const isthmus_store_table table = m_store->table();
  const isthmus_status status = isthmus_communicator_create_store(&table, m_rank, m_size, &options, &m_handle);
  if (status != ISTHMUS_SUCCESS && m_rank == 0) {
    isthmus_error_info failure;
    isthmus_last_error(&failure);
    statistics().warn_once((std::string("a communicator's calls go to MPI: ") + failure.message).c_str());
  }
  if (status == ISTHMUS_SUCCESS) m_spans_nodes = spans_nodes(m_handle);
  return m_store->end(status == ISTHMUS_SUCCESS);
}

// The same on all ranks. With a count for each rank only a mean decides, which is looked up each time.
bool communicator::is_better_than_mpi(const isthmus_operation& operation) {
  const auto look = [&] {
    char path[96] = "";
    if (isthmus_communicator_path(m_handle, &operation, path, sizeof path) != ISTHMUS_SUCCESS) return false;
    return path[0] != '\0' && std::strcmp(path, "mpi") != 0 && std::strncmp(path, "ucx", 3) != 0;
  };
  if (operation.send_counts != nullptr || operation.recv_counts != nullptr) return look();
  const auto [place, is_new] = m_taken.try_emplace(
      {operation.collective, operation.datatype, operation.op, operation.root, operation.count}, false);
  if (is_new) place->second = look();
  return place->second;
}

call_counter& communicator::tally_for(mpi_function function, const isthmus_operation& operation, std::uint64_t bytes) {
  call_counter*& place = m_tallies[{function, operation.datatype, bytes}];
  if (place != nullptr) return *place;
  char path[96] = "";
  if (isthmus_communicator_path(m_handle, &operation, path, sizeof path) != ISTHMUS_SUCCESS) path[0] = '\0';
  return *(place = &statistics().counter_of(static_cast<int>(function), path[0] == '\0' ? "isthmus" : path));
}

}  // namespace isthmus::mpi_shim
