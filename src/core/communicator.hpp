// One rank's membership: what a live handle stands for. It owns the rank's backends, symmetric heap and
// rules, and runs validated operations on them.
#pragma once

#include <isthmus/interrupt.h>
#include <isthmus/isthmus.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/membership.hpp"
#include "core/backend_instance.hpp"
#include "core/dispatcher.hpp"
#include "core/failure_board.hpp"
#include "core/validate.hpp"
#include "memory/heap/symmetric_heap.hpp"
#include "recorder/diagnosis.hpp"
#include "recorder/flight_recorder.hpp"
#include "selection/selection.hpp"

namespace isthmus {

class watch;
class worker;

// What a rank decides by itself before it meets the others. A failure is kept, not thrown, so that the
// others can be told instead of waiting.
struct communicator_setup {
  isthmus_device device{};
  double timeout_s = 300;
  double setup_timeout_s = 0;  // 0: timeout_s
  std::shared_ptr<const selection::configuration> rules;
  std::vector<backend_entry> backends;
  std::optional<error> failure;
  std::uint32_t collectives = 0;            // that will be called, a bit each; 0: any
  std::vector<std::string> external_backends;  // backends that are not made, but may be chosen
  recorder::trace_options trace;
  int parent_rank = -1;  // in the communicator that this one is made from; -1: in none

  // What decides selection, as text that the ranks compare.
  std::string rules_text() const;
  // Bound on the waits of the bootstrap.
  double exchange_timeout_s() const { return setup_timeout_s > 0 ? setup_timeout_s : timeout_s; }
};
// The device is the rank's own; that of the options is not read.
communicator_setup prepare(isthmus_device device, const isthmus_communicator_options& options);

class communicator : public std::enable_shared_from_this<communicator> {
 public:
  // Collective over the bootstrap. Throws on every rank or on none.
  static std::shared_ptr<communicator> create(std::unique_ptr<bootstrap> control, communicator_setup setup);
  ~communicator();
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;

  // Collective; nullptr for color < 0.
  std::shared_ptr<communicator> split(int color, int key);

  // Collective; nullptr for color < 0. For a backend, `maker`, that works on communicators of its own
  // (isthmus_backend_context::create_subcommunicator_on). This communicator outlives it.
  std::shared_ptr<communicator> create_subcommunicator(isthmus_device device, int color, int key, const std::string& creator,
                                          const char* use);

  // Collective over the ranks that go on (isthmus_communicator_shrink). Poisons this communicator.
  std::shared_ptr<communicator> shrink(double wait_s);

  // Validates, selects and runs one operation. The call path: no lock, no allocation once a kind of call
  // has been seen.
  void enqueue(const isthmus_operation& operation);

  // The parts of it, for groups.
  void check_alive() const {
    if (is_aborted()) [[unlikely]]
      throw_aborted();
  }
  void check(const isthmus_operation& operation, bool is_grouped) const;
  backend_choice choose(const isthmus_operation& operation);
  bool has_mismatch_check() const { return m_has_mismatch_check; }
  // Collective, where checks(): compares the collectives among these with the other ranks'. Throws error
  // (MISMATCH) on all ranks.
  void compare(const backend_instance& backend, const isthmus_operation* operations,
               const char* const* algorithms, std::size_t n);
  // Runs operations that were checked, all on one backend. A failure poisons and throws.
  void run(backend_instance& backend, const isthmus_operation* operations, const char* const* algorithms,
           const recorder::request_info* request, std::size_t n);
  [[noreturn]] void fail_batch(backend_instance& backend, isthmus_status status,
                               const isthmus_operation& first);
  worker& own_worker();  // a thread for this rank's blocking operations in groups of several ranks

  // Any thread, any time. `failure` is what later calls report.
  void abort(const failure_info& failure) noexcept { abort(failure, notification_scope::all_ranks); }
  // The same, for what a backend tells: the cause, which may come a moment later, goes first. False where it
  // has come; else `failure` names those of its culprits that others have not cleared.
  bool abort_on_backend_failure(failure_info& failure) noexcept;
  // For every wait to call again and again: takes over the failure of a rank in another process. Cheap.
  void poll_failures() noexcept;
  // The same at every call, of ranks on this machine. Who asks whether all is well takes the answer for the
  // state of buffers: a rank that has its error may have overwritten what it lent, but wrote its notice first.
  void poll_failure_board() noexcept;
  // The same of all ranks, now, waiting at most so long for it.
  // `tell` comes before the backends release anybody, or end the job: MPI's does.
  void wait_for_failures(double wait_s,
            void (*on_failure)(const communicator& rank, const failure_info& cause) = nullptr) noexcept;
  // What this communicator's waits call now and then (isthmus/interrupt.h); false where nothing is set.
  bool make_progress() const {
    if (m_progress != nullptr) m_progress(m_progress_context);
    return m_progress != nullptr || (m_is_subcommunicator && make_parent_progress());
  }
  void set_progress(isthmus_progress progress, void* context) {
    m_progress = progress;
    m_progress_context = context;
  }
  void abort_on_interrupt() noexcept;  // the calling thread was told to stop waiting
  bool is_aborted() const noexcept { return m_is_aborted.load(std::memory_order_acquire); }
  // The failure that poisoned it, asynchronous ones included; nothing when all is well.
  std::optional<failure_info> failure();

  // Waits for this rank's operations and releases everything; throws what went wrong on the way.
  void close();

  // Blocks of the symmetric heap; backends hear of them.
  void* allocate_symmetric(std::uint64_t bytes);
  void free_symmetric(void* pointer);

