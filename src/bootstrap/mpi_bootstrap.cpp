#include "bootstrap/mpi_bootstrap.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "bootstrap/mpi_threads.hpp"
#include "bootstrap/peers.hpp"
#include "device/watchdog.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;

void check(const isthmus_mpi_table& mpi, int code, const char* what) {
  if (code == 0) return;
  char text[512] = "";
  mpi.error_string(code, text, sizeof text);
  throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                   fmt::format("{} failed in {}: {}", what, mpi.library, text),
                   "the text is MPI's own; see the documentation of that library", code);
}

void check(const mpi_pass& pass) {
  if (pass.breach() != nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE, pass.breach(), mpi_pass::hint);
}

// Bounds a collective call of MPI, which knows no timeout and can't be cancelled: when it is over the job ends.
// `ranks`: where they are known already.
watch_rules limit_of(const isthmus_mpi_table& mpi, isthmus_mpi_comm comm, double timeout_s, const char* call,
                     const peer_monitor* ranks = nullptr) {
  watch_rules rules;
  rules.timeout = std::chrono::duration<double>(timeout_s);
  rules.operation = [begin = clock::now()] { return watched_operation{1, begin}; };
  rules.takes_long = true;
  rules.on_stuck = [=, &mpi, is_over = false](std::uint64_t) mutable {
    if (std::exchange(is_over, true)) return true;
    const std::string lost = ranks == nullptr ? "" : ranks->describe({});
    log(log_level::error,
        "{} has not returned for {} s: {}; MPI can't cancel that call: ending the job with MPI_Abort", call,
        timeout_s, lost.empty() ? "some rank did not create or split its communicator, or it is gone" : lost);
    mpi.comm_abort(comm, ISTHMUS_ERROR_TIMEOUT);
    return true;
  };
  return rules;
}

// An MPI communicator that this object made.
class owned_comm {
 public:
  owned_comm(const isthmus_mpi_table& mpi, isthmus_mpi_comm comm) : m_mpi(&mpi), m_comm(comm) {}
  owned_comm(owned_comm&& other) noexcept : m_mpi(other.m_mpi), m_comm(std::exchange(other.m_comm, nullptr)) {}
  owned_comm& operator=(owned_comm&&) = delete;
  ~owned_comm() {
    if (m_comm != nullptr) m_mpi->comm_free(m_comm);
  }
  isthmus_mpi_comm get() const { return m_comm; }

  static owned_comm duplicate(const isthmus_mpi_table& mpi, isthmus_mpi_comm of, double timeout_s) {
    isthmus_mpi_comm made = nullptr;
    const watch limit(limit_of(mpi, of, timeout_s, "MPI_Comm_dup"));
    check(mpi, mpi.comm_dup(of, &made), "MPI_Comm_dup");
    return {mpi, made};
  }

 private:
  const isthmus_mpi_table* m_mpi;
  isthmus_mpi_comm m_comm;
};

// One allgather by messages between all pairs: unlike MPI_Allgather it can be given up, and it knows who is
// missing. The buffers are its own, so that they can outlive a wait that was given up.
struct exchange {
  std::vector<std::byte> mine, all;
  std::vector<void*> sends, receives;  // one request for each rank; NULL: done
};

class mpi_bootstrap final : public bootstrap {
 public:
  mpi_bootstrap(const isthmus_mpi_table& mpi, owned_comm control, double timeout_s)
      : m_mpi(mpi),
        m_control(std::move(control)),
        m_payload(owned_comm::duplicate(mpi, m_control.get(), timeout_s)),
        m_timeout_s(timeout_s),
        m_rank(ask(mpi.comm_rank, "MPI_Comm_rank")),
        m_size(ask(mpi.comm_size, "MPI_Comm_size")),
        m_peers(m_rank, m_size) {}

  int rank() const override { return m_rank; }
  int size() const override { return m_size; }
  const char* name() const override { return "mpi"; }
  const isthmus_mpi_table* mpi_table() const override { return &m_mpi; }
  isthmus_mpi_comm mpi_comm() const override { return m_payload.get(); }
  void cancel() noexcept override { m_cancelled.store(true, std::memory_order_release); }

