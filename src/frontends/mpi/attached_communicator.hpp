// Which communicator of Isthmus stands beside which of MPI. It is made inside one of the first collective calls
// that could use it, because all ranks are there, and freed with MPI's, by the callback of an attribute.
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
  // NULL where there can be none: no communicator, or MPI is not running. A few nanoseconds once it is known.
  static attached_communicator* find(MPI_Comm comm);

  // Collective, so to be asked only where all ranks ask, once for each call: whether Isthmus takes it. The
  // first calls are MPI's, because attaching costs as much as thousands of small ones; then it is attached.
  bool try_attach() { return m_state == attach_state::attached || (m_state == attach_state::unattached && attach_when_due()); }
  // After ready() has said no.
  pass_reason_code pass_reason() const { return m_pass_reason; }

  // Of an attached one.
  isthmus_communicator handle() const { return m_handle; }
  std::uintptr_t key() const { return m_key.load(std::memory_order_acquire); }
  int rank() const { return m_rank; }
  int size() const { return m_size; }

  // Whether the rules give the call to a backend that is not what MPI does, too. On one node all are.
  bool handles(const isthmus_operation& operation) { return !m_spans_nodes || is_better_than_mpi(operation); }

  // MPI takes what other ranks have sent before now, as in a barrier of its own: some of its calls that ask
  // whether something has come look first and take later. It takes a message at a time: a look for each peer.
  void progress_peers() {
    for (int peer = 1; peer < m_size; ++peer) progress_mpi(this);
  }

  // From now on all calls go to MPI.
  void pass_all_calls(pass_reason_code reason);

  // Where calls of this kind are counted; only while a report is asked for.
  call_counter& counter_for(mpi_function function, const isthmus_operation& operation, std::uint64_t bytes);

 private:
  friend class communicator_registry;
  enum class attach_state { unattached, attached, pass_through };

  static void progress_mpi(void* context);
  void reset(MPI_Comm comm);  // anew: objects are used again and never freed
  void release();
  bool attach_when_due();
  bool attach();
  bool create();
  bool create_over(MPI_Comm copy);
  bool is_better_than_mpi(const isthmus_operation& operation);

  std::atomic<std::uintptr_t> m_key{0};
  MPI_Comm m_comm = MPI_COMM_NULL;
  attach_state m_state = attach_state::unattached;
  std::uint64_t m_call_count = 0;  // calls that might have been taken
  pass_reason_code m_pass_reason = pass_reason_code::attach_failed;
  int m_rank = -1, m_size = 0;
  isthmus_communicator m_handle = nullptr;
  MPI_Request m_pending_receive = MPI_REQUEST_NULL;  // one for each, because two threads may not test the same
  std::unique_ptr<message_store> m_store;
  std::map<std::tuple<mpi_function, isthmus_datatype, std::uint64_t>, call_counter*> m_counters;
  bool m_spans_nodes = false;
  std::map<std::tuple<isthmus_collective, isthmus_datatype, isthmus_reduction_op, int, std::uint64_t>, bool>
      m_decisions;
};

}  // namespace isthmus::mpi_shim
