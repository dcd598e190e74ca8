// A common interface for the exchange of arrays between ranks.
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

// The transports:
//   mpi               buffers, and plain MPI through a host_accessor: Listing 1 of the SuCL paper
//   isthmus           buffers
//   isthmus-usm       USM, messages in the symmetric heap, events; the program never waits
//   isthmus-usm-task  as isthmus-usm; on CPU devices with host tasks instead of the calling thread
enum class transport_kind { mpi, isthmus, isthmus_usm, isthmus_usm_task };
const std::vector<std::string>& transport_names();  // in enumeration order

struct transport_options {
  std::string config;  // Isthmus' configuration; "": the usual places
  double timeout_s = 60;
};

// A part of a message array, in bytes.
struct message {
  int peer;
  std::uint64_t offset, bytes;
};

// The ranks of one communicator. Every exchange is collective. It starts after `wait_events` and after earlier
// uses of its arrays, and is complete for work that depends on the returned event. Exchanges have their own
// queue, so that kernels can overlap with them.
class transport {
 public:
  // Collective over `comm`, which must outlive this.
  transport(transport_kind kind, MPI_Comm comm, const sycl::queue& queue, const transport_options& options);
  // Splits the transport, like MPI_Comm_split.
  transport split(int color, int key) const;

  transport_kind kind() const { return m_kind; }
  bool is_mpi() const { return m_kind == transport_kind::mpi; }
  int rank() const { return m_rank; }
  int size() const { return m_size; }
  MPI_Comm comm() const { return m_comm; }
  // The backend that Isthmus selects for alltoalls of this size.
  std::string backend(std::uint64_t bytes) const;

  // Allocates an array for kernels.
  template <typename T>
  array<T> make_array(std::uint64_t count) const {
    return array<T>(uses_buffers() ? make_buffer(count * sizeof(T)) : make_usm(m_queue, count * sizeof(T)));
  }
  // Allocates a message array; `count` is equal on all ranks. Collective.
  template <typename T>
  array<T> make_messages(std::uint64_t count) const {
    return array<T>(uses_buffers() ? make_buffer(count * sizeof(T)) : make_symmetric(count * sizeof(T)));
  }

  // alltoall with blocks of `bytes`: block r of `recv` comes from rank r.
  sycl::event alltoall(const memory_block& send, const memory_block& recv, std::uint64_t bytes,
                       const events& wait_events);
  // alltoall with blocks of any size and offset; at most one message in each direction between two ranks.
  sycl::event alltoallv(const memory_block& send, const std::vector<message>& out, const memory_block& recv,
                        const std::vector<message>& in, const events& wait_events);
  // Point-to-point messages that start together. The n-th message to a rank is the n-th one that it expects
  // from this rank.
  sycl::event exchange(const memory_block& send, const std::vector<message>& out, const memory_block& recv,
                       const std::vector<message>& in, const events& wait_events);
  // Sums every element over the ranks, in place.
  sycl::event allreduce(const array<double>& data, const events& wait_events);

  // Starts timing: every exchange waits for earlier work of `queue` and for its own completion, and its
  // time is added.
  void profile(const sycl::queue& queue) { m_profiled = queue; }
  // Ends timing; returns the seconds spent in exchanges since profile().
  double end_profile();

 private:
  class timed_scope;

  transport(transport_kind kind, MPI_Comm comm, const sycl::queue& queue, const transport_options& options,
            std::optional<isthmus::communicator> ranks);
  bool uses_buffers() const { return m_kind == transport_kind::mpi || m_kind == transport_kind::isthmus; }
  memory_block make_symmetric(std::uint64_t bytes) const;

  transport_kind m_kind;
  MPI_Comm m_comm;
  std::shared_ptr<MPI_Comm> m_owned_comm;  // of a split transport
  sycl::queue m_queue;                     // for exchanges
  transport_options m_options;
  std::shared_ptr<isthmus::communicator> m_ranks;  // null: MPI
  int m_rank = 0, m_size = 1;
  std::optional<sycl::queue> m_profiled;
  double m_profiled_s = 0;
};

}  // namespace apps