  void watch_processes(std::span<const rank_process> processes) override { m_peers.watch(processes); }
  bool is_out_of_sync() const override { return m_is_out_of_sync; }

  // By memory alone: a message would need a rank of other machines to be where it takes messages.
  bool publish_failure(const failure_info& failure) noexcept override {
    return m_peers.publish(failure) && m_peers.has_all_records();
  }
  std::optional<failure_info> wait_for_failure(double wait_s) noexcept override {
    return m_peers.read_failure(m_peers.has_all_records() ? wait_s : 0);  // who has none can't tell
  }
  std::optional<failure_info> poll_local_failure() const noexcept override { return m_peers.read_failure(); }
  void mark_aborted() noexcept override { m_peers.mark_aborted(); }
  std::optional<bool> has_aborted(int rank, double wait_s) noexcept override {
    return m_peers.has_aborted(rank, wait_s);
  }

  void allgather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const mpi_pass pass(m_mpi);
    check(pass);
    auto running = std::make_unique<exchange>();
    try {
      start(*running, mine);
      finish(*running);
    } catch (const error& failure) {
      m_is_out_of_sync = true;
      if (!m_cancelled.load(std::memory_order_acquire) && !m_peers.read_failure())
        publish_failure(m_peers.own_failure(failure));
      for (void*& request : running->receives)
        if (request != nullptr) m_mpi.cancel(&request);
      // A peer may still read what was sent to it; nothing tells when it is done.
      static_cast<void>(running.release());
      throw;
    }
    std::copy(running->all.begin(), running->all.end(), all.begin());
  }

  std::unique_ptr<bootstrap> split(int color, int key) override {
    meet();  // MPI_Comm_split waits without a limit, and can't say for whom
    const mpi_pass pass(m_mpi);
    check(pass);
    isthmus_mpi_comm part = nullptr;
    const watch limit(limit_of(m_mpi, m_control.get(), m_timeout_s, "MPI_Comm_split", &m_peers));
    check(m_mpi, m_mpi.comm_split(m_control.get(), color, key, &part), "MPI_Comm_split");
    if (part == nullptr) return nullptr;
    return std::make_unique<mpi_bootstrap>(m_mpi, owned_comm(m_mpi, part), m_timeout_s);
  }

  // MPI decides who has failed, and waits for whoever has not: without a bound, as in split.
  survivors shrink(double) override {
    if (m_mpi.struct_bytes < sizeof m_mpi || m_mpi.comm_shrink == nullptr)
      throw make_error(
          ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
          fmt::format("communicator_shrink: {} has no MPIX_Comm_shrink (ULFM)", m_mpi.library),
          "use an MPI with ULFM, or make communicators that are to survive failures by a unique id");
    const mpi_pass pass(m_mpi);
    check(pass);
    isthmus_mpi_comm left = nullptr;
    check(m_mpi, m_mpi.comm_shrink(m_control.get(), &left), "MPIX_Comm_shrink");
    auto control = std::make_unique<mpi_bootstrap>(m_mpi, owned_comm(m_mpi, left), m_timeout_s);
    std::vector<int> ranks(static_cast<std::size_t>(control->size()));
    control->allgather(std::as_bytes(std::span(&m_rank, 1)), std::as_writable_bytes(std::span(ranks)));
    return {std::move(ranks), std::move(control)};
  }

 private:
  template <typename Function>
  int ask(Function* function, const char* name) const {
    int value = 0;
    check(m_mpi, function(m_control.get(), &value), name);
    return value;
  }

  void meet() {
    const std::byte here{};
    std::vector<std::byte> all(static_cast<std::size_t>(m_size));
    allgather({&here, 1}, all);
  }

  void start(exchange& running, std::span<const std::byte> mine) {
    const auto ranks = static_cast<std::size_t>(m_size), bytes = mine.size();
    running.mine.assign(mine.begin(), mine.end());
    running.all.resize(ranks * bytes);
    running.sends.resize(ranks);
    running.receives.resize(ranks);
    std::copy(mine.begin(), mine.end(), running.all.begin() + static_cast<std::ptrdiff_t>(rank() * bytes));
    for (int peer = 0; peer < m_size; ++peer) {
      if (peer == m_rank) continue;
      const auto at = static_cast<std::size_t>(peer);
      isthmus_operation message{};
      message.datatype = ISTHMUS_UINT8;
      message.root = peer;
      message.count = bytes;
      message.collective = ISTHMUS_RECV;
      message.recv_buf = running.all.data() + at * bytes;
      check(m_mpi, m_mpi.start(m_control.get(), &message, &running.receives[at]), "MPI_Irecv");
      message.collective = ISTHMUS_SEND;
      message.send_buf = running.mine.data();
      check(m_mpi, m_mpi.start(m_control.get(), &message, &running.sends[at]), "MPI_Isend");
    }
  }

  void finish(exchange& running) {
    const auto deadline = clock::now() + std::chrono::duration<double>(m_timeout_s);
    auto next_poll = clock::now() + poll_interval;
    while (!advance(running)) {
      if (m_cancelled.load(std::memory_order_acquire))
        throw make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
                         "the exchange with the other ranks was cancelled");
      throw_if_interrupted("the exchange with the other ranks");
      if (clock::now() > deadline) throw timeout(running);
      if (clock::now() > next_poll) {
        next_poll = clock::now() + poll_interval;
        look(running);
      }
      sched_yield();
    }
  }

  void look(exchange& running) {
    m_peers.throw_if_peer_failed();
    const auto exited_rank = m_peers.find_exited();
    if (!exited_rank) return;
    advance(running.receives);  // what it had sent before
    if (running.receives[static_cast<std::size_t>(*exited_rank)] != nullptr) throw m_peers.exited_error(*exited_rank);
  }

  // Both directions, whatever the first says.
  bool advance(exchange& running) {
    const bool arrived = advance(running.receives);
    return advance(running.sends) && arrived;
  }

  // Tests what is still open; true when nothing is.
  bool advance(std::vector<void*>& requests) {
    bool all_done = true;
    for (void*& request : requests) {
      if (request == nullptr) continue;
      int done = 0;
      check(m_mpi, m_mpi.test(&request, &done), "MPI_Testall");
      all_done = all_done && done != 0;
    }
    return all_done;
  }

  error timeout(const exchange& running) const {
    std::vector<int> missing;
    for (std::size_t peer = 0; peer < running.receives.size(); ++peer)
      if (running.receives[peer] != nullptr) missing.push_back(static_cast<int>(peer));
    const std::string names = m_peers.describe(missing);
    return make_error(
               ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
               fmt::format("rank {} of {} waited {} s for an exchange over MPI; nothing came from rank {}",
                           m_rank, m_size, m_timeout_s,
                           names.empty() ? "(its own messages were not taken)" : names),
               "that rank did not call the same function, or it is gone")
        .with_failed_ranks(missing);
  }

  const isthmus_mpi_table& m_mpi;
  owned_comm m_control, m_payload;
  double m_timeout_s;
  int m_rank, m_size;
  peer_monitor m_peers;
  bool m_is_out_of_sync = false;
  std::atomic<bool> m_cancelled{false};
};

}  // namespace

std::unique_ptr<bootstrap> make_mpi_bootstrap(const isthmus_mpi_table* table, double timeout_s) {
  if (table->magic != ISTHMUS_MPI_TABLE_MAGIC || table->struct_bytes < ISTHMUS_MPI_TABLE_MIN_BYTES)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("mpi is no table of this version: magic {:#x}, {} bytes; {:#x} and {} are wanted",
                    table->magic, table->struct_bytes, ISTHMUS_MPI_TABLE_MAGIC, ISTHMUS_MPI_TABLE_MIN_BYTES),
        "fill it with isthmus::mpi::table of the mpi.hpp that belongs to this library");
  const mpi_pass pass(*table);
  check(pass);
  return std::make_unique<mpi_bootstrap>(*table, owned_comm::duplicate(*table, table->comm, timeout_s),
                                         timeout_s);
}

}  // namespace isthmus
