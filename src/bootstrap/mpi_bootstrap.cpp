#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/mpi_thread_guard.hpp"
#include "failure/health.hpp"
#include "failure/wait.hpp"
#include "failure/watchdog.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;

void check(const isthmus_mpi_table& mpi, int code, const char* function) {
  if (code == 0) return;
  char text[512] = "";
  mpi.error_string(code, text, sizeof text);
  throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                   fmt::format("{} failed in {}: {}", function, mpi.library, text),
                   "see the documentation of that MPI library for its error text", code);
}

void check(const mpi_thread_guard& thread_guard) {
  if (thread_guard.violation() != nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE, thread_guard.violation(),
                     mpi_thread_guard::hint);
}

// Returns watchdog rules for a collective MPI call. MPI has no timeout and cannot cancel the call, so the
// watchdog aborts the job after `timeout_s`. `ranks` is nullptr if the peers are not known yet.
watch_options make_watch_rules(const isthmus_mpi_table& mpi, isthmus_mpi_comm comm, double timeout_s,
                               const char* call, const peer_monitor* ranks = nullptr) {
  watch_options rules;
  rules.timeout = std::chrono::duration<double>(timeout_s);
  rules.operation = [begin = clock::now()] { return watched_operation{1, begin}; };
  rules.has_slow_actions = true;
  rules.on_stuck = [=, &mpi, has_fired = false](std::uint64_t) mutable {
    if (std::exchange(has_fired, true)) return true;
    const std::string missing_text = ranks == nullptr ? "" : ranks->describe({});
    log(log_level::error,
        "{} has not returned within {} s: {}; this call cannot be cancelled, so MPI_Abort ends the job", call,
        timeout_s,
        missing_text.empty() ? "a rank did not create or split its communicator, or it has exited"
                             : missing_text);
    mpi.comm_abort(comm, ISTHMUS_ERROR_TIMEOUT);
    return true;
  };
  return rules;
}

// Owner of an MPI communicator; frees it on destruction.
class owned_comm {
 public:
  owned_comm(const isthmus_mpi_table& mpi, isthmus_mpi_comm comm) : m_mpi(&mpi), m_comm(comm) {}
  owned_comm(owned_comm&& other) noexcept : m_mpi(other.m_mpi), m_comm(std::exchange(other.m_comm, nullptr)) {}
  owned_comm& operator=(owned_comm&&) = delete;
  ~owned_comm() {
    if (m_comm != nullptr) m_mpi->comm_free(m_comm);
  }
  isthmus_mpi_comm get() const { return m_comm; }
  void leak() noexcept { m_comm = nullptr; }

  static owned_comm duplicate(const isthmus_mpi_table& mpi, isthmus_mpi_comm source, double timeout_s) {
    isthmus_mpi_comm result = nullptr;
    const watch timeout_watch(make_watch_rules(mpi, source, timeout_s, "MPI_Comm_dup"));
    check(mpi, mpi.comm_dup(source, &result), "MPI_Comm_dup");
    return {mpi, result};
  }

 private:
  const isthmus_mpi_table* m_mpi;
  isthmus_mpi_comm m_comm;
};

// An allgather that uses messages between all pairs of ranks. Unlike MPI_Allgather, it can be abandoned, and it
// can name the missing ranks. It owns its buffers because an abandoned message may still use them.
struct pending_allgather {
  std::vector<std::byte> contribution, all;
  std::vector<void*> sends, receives;  // one request per rank; NULL: complete
};

class mpi_bootstrap final : public bootstrap {
 public:
  mpi_bootstrap(const isthmus_mpi_table& mpi, owned_comm control, double timeout_s)
      : m_mpi(mpi),
        m_control(std::move(control)),
        m_payload(owned_comm::duplicate(mpi, m_control.get(), timeout_s)),
        m_timeout_s(timeout_s),
        m_rank(query(mpi.comm_rank, "MPI_Comm_rank")),
        m_size(query(mpi.comm_size, "MPI_Comm_size")),
        m_peers(m_rank, m_size) {}
  // A peer may still send messages that this rank no longer receives. If MPI reused the context of a freed
  // communicator, a later communicator would receive them.
  ~mpi_bootstrap() override {
    if (!m_is_out_of_sync && !m_is_cancelled.load(std::memory_order_acquire)) return;
    m_control.leak();
    m_payload.leak();
  }
  mpi_bootstrap(const mpi_bootstrap&) = delete;
  mpi_bootstrap& operator=(const mpi_bootstrap&) = delete;

