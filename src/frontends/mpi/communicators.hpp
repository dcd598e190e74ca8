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
#include "frontends/mpi/tallies.hpp"

namespace isthmus::mpi_shim {

class communicator {
 public:
  // NULL where there can be none: no communicator, or MPI is not running. A few nanoseconds once it is known.
  static communicator* of(MPI_Comm comm);

  // Collective, so to be asked only where all ranks ask, once for each call: whether Isthmus takes it. The
  // first calls are MPI's, because attaching costs as much as thousands of small ones; then it is attached.
  bool ready() { return m_state == state::attached || (m_state == state::new_one && consider()); }
  // After ready() has said no.
  pass_reason_code pass_reason() const { return m_pass_reason; }

  // Of an attached one.
  isthmus_communicator handle() const { return m_handle; }
  std::uintptr_t key() const { return m_key.load(std::memory_order_acquire); }
  int rank() const { return m_rank; }
  int size() const { return m_size; }

  // Whether the rules give the call to a backend that is not what MPI does, too. On one node all are.
  bool takes(const isthmus_operation& operation) { return !m_spans_nodes || is_better_than_mpi(operation); }

  // MPI takes what other ranks have sent before now, as in a barrier of its own: some of its calls that ask
  // whether something has come look first and take later. It takes a message at a time: a look for each peer.
  void catch_up() {
    for (int peer = 1; peer < m_size; ++peer) attend_to_mpi(this);
  }

  // From now on all calls go to MPI.
  void give_up(pass_reason_code reason);

  // Where calls of this kind are counted; only while a report is asked for.
  call_counter& tally_for(mpi_function function, const isthmus_operation& operation, std::uint64_t bytes);

 private:
  friend class registry;
  enum class state { new_one, attached, passes };

  static void attend_to_mpi(void* context);
  void begin(MPI_Comm comm);  // anew: objects are used again and never freed
  void end();
  bool consider();
  bool attach();
  bool make();
  bool meet(MPI_Comm own);
  bool is_better_than_mpi(const isthmus_operation& operation);

  std::atomic<std::uintptr_t> m_key{0};
  MPI_Comm m_comm = MPI_COMM_NULL;
  state m_state = state::new_one;
  std::uint64_t m_asked = 0;  // calls that might have been taken
  pass_reason_code m_pass_reason = pass_reason_code::attach_failed;
  int m_rank = -1, m_size = 0;
  isthmus_communicator m_handle = nullptr;
  MPI_Request m_pending = MPI_REQUEST_NULL;  // one for each, because two threads may not test the same
  std::unique_ptr<message_store> m_store;
  std::map<std::tuple<mpi_function, isthmus_datatype, std::uint64_t>, call_counter*> m_tallies;
  bool m_spans_nodes = false;
  std::map<std::tuple<isthmus_collective, isthmus_datatype, isthmus_reduction_op, int, std::uint64_t>, bool>
      m_taken;
};

}  // namespace isthmus::mpi_shim
