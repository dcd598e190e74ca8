// Part of isthmus/mpi.hpp: one MPI call (or a few, where counts must be split) for each collective of
// THE TABLE. All functions return MPI_SUCCESS or MPI's error code.
//
// Before. The core has checked the operation: root, counts, buffers and how they may overlap. MPI gets its
// own datatypes and operations where it has them, else those of vocabulary (native.hpp).
// Blocking. A call returns when MPI's does: this rank's buffers may be used again, others may not be done.
// Counts are 64 bits. An MPI without the functions of MPI 4 takes an int (native::count_limit): reductions,
// broadcasts and messages are then cut into pieces, which every rank cuts alike; blocks that MPI places itself
// are one element of a derived type; the v-forms have no such way and give MPI_ERR_COUNT before anything moves.
// In place. MPI_IN_PLACE where MPI's rule is THE TABLE's, else a copy, said at each function.
// Failures. What came before the piece that failed has moved; the core poisons the communicator.
#ifndef ISTHMUS_MPI_COLLECTIVES_HPP
#define ISTHMUS_MPI_COLLECTIVES_HPP

#include <algorithm>
#include <isthmus/mpi/arguments.hpp>
#include <memory>
#include <new>

namespace isthmus::mpi::detail {

/// MPI_Bcast, in pieces where the count does not fit. The root sends from its send buffer and, where the two
/// differ, copies that into its receive buffer at the end, so a failure leaves the latter as it was.
inline int broadcast(const job& job) {
  const isthmus_operation& asked = job.asked;
  // MPI has one buffer: the root sends from its own and fills its receive buffer while others go on.
  void* buffer = job.is_root() ? const_cast<void*>(asked.send_buf) : asked.recv_buf;
  const int code = in_pieces(asked.count, [&](std::uint64_t first, native::count count) {
    return native::broadcast(/*buffer*/ static_cast<char*>(buffer) + first * job.element_bytes, count, job.type,
                             asked.root, job.comm);
  });
  if (code == MPI_SUCCESS && job.is_root() && asked.recv_buf != asked.send_buf && asked.count > 0)
    std::memcpy(asked.recv_buf, asked.send_buf, asked.count * job.element_bytes);
  return code;
}

/// MPI_Reduce, in pieces where the count does not fit; in place on root.
inline int reduce(const job& job) {
  const isthmus_operation& asked = job.asked;
  const bool in_place = job.is_root() && asked.send_buf == asked.recv_buf;
  return in_pieces(asked.count, [&](std::uint64_t first, native::count count) {
    return native::reduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : job.send_at(first),
                          /*recvbuf*/ job.is_root() ? job.recv_at(first) : nullptr, count, job.type, job.op(),
                          asked.root, job.comm);
  });
}

/// MPI_Allreduce, in pieces where the count does not fit; in place where the buffers are equal. Min and
/// max of floating types go by an operation of our own (native.hpp), in the order of the ranks.
inline int allreduce(const job& job) {
  const bool in_place = job.asked.send_buf == job.asked.recv_buf;
  return in_pieces(job.asked.count, [&](std::uint64_t first, native::count count) {
    return native::allreduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : job.send_at(first),
                             /*recvbuf*/ job.recv_at(first), count, job.type, job.op(), job.comm);
  });
}

