// One rank of one communicator: the object that a live handle refers to. It owns the rank's backends, symmetric
// heap and rules, and runs validated operations on them.
#pragma once

#include <isthmus/interrupt.h>
#include <isthmus/isthmus.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/membership.hpp"
#include "core/backend_set.hpp"
#include "core/dispatcher.hpp"
#include "core/failure_state.hpp"
#include "core/start_barrier.hpp"
#include "core/validate.hpp"
#include "memory/heap/symmetric_heap.hpp"
#include "recorder/flight_recorder.hpp"
#include "selection/selection.hpp"

namespace isthmus {

class worker_thread;

// The settings that a rank determines before the ranks connect.
// Errors: a failure is stored instead of thrown. This rank can then report it to the other ranks, which would
// otherwise time out.
struct communicator_setup {
  isthmus_device device{};
  double timeout_s = 300;
  double setup_timeout_s = 0;  // 0: timeout_s
  std::shared_ptr<const selection::configuration> rules;
  std::vector<backend_entry> backends;
  std::optional<error> failure;
  std::uint32_t collectives = 0;               // collectives that the program may call, one bit each; 0: any
  std::vector<std::string> external_backends;  // backends that may be selected but are not created
  bool starts_together = false;                // isthmus_communicator_options::starts_together
  recorder::trace_options trace;

  // Returns all inputs of selection, as text that the ranks compare.
  std::string rules_text() const;
  // Returns the timeout of the bootstrap.
  double exchange_timeout_s() const { return setup_timeout_s > 0 ? setup_timeout_s : timeout_s; }
};
// `device` is this rank's device; options.device is not read.
communicator_setup prepare(isthmus_device device, const isthmus_communicator_options& options);

class communicator : public std::enable_shared_from_this<communicator> {
 public:
  // Collective over the bootstrap. Errors: throws on every rank or on none.
  static std::shared_ptr<communicator> create(std::unique_ptr<bootstrap> control, communicator_setup setup);
  ~communicator();
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;

  // Collective; nullptr for color < 0.
  std::shared_ptr<communicator> split(int color, int key);

  // Collective; nullptr for color < 0. Creates a communicator for the internal use of the backend `creator`
  // (isthmus_backend_context::create_subcommunicator). This communicator outlives it.
  std::shared_ptr<communicator> create_subcommunicator(isthmus_device device, int color, int key,
                                                       const std::string& creator, const char* use);

  // Collective over the surviving ranks (isthmus_communicator_shrink). Aborts this communicator.
  std::shared_ptr<communicator> shrink(double wait_s);

  // Validates, selects and runs one operation. This is the call path: it takes no lock, and it allocates
  // nothing after the first call of a kind.
  void enqueue(const isthmus_operation& operation);

  // The individual steps of enqueue, for use by groups.
  void check_alive() const { m_failures.check_alive(); }
  void check(const isthmus_operation& operation, bool is_grouped) const;
  backend_choice choose(const isthmus_operation& operation);
  bool has_mismatch_check() const { return m_has_mismatch_check; }
  // Collective; requires has_mismatch_check(). Compares the collectives in this list across all ranks.
  // Errors: throws error (MISMATCH) on all ranks.
  void compare(const backend_instance& backend, const isthmus_operation* operations, const int* algorithms,
               std::size_t n);
  // Runs validated operations, all on one backend. On failure, aborts the communicator and throws. If the
  // communicator has the option starts_together, they start and return together with the matching operations of
  // the other ranks of this process.
  void run_together(backend_instance& backend, const isthmus_operation* operations, const int* algorithms,
                    const recorder::request_info* request, std::size_t n);
  // Runs the operations without waiting for other ranks of this process.
  void run(backend_instance& backend, const isthmus_operation* operations, const int* algorithms,
           const recorder::request_info* request, std::size_t n);
  // The steps of starts_together, for groups of several communicators. They do nothing without the option.
  void announce(start_barrier::phase reached, const backend_instance& backend,
                const isthmus_operation* operations, std::size_t n);
  // Waits for the peers of the operations that `ranks` have announced.
  // Errors: TIMEOUT with the missing ranks; aborts the communicator.
  static void wait_for_local_ranks(start_barrier::phase reached, communicator* const* ranks, std::size_t n);
  [[noreturn]] void fail_batch(backend_instance& backend, isthmus_status status,
                               const isthmus_operation& first);
  worker_thread& own_worker();  // runs this rank's blocking operations in groups of several ranks