  int rank() const override { return m_rank; }
  int size() const override { return m_size; }
  const char* name() const override { return "mpi"; }
  const isthmus_mpi_table* mpi_table() const override { return &m_mpi; }
  isthmus_mpi_comm mpi_comm() const override { return m_payload.get(); }
  void cancel() noexcept override { m_is_cancelled.store(true, std::memory_order_release); }

  void watch_processes(std::span<const rank_process> processes) override { m_peers.watch(processes); }
  bool is_out_of_sync() const override { return m_is_out_of_sync; }

  // Publishes only through shared memory, because a rank of another node would have to post a receive
  // for the message.
  bool publish_failure(const failure_info& failure) noexcept override {
    return m_peers.publish(failure) && m_peers.has_all_records();
  }
  std::optional<failure_info> wait_for_failure(double wait_s) noexcept override {
    return m_peers.read_failure(m_peers.has_all_records() ? wait_s
                                                          : 0);  // a rank without a record cannot publish
  }

  void allgather(std::span<const std::byte> contribution, std::span<std::byte> all) override {
    const mpi_thread_guard thread_guard(m_mpi);
    check(thread_guard);
    auto pending = std::make_unique<pending_allgather>();
    try {
      start(*pending, contribution);
      finish(*pending);
    } catch (const error& failure) {
      m_is_out_of_sync = true;
      if (!m_is_cancelled.load(std::memory_order_acquire) && !m_peers.read_failure())
        publish_failure(m_peers.make_failure_info(failure));
      for (void*& request : pending->receives)
        if (request != nullptr) m_mpi.cancel(&request);
      // Leak the buffers, because a peer may still read them, and MPI does not report when the
      // peer has finished.
      static_cast<void>(pending.release());
      throw;
    }
    std::copy(pending->all.begin(), pending->all.end(), all.begin());
  }

  // MPI decides which ranks have failed and waits for the others without a timeout, as in split.
  survivors shrink(double) override {
    if (m_mpi.struct_bytes < sizeof m_mpi || m_mpi.comm_shrink == nullptr)
      throw make_error(
          ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
          fmt::format("communicator_shrink: {} has no MPIX_Comm_shrink (ULFM)", m_mpi.library),
          "use an MPI library with ULFM, or create communicators that must survive failures from a unique id");
    const mpi_thread_guard thread_guard(m_mpi);
    check(thread_guard);
    isthmus_mpi_comm remaining = nullptr;
    check(m_mpi, m_mpi.comm_shrink(m_control.get(), &remaining), "MPIX_Comm_shrink");
    auto control = std::make_unique<mpi_bootstrap>(m_mpi, owned_comm(m_mpi, remaining), m_timeout_s);
    std::vector<int> ranks(static_cast<std::size_t>(control->size()));
    control->allgather(std::as_bytes(std::span(&m_rank, 1)), std::as_writable_bytes(std::span(ranks)));
    control->m_parent_ranks = ranks;
    return {std::move(ranks), std::move(control)};
  }

 private:
  // MPI_Comm_split has no timeout and cannot name missing ranks. The exchange before it does both.
  std::unique_ptr<bootstrap> split_off(int color, int key, const std::vector<int>& ranks) override {
    const mpi_thread_guard thread_guard(m_mpi);
    check(thread_guard);
    isthmus_mpi_comm child = nullptr;
    const watch timeout_watch(
        make_watch_rules(m_mpi, m_control.get(), m_timeout_s, "MPI_Comm_split", &m_peers));
    check(m_mpi, m_mpi.comm_split(m_control.get(), color, key, &child), "MPI_Comm_split");
    if (child == nullptr) return nullptr;
    auto control = std::make_unique<mpi_bootstrap>(m_mpi, owned_comm(m_mpi, child), m_timeout_s);
    control->m_parent_ranks = ranks;
    return control;
  }

  template <typename Function>
  int query(Function* function, const char* name) const {
    int value = 0;
    check(m_mpi, function(m_control.get(), &value), name);
    return value;
  }