  nlohmann::json info();
  nlohmann::json explain(const isthmus_operation& operation);
  // "backend:algorithm" that it would take, "" where none can.
  std::string path(const isthmus_operation& operation) const;

  const membership& ranks() const { return m_ranks; }
  bootstrap& control() { return *m_control; }
  symmetric_heap& heap() { return m_heap; }
  double timeout_s() const { return m_setup.timeout_s; }
  const char* option(const std::string& key) const;  // NULL when it is not configured
  // What the watchdog sees of this rank. Any thread.
  recorder::latest_operation in_flight() const { return m_recorder.latest(); }
  recorder::flight_recorder& own_recorder() { return m_recorder; }
  // Who keeps this communicator waiting, as far as this machine knows; never throws. Any thread.
  recorder::diagnosis diagnose() const noexcept;
  // The message of a timeout, or of a rank that vanished, with that sentence; a native library's, where a rank
  // ended; other failures as they are.
  failure_info with_diagnosis(failure_info failure) const noexcept;
  // Makes `ranks` of this communicator the failure's culprits.
  void attribute_failure(failure_info& failure, std::span<const int> ranks) const;
  // On this rank alone, with nobody told. Never throws. Any thread.
  void abort_local(const failure_info& failure) noexcept { abort_this_rank(failure, notification_scope::this_process); }
  // The message of an abort, with the rank that this one waits for in vain, if it waits: a watchdog of the
  // caller's aborts when its time is over.
  failure_info with_abort_diagnosis(failure_info failure) const noexcept;

 private:
  communicator(std::unique_ptr<bootstrap> control, communicator_setup setup);
  // What the backends of a parent left for this communicator's, by name.
  using split_states = std::map<std::string, split_state>;
  // `whole`: whose backend makes it for itself. A failure's culprits are ranks of the parent, where there is
  // one.
  static std::shared_ptr<communicator> create(std::unique_ptr<bootstrap> control, communicator_setup setup,
                                              split_states parent_states, const std::shared_ptr<communicator>& parent);
  std::vector<int> to_parent_ranks(std::span<const int> ranks) const;
  communicator_setup derived_setup() const;
  split_states split_backends(int color, int key);
  void create_backends(split_states parent_states);
  void agree_on_backends();
  void create_backend(backend_instance& backend);
  bool is_last_resort(const backend_instance& backend) const;
  bool make_parent_progress() const;
  void throw_if_no_backend() const;
  [[noreturn, gnu::cold]] void throw_aborted() const;
  void synchronize();
  // Who is told: what others have announced is not announced again.
  enum class notification_scope { all_ranks, this_process };
  void abort(const failure_info& failure, notification_scope scope) noexcept;
  void abort_this_rank(const failure_info& failure, notification_scope scope) noexcept;
  // The cause comes after its consequence where a backend's own signals are faster than the bootstrap.
  double root_cause_wait_s() const noexcept;
  void abort_out_of_sync(failure_info failure) noexcept;
  void abort_on_lost_peer(int lost) noexcept;
  void attribute_diagnosis(failure_info& failure, const recorder::diagnosis& findings) const;
  bool should_query_peers() const noexcept;
  bool attribute_missing_ranks(failure_info& failure) const noexcept;
  std::vector<int> unresponsive_node_peers(const std::vector<int>& missing, isthmus_status status) const;
  enum class peer_status { aborted, present };  // what is asked after
  std::vector<int> find_unresponsive(const std::vector<int>& ranks, peer_status expected,
                              std::chrono::steady_clock::time_point deadline, bool& can_query) const;
  std::vector<int> ranks_except(const std::vector<int>& ranks) const;  // nor this one
  bool is_on_this_node(int rank) const { return m_ranks.rank_processes[static_cast<std::size_t>(rank)].pid != 0; }
  bool has_arrived_late() const noexcept;
  std::optional<bool> has_reported(int rank, peer_status expected, double wait_s) const noexcept;
  std::optional<failure_info> find_earlier_report(const failure_info& failure) const;
  template <typename Work>
  void exchange(recorder::setup_step kind, std::uint64_t count, Work&& work);
  template <typename Work>
  void run_recorded(Work&& work);
  void check_shape(const isthmus_operation& operation) const;
  void compare_texts(const std::string& mine);
  error annotate(const error& failure, const isthmus_operation& operation) const;

  communicator_setup m_setup;
  std::weak_ptr<communicator> m_parent;  // whose backend made this one for itself
  bool m_is_subcommunicator = false;               // there is, or was, a whole
  failure_board m_failure_board;                    // longer than the bootstrap that looks at them
  std::unique_ptr<bootstrap> m_control;
  membership m_ranks;
  recorder::flight_recorder m_recorder;
  symmetric_heap m_heap;
  std::vector<std::unique_ptr<backend_instance>> m_backends;
  dispatcher m_dispatcher;
  validation_scope m_scope{};
  bool m_has_mismatch_check = false;  // `check` is configured, and there are others

  isthmus_progress m_progress = nullptr;
  void* m_progress_context = nullptr;

  std::atomic<bool> m_is_aborted{false};
  std::atomic<std::uint64_t> m_waiting_operation{~std::uint64_t{0}};  // that listen was last called in
  std::atomic<std::int64_t> m_wait_begin{0}, m_next_poll{0};  // of the steady clock
  mutable std::mutex m_failure_mutex;
  std::optional<failure_info> m_failure;

  std::mutex m_abort_mutex;  // abort may come while destroy tears the backends down
  std::atomic<bool> m_is_closed{false};
  std::unique_ptr<worker> m_worker;
  std::unique_ptr<watch> m_watch;  // over calls into native libraries
};

}  // namespace isthmus
