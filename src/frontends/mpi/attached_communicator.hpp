// Maps each MPI communicator to an Isthmus communicator. The Isthmus communicator is created inside one of the
// first collective calls, because all ranks take part in those. An attribute callback destroys it when the MPI
// communicator is freed.
#pragma once

#include <isthmus/isthmus.h>
#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "frontends/mpi/message_store.hpp"
#include "frontends/mpi/pass_reasons.hpp"

namespace isthmus::mpi_shim {

class attached_communicator {
 public:
  // Returns NULL for MPI_COMM_NULL and if MPI is not running. Takes a few nanoseconds after the first call.
  static attached_communicator* find(MPI_Comm comm);

  // Returns whether Isthmus handles this call. Collective: all ranks must call it once for each MPI call. The
  // first calls go to MPI, because attaching costs as much as thousands of small calls.
  bool try_attach() {
    return m_state == attach_state::attached || (m_state == attach_state::unattached && attach_when_due());
  }
  // The reason why try_attach() returned false.
  pass_reason_code pass_reason() const { return m_pass_reason; }

  // The following functions require an attached communicator.
  isthmus_communicator handle() const { return m_handle; }
  std::uintptr_t key() const { return m_key.load(std::memory_order_acquire); }
  int rank() const { return m_rank; }
  int size() const { return m_size; }

  // Returns whether the rules select a backend that is better than MPI. On a single node, every backend
  // counts as better.
  bool handles(const isthmus_operation& operation) { return !m_spans_nodes || is_better_than_mpi(operation); }

  // Lets MPI receive what other ranks have sent so far, as its own barrier would. Some MPI functions test for
  // completion before they make progress, and each test receives one message, so there is one test per peer.
  void progress_peers() {
    for (int peer = 1; peer < m_size; ++peer) progress_mpi(this);
  }

  // Passes all further calls to MPI.
  void pass_all_calls(pass_reason_code reason);

  // Returns the counter for such calls. Use only if a report was requested.
  call_counter& counter_for(mpi_function function, const isthmus_operation& operation, std::uint64_t bytes);

 private:
  friend class communicator_registry;
  enum class attach_state { unattached, attached, pass_through };

  static void progress_mpi(void* context);
  void reset(MPI_Comm comm);  // objects are reused and never freed
  void release();
  bool attach_when_due();
  bool attach();
  bool create();
  bool create_communicator(MPI_Comm copy);
  bool is_better_than_mpi(const isthmus_operation& operation);

  std::atomic<std::uintptr_t> m_key{0};
  MPI_Comm m_comm = MPI_COMM_NULL;
  attach_state m_state = attach_state::unattached;
  std::uint64_t m_call_count = 0;  // calls that Isthmus could have handled
  pass_reason_code m_pass_reason = pass_reason_code::attach_failed;
  int m_rank = -1, m_size = 0;
  isthmus_communicator m_handle = nullptr;
  // One per communicator, because two threads must not test the same request.
  MPI_Request m_pending_receive = MPI_REQUEST_NULL;
  std::unique_ptr<message_store> m_store;
  std::map<std::tuple<mpi_function, isthmus_datatype, std::uint64_t>, call_counter*> m_counters;
  bool m_spans_nodes = false;
  std::map<std::tuple<isthmus_collective, isthmus_datatype, isthmus_reduction_op, int, std::uint64_t>, bool>
      m_decisions;
};

}  // namespace isthmus::mpi_shim