  void start(pending_allgather& pending, std::span<const std::byte> contribution) {
    const auto ranks = static_cast<std::size_t>(m_size), bytes = contribution.size();
    pending.contribution.assign(contribution.begin(), contribution.end());
    pending.all.resize(ranks * bytes);
    pending.sends.resize(ranks);
    pending.receives.resize(ranks);
    std::copy(contribution.begin(), contribution.end(),
              pending.all.begin() + static_cast<std::ptrdiff_t>(rank() * bytes));
    for (int peer = 0; peer < m_size; ++peer) {
      if (peer == m_rank) continue;
      const auto index = static_cast<std::size_t>(peer);
      isthmus_operation message{};
      message.datatype = ISTHMUS_UINT8;
      message.root = peer;
      message.count = bytes;
      message.collective = ISTHMUS_RECV;
      message.recv_buf = pending.all.data() + index * bytes;
      check(m_mpi, m_mpi.start(m_control.get(), &message, &pending.receives[index]), "MPI_Irecv");
      message.collective = ISTHMUS_SEND;
      message.send_buf = pending.contribution.data();
      check(m_mpi, m_mpi.start(m_control.get(), &message, &pending.sends[index]), "MPI_Isend");
    }
  }

  void finish(pending_allgather& pending) {
    const auto deadline = deadline_after(m_timeout_s);
    auto next_poll = clock::now() + poll_interval;
    const auto is_finished = [&] {
      if (test_requests(pending)) return true;
      if (m_is_cancelled.load(std::memory_order_acquire))
        throw make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
                         "the communicator was aborted during an exchange over MPI");
      throw_if_interrupted("the exchange with the other ranks");
      if (clock::now() > deadline) throw timeout(pending);
      if (clock::now() > next_poll) {
        next_poll = clock::now() + poll_interval;
        check_peers(pending);
      }
      return false;
    };
    poll_until_done(is_finished, yielding);
  }

  void check_peers(pending_allgather& pending) {
    m_peers.throw_if_peer_failed();
    const auto exited_rank = m_peers.find_exited();
    if (!exited_rank) return;
    test_requests(pending.receives);  // receive the messages that it sent before it exited
    if (pending.receives[static_cast<std::size_t>(*exited_rank)] != nullptr)
      throw m_peers.exited_error(*exited_rank);
  }

  // Tests both directions even if the receives are incomplete, because sends must also make progress.
  bool test_requests(pending_allgather& pending) {
    const bool has_received = test_requests(pending.receives);
    return test_requests(pending.sends) && has_received;
  }

  // Tests the open requests and returns true if all are complete.
  bool test_requests(std::vector<void*>& requests) {
    bool are_all_done = true;
    for (void*& request : requests) {
      if (request == nullptr) continue;
      int done = 0;
      check(m_mpi, m_mpi.test(&request, &done), "MPI_Testall");
      are_all_done = are_all_done && done != 0;
    }
    return are_all_done;
  }

  error timeout(const pending_allgather& pending) const {
    std::vector<int> missing_ranks;
    for (std::size_t peer = 0; peer < pending.receives.size(); ++peer)
      if (pending.receives[peer] != nullptr) missing_ranks.push_back(static_cast<int>(peer));
    const std::string missing_text = m_peers.describe(missing_ranks);
    return make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                      fmt::format("rank {} of {} waited {} s for an exchange over MPI; no message from rank {}",
                                  m_rank, m_size, m_timeout_s,
                                  missing_text.empty() ? "(its own messages were not received)" : missing_text),
                      "make the same call on every rank, and check whether that rank has exited")
        .with_failed_ranks(missing_ranks);
  }

  const isthmus_mpi_table& m_mpi;
  owned_comm m_control, m_payload;
  double m_timeout_s;
  int m_rank, m_size;
  peer_monitor m_peers;
  bool m_is_out_of_sync = false;
  std::atomic<bool> m_is_cancelled{false};
};

}  // namespace

std::unique_ptr<bootstrap> make_mpi_bootstrap(const isthmus_mpi_table* table, double timeout_s) {
  if (table->magic != ISTHMUS_MPI_TABLE_MAGIC || table->struct_bytes < ISTHMUS_MPI_TABLE_MIN_BYTES)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("communicator_create_mpi: mpi has magic {:#x} and {} bytes, must be {:#x} and at least {}",
                    table->magic, table->struct_bytes, ISTHMUS_MPI_TABLE_MAGIC, ISTHMUS_MPI_TABLE_MIN_BYTES),
        "fill it with isthmus::mpi::table of the mpi.hpp that belongs to this library");
  const mpi_thread_guard thread_guard(*table);
  check(thread_guard);
  return std::make_unique<mpi_bootstrap>(*table, owned_comm::duplicate(*table, table->comm, timeout_s),
                                         timeout_s);
}

}  // namespace isthmus
