// One rank's membership: what a live handle stands for. It owns the rank's backends, symmetric heap and
// rules, and runs validated operations on them.
#pragma once

#include <isthmus/isthmus.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "memory/symmetric_heap.hpp"
#include "runtime/backend_instance.hpp"
#include "runtime/dispatcher.hpp"
#include "runtime/error.hpp"
#include "runtime/membership.hpp"
#include "runtime/validate.hpp"
#include "selection/selection.hpp"

namespace isthmus {

class worker;

// What a rank decides by itself before it meets the others. A failure is kept, not thrown, so that the
// others can be told instead of waiting.
struct preparation {
  isthmus_device device{};
  double timeout_s = 300;
  std::shared_ptr<const selection::configuration> rules;
  std::vector<backend_entry> backends;
  std::optional<error> failure;
  std::uint32_t collectives = 0;  // that will be called, a bit each; 0: any

  // What decides selection, as text that the ranks compare.
  std::string rules_text() const;
};
// The device is the rank's own; that of the options is not read.
preparation prepare(isthmus_device device, const isthmus_communicator_options& options);

// What the watchdog sees of a rank: the operation in flight. One writer, any reader.
struct flight {
  std::uint64_t sequence;  // changes with every operation
  isthmus_collective collective;
  isthmus_datatype datatype;
  std::uint64_t count;
  bool busy;
};

// Statuses that only say that another rank failed: a cause, where one is known, tells more.
constexpr bool is_consequence(isthmus_status status) {
  return status == ISTHMUS_ERROR_ABORTED || status == ISTHMUS_ERROR_REMOTE;
}

class communicator : public std::enable_shared_from_this<communicator> {
 public:
  // Collective over the bootstrap. Throws on every rank or on none.
  static std::shared_ptr<communicator> create(std::unique_ptr<bootstrap> meeting, preparation prepared);
  ~communicator();
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;

  // Collective; nullptr for color < 0.
  std::shared_ptr<communicator> split(int color, int key);

  // Validates, selects and runs one operation. The call path: no lock, no allocation once a kind of call
  // has been seen.
  void enqueue(const isthmus_operation& operation);

  // The parts of it, for groups.
  void check_alive() const {
    if (poisoned()) [[unlikely]]
      throw_poisoned();
  }
  void check(const isthmus_operation& operation, bool grouped) const;
  choice choose(const isthmus_operation& operation);
  // Runs operations that were checked, all on one backend. A failure poisons and throws.
  void run(backend_instance& backend, const isthmus_operation* operations, const char* const* algorithms,
           std::size_t n);
  [[noreturn]] void fail_batch(backend_instance& backend, isthmus_status status,
                               const isthmus_operation& first);
  worker& own_worker();  // a thread for this rank's blocking operations in groups of several ranks

  // Any thread, any time. `failure` is what later calls report.
  void poison(const isthmus_error_info& failure) noexcept;
  bool poisoned() const noexcept { return m_poisoned.load(std::memory_order_acquire); }
  // The failure that poisoned it, asynchronous ones included; nothing when all is well.
  std::optional<isthmus_error_info> failure();

  // Waits for this rank's operations and releases everything; throws what went wrong on the way.
  void close();

  // Blocks of the symmetric heap; backends hear of them.
  void* allocate_symmetric(std::uint64_t bytes);
  void free_symmetric(void* pointer);

  nlohmann::json info();
  nlohmann::json explain(const isthmus_operation& operation);

  const membership& ranks() const { return m_ranks; }
  bootstrap& meeting() { return *m_meeting; }
  symmetric_heap& heap() { return m_heap; }
  double timeout_s() const { return m_prepared.timeout_s; }
  const char* option(const std::string& key) const;  // NULL when it is not configured
  flight in_flight() const;

 private:
  communicator(std::unique_ptr<bootstrap> meeting, preparation prepared);
  // What the backends of a parent left for this communicator's, by name.
  using parts = std::map<std::string, backend_part>;
  static std::shared_ptr<communicator> create(std::unique_ptr<bootstrap> meeting, preparation prepared,
                                              parts inherited);
  parts split_backends(int color, int key);
  void create_backends(parts inherited);
  void agree_on_backends();
  void create_backend(backend_instance& backend);
  [[noreturn, gnu::cold]] void throw_poisoned() const;
  void synchronize();
  void poison_here(const isthmus_error_info& failure) noexcept;
  error annotate(const error& failure, const isthmus_operation& operation) const;

  preparation m_prepared;
  std::unique_ptr<bootstrap> m_meeting;
  membership m_ranks;
  symmetric_heap m_heap;
  std::vector<std::unique_ptr<backend_instance>> m_backends;
  dispatcher m_dispatcher;
  validation_scope m_scope{};

  std::atomic<std::uint64_t> m_flight{0};  // sequence << 24 | datatype << 16 | collective << 8 | busy
  std::atomic<std::uint64_t> m_flight_count{0};

  std::atomic<bool> m_poisoned{false};
  mutable std::mutex m_failure_mutex;
  std::optional<isthmus_error_info> m_failure;

  std::mutex m_abort_mutex;  // abort may come while destroy tears the backends down
  bool m_closed = false;
  std::unique_ptr<worker> m_worker;
};

}  // namespace isthmus
