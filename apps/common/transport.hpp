// How the ranks of a program exchange arrays, behind one interface.
#pragma once

#include <cstdint>
#include <isthmus/sycl/memory.hpp>
#include <isthmus/sycl/mpi.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/kernel.hpp"
#include "common/memory_block.hpp"

namespace apps {

// mpi               buffers, and plain MPI through a host_accessor: Listing 1 of the SuCL paper
// isthmus           buffers
// isthmus-usm       USM, messages in the symmetric heap, events; the program never waits
// isthmus-usm-task  the same; where the device is a CPU, by host tasks instead of in the calling thread
enum class transport_kind { mpi, isthmus, isthmus_usm, isthmus_usm_task };
const std::vector<std::string>& transport_names();  // in the order of the enumeration

struct transport_options {
  std::string config;  // Isthmus' configuration; "": the usual places
  double timeout_s = 60;
};

// A part of an array of messages, in bytes.
struct message {
  int peer;
  std::uint64_t offset, bytes;
};

// The ranks of one communicator. Every exchange is collective, comes after `after` and what its arrays were
// used for before, and is complete for what comes after the event that it returns. The queue of exchanges is
// not that of the program, so that kernels may run beside them.
class transport {
 public:
  // Collective over `comm`, which must outlive this.
  transport(transport_kind kind, MPI_Comm comm, const sycl::queue& queue, const transport_options& options);
  // A part of it, as MPI_Comm_split.
  transport split(int color, int key) const;

  transport_kind kind() const { return m_kind; }
  bool is_mpi() const { return m_kind == transport_kind::mpi; }
  int rank() const { return m_rank; }
  int size() const { return m_size; }
  MPI_Comm comm() const { return m_comm; }
  // Isthmus' own words on where alltoalls of this size go.
  std::string backend(std::uint64_t bytes) const;

  // For kernels.
  template <typename T>
  array<T> make_array(std::uint64_t count) const {
    return array<T>(uses_buffers() ? make_buffer(count * sizeof(T)) : make_usm(m_queue, count * sizeof(T)));
  }
  // For messages: `count` is the same on every rank. Collective.
  template <typename T>
  array<T> make_messages(std::uint64_t count) const {
    return array<T>(uses_buffers() ? make_buffer(count * sizeof(T)) : make_symmetric(count * sizeof(T)));
  }

  // Block r of recv, of `bytes`, from rank r.
  sycl::event alltoall(const memory_block& send, const memory_block& recv, std::uint64_t bytes,
                       const events& wait_events);
  // The same with blocks of any size and place; at most one message each way between two ranks.
  sycl::event alltoallv(const memory_block& send, const std::vector<message>& out, const memory_block& recv,
                        const std::vector<message>& in, const events& wait_events);
  // Point to point, started together: the n-th message to a rank is the n-th that it expects from here.
  sycl::event exchange(const memory_block& send, const std::vector<message>& out, const memory_block& recv,
                       const std::vector<message>& in, const events& wait_events);
  // The sum over ranks of every element, in place.
  sycl::event allreduce(const array<double>& data, const events& wait_events);

  // While on, every exchange waits for the work of `queue` before and itself after, and its time is counted.
  void profile(const sycl::queue& queue) { m_profiled = queue; }
  // The seconds in exchanges since profile(), whose end this is.
  double end_profile();

 private:
  class timed_scope;

  transport(transport_kind kind, MPI_Comm comm, const sycl::queue& queue, const transport_options& options,
            std::optional<isthmus::communicator> ranks);
  bool uses_buffers() const { return m_kind == transport_kind::mpi || m_kind == transport_kind::isthmus; }
  memory_block make_symmetric(std::uint64_t bytes) const;

  transport_kind m_kind;
  MPI_Comm m_comm;
  std::shared_ptr<MPI_Comm> m_owned_comm;  // of a part
  sycl::queue m_queue;                     // of exchanges
  transport_options m_options;
  std::shared_ptr<isthmus::communicator> m_ranks;  // null: MPI
  int m_rank = 0, m_size = 1;
  std::optional<sycl::queue> m_profiled;
  double m_profiled_s = 0;
};

}  // namespace apps
