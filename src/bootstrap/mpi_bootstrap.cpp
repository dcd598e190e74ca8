#include "bootstrap/mpi_bootstrap.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "bootstrap/mpi_threads.hpp"
#include "runtime/error.hpp"

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

  static owned_comm duplicate(const isthmus_mpi_table& mpi, isthmus_mpi_comm of) {
    isthmus_mpi_comm made = nullptr;
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
        m_payload(owned_comm::duplicate(mpi, m_control.get())),
        m_timeout_s(timeout_s) {
    check(m_mpi, m_mpi.comm_rank(m_control.get(), &m_rank), "MPI_Comm_rank");
    check(m_mpi, m_mpi.comm_size(m_control.get(), &m_size), "MPI_Comm_size");
  }

  int rank() const override { return m_rank; }
  int size() const override { return m_size; }
  const char* name() const override { return "mpi"; }
  const isthmus_mpi_table* mpi_table() const override { return &m_mpi; }
  isthmus_mpi_comm mpi_comm() const override { return m_payload.get(); }
  void cancel() noexcept override { m_cancelled.store(true, std::memory_order_release); }

  void allgather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const mpi_pass pass(m_mpi);
    check(pass);
    auto running = std::make_unique<exchange>();
    try {
      start(*running, mine);
      finish(*running);
    } catch (...) {
      for (void*& request : running->receives)
        if (request != nullptr) m_mpi.cancel(&request);
      // A peer may still read what was sent to it; nothing tells when it is done.
      static_cast<void>(running.release());
      throw;
    }
    std::copy(running->all.begin(), running->all.end(), all.begin());
  }

  std::unique_ptr<bootstrap> split(int color, int key) override {
    const mpi_pass pass(m_mpi);
    check(pass);
    isthmus_mpi_comm part = nullptr;
    check(m_mpi, m_mpi.comm_split(m_control.get(), color, key, &part), "MPI_Comm_split");
    if (part == nullptr) return nullptr;
    return std::make_unique<mpi_bootstrap>(m_mpi, owned_comm(m_mpi, part), m_timeout_s);
  }

 private:
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
    while (!advance(running.receives) | !advance(running.sends)) {
      if (m_cancelled.load(std::memory_order_acquire))
        throw make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
                         "the exchange with the other ranks was cancelled");
      if (clock::now() > deadline) throw timeout(running);
      sched_yield();
    }
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
    std::string missing;
    for (std::size_t peer = 0; peer < running.receives.size(); ++peer)
      if (running.receives[peer] != nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", peer);
    return make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("rank {} of {} waited {} s for an exchange over MPI; nothing came from rank {}", m_rank,
                    m_size, m_timeout_s, missing.empty() ? "(its own messages were not taken)" : missing),
        "that rank did not call the same function, or it is gone");
  }

  const isthmus_mpi_table& m_mpi;
  owned_comm m_control, m_payload;
  double m_timeout_s;
  int m_rank = -1, m_size = 0;
  std::atomic<bool> m_cancelled{false};
};

}  // namespace

std::unique_ptr<bootstrap> make_mpi_bootstrap(const isthmus_mpi_table* table, double timeout_s) {
  if (table->magic != ISTHMUS_MPI_TABLE_MAGIC || table->struct_bytes < sizeof(isthmus_mpi_table))
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("mpi is no table of this version: magic {:#x}, {} bytes; {:#x} and {} are wanted",
                    table->magic, table->struct_bytes, ISTHMUS_MPI_TABLE_MAGIC, sizeof(isthmus_mpi_table)),
        "fill it with isthmus::mpi::table of the mpi.hpp that belongs to this library");
  const mpi_pass pass(*table);
  check(pass);
  return std::make_unique<mpi_bootstrap>(*table, owned_comm::duplicate(*table, table->comm), timeout_s);
}

}  // namespace isthmus