// Blocks that are not one row, or too long for MPI's counts: one reduce to each rank, whose block has
// `count_of(rank)` elements from `begin_of(rank)` on.
template <typename Begin, typename Count>
int reduce_to_each(const job& job, int size, Begin&& begin_of, Count&& count_of) {
  for (int root = 0; root < size; ++root) {
    const std::uint64_t at = begin_of(root), elements = count_of(root);
    if (elements == 0) continue;  // equal on all ranks
    const bool mine = root == job.rank, in_place = mine && job.recv_at(0) == job.send_at(at);
    const int code = in_pieces(elements, [&](std::uint64_t first, native::count count) {
      return native::reduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : job.send_at(at + first),
                            /*recvbuf*/ mine ? job.recv_at(first) : nullptr, count, job.type, job.op(), root,
                            job.comm);
    });
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

/// MPI_Reduce_scatter_block. The own block in place takes a detour through memory of one block; a count that
/// does not fit becomes n reductions, one to each rank.
inline int reduce_scatter(const job& job) {
  const isthmus_operation& asked = job.asked;
  int size = 0;
  if (const int code = MPI_Comm_size(job.comm, &size); code != MPI_SUCCESS) return code;
  if (asked.count > native::count_limit)
    return reduce_to_each(
        job, size, [&](int root) { return static_cast<std::uint64_t>(root) * asked.count; },
        [&](int) { return asked.count; });
  // MPI_IN_PLACE would put the result into the first block of the whole buffer; THE TABLE wants it in the
  // own block, so the result takes a detour.
  const bool in_place = asked.recv_buf == job.send_at(job.own_block()) && asked.count > 0;
  const std::uint64_t bytes = asked.count * job.element_bytes;
  const std::unique_ptr<char[]> detour(in_place ? new char[bytes] : nullptr);
  const int code =
      native::reduce_scatter(/*sendbuf*/ asked.send_buf, /*recvbuf*/ in_place ? detour.get() : asked.recv_buf,
                             static_cast<native::count>(asked.count), job.type, job.op(), job.comm);
  if (code == MPI_SUCCESS && in_place) std::memcpy(asked.recv_buf, detour.get(), bytes);
  return code;
}

/// MPI_Reduce_scatter where the blocks lie side by side and their sum fits, else one MPI_Reduce to each rank.
/// In place as reduce_scatter.
inline int reduce_scatterv(const job& job) {
  const isthmus_operation& asked = job.asked;
  int size = 0;
  if (const int code = MPI_Comm_size(job.comm, &size); code != MPI_SUCCESS) return code;
  const converted<native::count> counts(asked.send_counts, size);
  const std::uint64_t first = asked.send_displs[0];
  std::uint64_t next = first;
  bool is_row = counts.fits();
  for (int r = 0; r < size && is_row; ++r) {
    is_row = asked.send_displs[r] == next && asked.send_counts[r] <= native::count_limit - (next - first);
    next += asked.send_counts[r];
  }
  if (!is_row)
    return reduce_to_each(
        job, size, [&](int root) { return asked.send_displs[root]; },
        [&](int root) { return asked.send_counts[root]; });
  // Who gets nothing may name any buffer; MPICH compares it with the one that it sends.
  const bool in_place = asked.count == 0 || asked.recv_buf == job.send_at(asked.send_displs[job.rank]);
  const std::uint64_t bytes = asked.count * job.element_bytes;
  const std::unique_ptr<char[]> detour(in_place ? new char[bytes] : nullptr);
  const int code = native::reduce_scatterv(/*sendbuf*/ job.send_at(first),
                                           /*recvbuf*/ in_place ? detour.get() : asked.recv_buf, counts.data(),
                                           job.type, job.op(), job.comm);
  if (code == MPI_SUCCESS && in_place && bytes > 0) std::memcpy(asked.recv_buf, detour.get(), bytes);
  return code;
}

/// MPI_Allgather in one call, blocks that do not fit as one element of a derived type.
inline int allgather(const job& job) {
  const bool in_place = job.asked.send_buf == job.recv_at(job.own_block());
  const counted_block own(job.asked.count, job.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::allgather(/*sendbuf*/ in_place ? MPI_IN_PLACE : job.asked.send_buf, own.count(), own.type(),
                           /*recvbuf*/ job.asked.recv_buf, own.count(), own.type(), job.comm);
}

/// MPI_Allgatherv; MPI_ERR_COUNT where a count or displacement does not fit, never a truncated one. In place
/// where the own block is sent from where it belongs.
inline int allgatherv(const job& job) {
  const isthmus_operation& asked = job.asked;
  int size = 0;
  if (const int code = MPI_Comm_size(job.comm, &size); code != MPI_SUCCESS) return code;
  const layout recv(asked.recv_counts, asked.recv_displs, size);
  if (!recv.fits() || asked.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = asked.send_buf == job.recv_at(asked.recv_displs[job.rank]);
  return native::allgatherv(/*sendbuf*/ in_place ? MPI_IN_PLACE : asked.send_buf,
                            static_cast<native::count>(asked.count), job.type, /*recvbuf*/ asked.recv_buf,
                            recv.counts.data(), recv.displs.data(), job.type, job.comm);
}

/// MPI_Gather in one call, as allgather; on root in place where its block is there already. Other ranks need
/// no receive buffer.
inline int gather(const job& job) {
  const isthmus_operation& asked = job.asked;
  const bool in_place = job.is_root() && asked.send_buf == job.recv_at(job.own_block());
  const counted_block own(asked.count, job.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::gather(/*sendbuf*/ in_place ? MPI_IN_PLACE : asked.send_buf, own.count(), own.type(),
                        /*recvbuf*/ job.is_root() ? asked.recv_buf : nullptr, own.count(), own.type(),
                        asked.root, job.comm);
}

/// MPI_Gatherv; counts and displacements of all ranks are read, and found not to fit, on root only.
inline int gatherv(const job& job) {
  const isthmus_operation& asked = job.asked;
  int size = 0;
  if (const int code = MPI_Comm_size(job.comm, &size); code != MPI_SUCCESS) return code;
  const bool root = job.is_root();
  const layout recv(root ? asked.recv_counts : nullptr, root ? asked.recv_displs : nullptr, size);
  if (!recv.fits() || asked.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = root && asked.send_buf == job.recv_at(asked.recv_displs[job.rank]);
  return native::gatherv(/*sendbuf*/ in_place ? MPI_IN_PLACE : asked.send_buf,
                         static_cast<native::count>(asked.count), job.type,
                         /*recvbuf*/ root ? asked.recv_buf : nullptr, recv.counts.data(), recv.displs.data(),
                         job.type, asked.root, job.comm);
}

/// MPI_Scatter in one call, as allgather; on root in place where its block may stay. Other ranks need no send
/// buffer.
inline int scatter(const job& job) {
  const isthmus_operation& asked = job.asked;
  const bool in_place = job.is_root() && asked.recv_buf == job.send_at(job.own_block());
  const counted_block own(asked.count, job.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::scatter(/*sendbuf*/ job.is_root() ? asked.send_buf : nullptr, own.count(), own.type(),
                         /*recvbuf*/ in_place ? MPI_IN_PLACE : asked.recv_buf, own.count(), own.type(),
                         asked.root, job.comm);
}

/// MPI_Scatterv; counts and displacements of all ranks are read, and found not to fit, on root only.
inline int scatterv(const job& job) {
  const isthmus_operation& asked = job.asked;
  int size = 0;
  if (const int code = MPI_Comm_size(job.comm, &size); code != MPI_SUCCESS) return code;
  const bool root = job.is_root();
  const layout send(root ? asked.send_counts : nullptr, root ? asked.send_displs : nullptr, size);
  if (!send.fits() || asked.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = root && asked.recv_buf == job.send_at(asked.send_displs[job.rank]);
  return native::scatterv(/*sendbuf*/ root ? asked.send_buf : nullptr, send.counts.data(), send.displs.data(),
                          job.type, /*recvbuf*/ in_place ? MPI_IN_PLACE : asked.recv_buf,
                          static_cast<native::count>(asked.count), job.type, asked.root, job.comm);
}

// What an in-place alltoall sends. MPI_IN_PLACE changes the algorithm and so must be given by all ranks or
// none, which a rank cannot know; a copy of the own contribution makes every rank call the same.
inline std::unique_ptr<char[]> copy_of(const void* data, std::uint64_t bytes) {
  std::unique_ptr<char[]> copy(new char[bytes]);
  if (bytes > 0) std::memcpy(copy.get(), data, bytes);
  return copy;
}

/// MPI_Alltoall; in place with a copy of the own contribution.
inline int alltoall(const job& job) {
  const isthmus_operation& asked = job.asked;
  int size = 0;
  if (const int code = MPI_Comm_size(job.comm, &size); code != MPI_SUCCESS) return code;
  const counted_block each(asked.count, job.type);
  if (each.error() != MPI_SUCCESS) return each.error();
  std::unique_ptr<char[]> copy;
  if (asked.send_buf == asked.recv_buf)
    copy = copy_of(asked.send_buf, asked.count * static_cast<std::uint64_t>(size) * job.element_bytes);
  return native::alltoall(/*sendbuf*/ copy ? copy.get() : asked.send_buf, each.count(), each.type(),
                          /*recvbuf*/ asked.recv_buf, each.count(), each.type(), job.comm);
}

/// MPI_Alltoallv; in place with a copy of everything up to the last element that is sent.
inline int alltoallv(const job& job) {
  const isthmus_operation& asked = job.asked;
  int size = 0;
  if (const int code = MPI_Comm_size(job.comm, &size); code != MPI_SUCCESS) return code;
  const layout send(asked.send_counts, asked.send_displs, size);
  const layout recv(asked.recv_counts, asked.recv_displs, size);
  if (!send.fits() || !recv.fits()) return MPI_ERR_COUNT;
  std::unique_ptr<char[]> copy;
  if (asked.send_buf == asked.recv_buf) {
    std::uint64_t end = 0;
    for (int r = 0; r < size; ++r) end = std::max(end, asked.send_displs[r] + asked.send_counts[r]);
    copy = copy_of(asked.send_buf, end * job.element_bytes);
  }
  return native::alltoallv(/*sendbuf*/ copy ? copy.get() : asked.send_buf, send.counts.data(),
                           send.displs.data(), job.type, /*recvbuf*/ asked.recv_buf, recv.counts.data(),
                           recv.displs.data(), job.type, job.comm);
}

/// MPI_Send, in pieces that the receiver splits the same way. Whether it waits for the receiver is MPI's
/// choice; in a group the mpi backend starts both sides by requests.
inline int send(const job& job) {
  return in_pieces(job.asked.count, [&](std::uint64_t first, native::count count) {
    return native::send(/*buf*/ job.send_at(first), count, job.type, /*dest*/ job.asked.root, payload_tag,
                        job.comm);
  });
}

/// MPI_Recv; the pieces of one message arrive in their order.
inline int recv(const job& job) {
  return in_pieces(job.asked.count, [&](std::uint64_t first, native::count count) {
    return native::recv(/*buf*/ job.recv_at(first), count, job.type, /*source*/ job.asked.root, payload_tag,
                        job.comm, MPI_STATUS_IGNORE);
  });
}

/// From a row of THE TABLE to its MPI call. MPI's code comes back as it is; nothing is thrown but
/// std::bad_alloc.
inline int run(const job& job) {
  switch (job.asked.collective) {
    case ISTHMUS_BROADCAST: return broadcast(job);
    case ISTHMUS_REDUCE: return reduce(job);
    case ISTHMUS_ALLREDUCE: return allreduce(job);
    case ISTHMUS_REDUCE_SCATTER: return reduce_scatter(job);
    case ISTHMUS_REDUCE_SCATTERV: return reduce_scatterv(job);
    case ISTHMUS_ALLGATHER: return allgather(job);
    case ISTHMUS_ALLGATHERV: return allgatherv(job);
    case ISTHMUS_GATHER: return gather(job);
    case ISTHMUS_GATHERV: return gatherv(job);
    case ISTHMUS_SCATTER: return scatter(job);
    case ISTHMUS_SCATTERV: return scatterv(job);
    case ISTHMUS_ALLTOALL: return alltoall(job);
    case ISTHMUS_ALLTOALLV: return alltoallv(job);
    case ISTHMUS_SEND: return send(job);
    case ISTHMUS_RECV: return recv(job);
    case ISTHMUS_BARRIER: return MPI_Barrier(job.comm);
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return MPI_ERR_ARG;
}

/// What the function table of mpi.hpp calls: looks the words of an operation up and runs it. One MPI_Comm_rank
/// more than the call itself.
inline int make_job_and_run(MPI_Comm comm, const isthmus_operation& asked) {
  int rank = 0;
  if (const int code = MPI_Comm_rank(comm, &rank); code != MPI_SUCCESS) return code;
  return run(job{asked, comm, vocabulary::get().datatype(asked.datatype), bytes_of(asked.datatype), rank});
}

}  // namespace isthmus::mpi::detail

#endif