  // Aborts the communicator on all ranks. Later calls report `failure`. Any thread, at any time.
  void abort(const failure_info& failure) noexcept { m_failures.abort(failure); }
  bool is_aborted() const noexcept { return m_failures.is_aborted(); }
  failure_state& failures() { return m_failures; }
  // Runs the progress function (isthmus/interrupt.h). Blocked calls of this communicator run it periodically.
  // Returns false if no progress function is set.
  bool make_progress() const {
    if (m_progress != nullptr) m_progress(m_progress_context);
    return m_progress != nullptr || (m_is_subcommunicator && make_parent_progress());
  }
  void set_progress(isthmus_progress progress, void* context) {
    m_progress = progress;
    m_progress_context = context;
  }
  // Returns the failure that aborted the communicator, which may be asynchronous, or nullopt if there is none.
  std::optional<failure_info> failure();

  // Waits for this rank's operations and releases all resources. Errors: throws the failure
  // of a pending operation.
  void close();

  // Blocks of the symmetric heap. The backends are notified when blocks are added or removed.
  void* allocate_symmetric(std::uint64_t bytes);
  void free_symmetric(void* pointer);

  nlohmann::json info();
  nlohmann::json explain(const isthmus_operation& operation);
  // Returns the "backend:algorithm" that would run the operation, or "" if there is none.
  std::string path(const isthmus_operation& operation) const;

  const membership& ranks() const { return m_ranks; }
  bootstrap& control() { return *m_control; }
  symmetric_heap& heap() { return m_heap; }
  double timeout_s() const { return m_setup.timeout_s; }
  std::uint32_t collectives() const { return m_setup.collectives; }
  const char* option(const std::string& key) const;  // NULL if not configured
  recorder::flight_recorder& own_recorder() { return m_recorder; }

 private:
  communicator(std::shared_ptr<bootstrap> control, communicator_setup setup);
  // `parent`: set if a backend of that communicator creates this one for internal use. Failed ranks are
  // reported as ranks of the parent, even after a split.
  static std::shared_ptr<communicator> create(std::unique_ptr<bootstrap> new_control, communicator_setup setup,
                                              split_states parent_states,
                                              const std::shared_ptr<communicator>& parent);
  bool make_parent_progress() const;
  void synchronize();
  template <typename Work>
  void exchange(recorder::setup_step kind, std::uint64_t count, Work&& work);
  template <typename Work>
  void run_recorded(Work&& work);
  void check_shape(const isthmus_operation& operation) const;
  void compare_texts(const std::string& contribution);
  // Collective. Each line of `contribution` is one call of a group.
  // Errors: if the texts differ, throws error (MISMATCH) on every rank. It reports the first line that differs,
  // with the text of each rank.
  void compare_calls(const std::string& contribution);
  error annotate(const error& failure, const isthmus_operation& operation) const;
  void check_local_ranks(double waited_s);

  communicator_setup m_setup;
  std::weak_ptr<communicator> m_parent;  // set if its backend created this one
  bool m_is_subcommunicator = false;     // a backend created it; the parent may be gone
  std::shared_ptr<bootstrap> m_control;
  membership m_ranks;
  recorder::flight_recorder m_recorder;
  symmetric_heap m_heap;
  backend_set m_backends;
  failure_state m_failures;  // after the objects that it refers to
  dispatcher m_dispatcher;
  validation_scope m_scope{};
  bool m_has_mismatch_check = false;             // `check` is configured and there are peers
  std::optional<start_barrier> m_start_barrier;  // set with starts_together and several ranks in this process

  isthmus_progress m_progress = nullptr;
  void* m_progress_context = nullptr;

  std::unique_ptr<worker_thread> m_worker;
};

}  // namespace isthmus
