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
inline int broadcast(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  // MPI has one buffer: the root sends from its own and fills its receive buffer while others go on.
  void* buffer = call.is_root() ? const_cast<void*>(operation.send_buf) : operation.recv_buf;
  const int code = for_each_chunk(operation.count, [&](std::uint64_t first, native::count count) {
    return native::broadcast(/*buffer*/ static_cast<char*>(buffer) + first * call.element_bytes, count, call.type,
                             operation.root, call.comm);
  });
  if (code == MPI_SUCCESS && call.is_root() && operation.recv_buf != operation.send_buf && operation.count > 0)
    std::memcpy(operation.recv_buf, operation.send_buf, operation.count * call.element_bytes);
  return code;
}

/// MPI_Reduce, in pieces where the count does not fit; in place on root.
inline int reduce(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  const bool in_place = call.is_root() && operation.send_buf == operation.recv_buf;
  return for_each_chunk(operation.count, [&](std::uint64_t first, native::count count) {
    return native::reduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.send_pointer(first),
                          /*recvbuf*/ call.is_root() ? call.recv_pointer(first) : nullptr, count, call.type, call.op(),
                          operation.root, call.comm);
  });
}

/// MPI_Allreduce, in pieces where the count does not fit; in place where the buffers are equal. Min and
/// max of floating types go by an operation of our own (native.hpp), in the order of the ranks.
inline int allreduce(const mpi_call& call) {
  const bool in_place = call.operation.send_buf == call.operation.recv_buf;
  return for_each_chunk(call.operation.count, [&](std::uint64_t first, native::count count) {
    return native::allreduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.send_pointer(first),
                             /*recvbuf*/ call.recv_pointer(first), count, call.type, call.op(), call.comm);
  });
}

// Blocks that are not one row, or too long for MPI's counts: one reduce to each rank, whose block has
// `count_of(rank)` elements from `begin_of(rank)` on.
template <typename Begin, typename Count>
int reduce_to_each(const mpi_call& call, int size, Begin&& begin_of, Count&& count_of) {
  for (int root = 0; root < size; ++root) {
    const std::uint64_t begin = begin_of(root), elements = count_of(root);
    if (elements == 0) continue;  // equal on all ranks
    const bool is_own = root == call.rank, in_place = is_own && call.recv_pointer(0) == call.send_pointer(begin);
    const int code = for_each_chunk(elements, [&](std::uint64_t first, native::count count) {
      return native::reduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.send_pointer(begin + first),
                            /*recvbuf*/ is_own ? call.recv_pointer(first) : nullptr, count, call.type, call.op(), root,
                            call.comm);
    });
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

/// MPI_Reduce_scatter_block. The own block in place takes a detour through memory of one block; a count that
/// does not fit becomes n reductions, one to each rank.
inline int reduce_scatter(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  if (operation.count > native::count_limit)
    return reduce_to_each(
        call, size, [&](int root) { return static_cast<std::uint64_t>(root) * operation.count; },
        [&](int) { return operation.count; });
  // MPI_IN_PLACE would put the result into the first block of the whole buffer; THE TABLE wants it in the
  // own block, so the result takes a detour.
  const bool in_place = operation.recv_buf == call.send_pointer(call.own_block()) && operation.count > 0;
  const std::uint64_t bytes = operation.count * call.element_bytes;
  const std::unique_ptr<char[]> temporary(in_place ? new char[bytes] : nullptr);
  const int code =
      native::reduce_scatter(/*sendbuf*/ operation.send_buf, /*recvbuf*/ in_place ? temporary.get() : operation.recv_buf,
                             static_cast<native::count>(operation.count), call.type, call.op(), call.comm);
  if (code == MPI_SUCCESS && in_place) std::memcpy(operation.recv_buf, temporary.get(), bytes);
  return code;
}

/// MPI_Reduce_scatter where the blocks lie side by side and their sum fits, else one MPI_Reduce to each rank.
/// In place as reduce_scatter.
inline int reduce_scatterv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const converted_array<native::count> counts(operation.send_counts, size);
  const std::uint64_t first = operation.send_displs[0];
  std::uint64_t next = first;
  bool is_contiguous = counts.fits();
  for (int r = 0; r < size && is_contiguous; ++r) {
    is_contiguous = operation.send_displs[r] == next && operation.send_counts[r] <= native::count_limit - (next - first);
    next += operation.send_counts[r];
  }
  if (!is_contiguous)
    return reduce_to_each(
        call, size, [&](int root) { return operation.send_displs[root]; },
        [&](int root) { return operation.send_counts[root]; });
  // Who gets nothing may name any buffer; MPICH compares it with the one that it sends.
  const bool in_place = operation.count == 0 || operation.recv_buf == call.send_pointer(operation.send_displs[call.rank]);
  const std::uint64_t bytes = operation.count * call.element_bytes;
  const std::unique_ptr<char[]> temporary(in_place ? new char[bytes] : nullptr);
  const int code = native::reduce_scatterv(/*sendbuf*/ call.send_pointer(first),
                                           /*recvbuf*/ in_place ? temporary.get() : operation.recv_buf, counts.data(),
                                           call.type, call.op(), call.comm);
  if (code == MPI_SUCCESS && in_place && bytes > 0) std::memcpy(operation.recv_buf, temporary.get(), bytes);
  return code;
}

/// MPI_Allgather in one call, blocks that do not fit as one element of a derived type.
inline int allgather(const mpi_call& call) {
  const bool in_place = call.operation.send_buf == call.recv_pointer(call.own_block());
  const counted_block own(call.operation.count, call.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::allgather(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.operation.send_buf, own.count(), own.type(),
                           /*recvbuf*/ call.operation.recv_buf, own.count(), own.type(), call.comm);
}

/// MPI_Allgatherv; MPI_ERR_COUNT where a count or displacement does not fit, never a truncated one. In place
/// where the own block is sent from where it belongs.
inline int allgatherv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const vector_layout recv(operation.recv_counts, operation.recv_displs, size);
  if (!recv.fits() || operation.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = operation.send_buf == call.recv_pointer(operation.recv_displs[call.rank]);
  return native::allgatherv(/*sendbuf*/ in_place ? MPI_IN_PLACE : operation.send_buf,
                            static_cast<native::count>(operation.count), call.type, /*recvbuf*/ operation.recv_buf,
                            recv.counts.data(), recv.displs.data(), call.type, call.comm);
}

/// MPI_Gather in one call, as allgather; on root in place where its block is there already. Other ranks need
/// no receive buffer.
inline int gather(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  const bool in_place = call.is_root() && operation.send_buf == call.recv_pointer(call.own_block());
  const counted_block own(operation.count, call.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::gather(/*sendbuf*/ in_place ? MPI_IN_PLACE : operation.send_buf, own.count(), own.type(),
                        /*recvbuf*/ call.is_root() ? operation.recv_buf : nullptr, own.count(), own.type(),
                        operation.root, call.comm);
}

/// MPI_Gatherv; counts and displacements of all ranks are read, and found not to fit, on root only.
inline int gatherv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const bool is_root = call.is_root();
  const vector_layout recv(is_root ? operation.recv_counts : nullptr, is_root ? operation.recv_displs : nullptr, size);
  if (!recv.fits() || operation.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = is_root && operation.send_buf == call.recv_pointer(operation.recv_displs[call.rank]);
  return native::gatherv(/*sendbuf*/ in_place ? MPI_IN_PLACE : operation.send_buf,
                         static_cast<native::count>(operation.count), call.type,
                         /*recvbuf*/ is_root ? operation.recv_buf : nullptr, recv.counts.data(), recv.displs.data(),
                         call.type, operation.root, call.comm);
}

/// MPI_Scatter in one call, as allgather; on root in place where its block may stay. Other ranks need no send
/// buffer.
inline int scatter(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  const bool in_place = call.is_root() && operation.recv_buf == call.send_pointer(call.own_block());
  const counted_block own(operation.count, call.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::scatter(/*sendbuf*/ call.is_root() ? operation.send_buf : nullptr, own.count(), own.type(),
                         /*recvbuf*/ in_place ? MPI_IN_PLACE : operation.recv_buf, own.count(), own.type(),
                         operation.root, call.comm);
}

/// MPI_Scatterv; counts and displacements of all ranks are read, and found not to fit, on root only.
inline int scatterv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const bool is_root = call.is_root();
  const vector_layout send(is_root ? operation.send_counts : nullptr, is_root ? operation.send_displs : nullptr, size);
  if (!send.fits() || operation.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = is_root && operation.recv_buf == call.send_pointer(operation.send_displs[call.rank]);
  return native::scatterv(/*sendbuf*/ is_root ? operation.send_buf : nullptr, send.counts.data(), send.displs.data(),
                          call.type, /*recvbuf*/ in_place ? MPI_IN_PLACE : operation.recv_buf,
                          static_cast<native::count>(operation.count), call.type, operation.root, call.comm);
}

// What an in-place alltoall sends. MPI_IN_PLACE changes the algorithm and so must be given by all ranks or
// none, which a rank cannot know; a copy of the own contribution makes every rank call the same.
inline std::unique_ptr<char[]> copy_bytes(const void* data, std::uint64_t bytes) {
  std::unique_ptr<char[]> copy(new char[bytes]);
  if (bytes > 0) std::memcpy(copy.get(), data, bytes);
  return copy;
}

/// MPI_Alltoall; in place with a copy of the own contribution.
inline int alltoall(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const counted_block block(operation.count, call.type);
  if (block.error() != MPI_SUCCESS) return block.error();
  std::unique_ptr<char[]> copy;
  if (operation.send_buf == operation.recv_buf)
    copy = copy_bytes(operation.send_buf, operation.count * static_cast<std::uint64_t>(size) * call.element_bytes);
  return native::alltoall(/*sendbuf*/ copy ? copy.get() : operation.send_buf, block.count(), block.type(),
                          /*recvbuf*/ operation.recv_buf, block.count(), block.type(), call.comm);
}

/// MPI_Alltoallv; in place with a copy of everything up to the last element that is sent.
inline int alltoallv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const vector_layout send(operation.send_counts, operation.send_displs, size);
  const vector_layout recv(operation.recv_counts, operation.recv_displs, size);
  if (!send.fits() || !recv.fits()) return MPI_ERR_COUNT;
  std::unique_ptr<char[]> copy;
  if (operation.send_buf == operation.recv_buf) {
    std::uint64_t end = 0;
    for (int r = 0; r < size; ++r) end = std::max(end, operation.send_displs[r] + operation.send_counts[r]);
    copy = copy_bytes(operation.send_buf, end * call.element_bytes);
  }
  return native::alltoallv(/*sendbuf*/ copy ? copy.get() : operation.send_buf, send.counts.data(),
                           send.displs.data(), call.type, /*recvbuf*/ operation.recv_buf, recv.counts.data(),
                           recv.displs.data(), call.type, call.comm);
}

/// MPI_Send, in pieces that the receiver splits the same way. Whether it waits for the receiver is MPI's
/// choice; in a group the mpi backend starts both sides by requests.
inline int send(const mpi_call& call) {
  return for_each_chunk(call.operation.count, [&](std::uint64_t first, native::count count) {
    return native::send(/*buf*/ call.send_pointer(first), count, call.type, /*dest*/ call.operation.root, payload_tag,
                        call.comm);
  });
}

/// MPI_Recv; the pieces of one message arrive in their order.
inline int recv(const mpi_call& call) {
  return for_each_chunk(call.operation.count, [&](std::uint64_t first, native::count count) {
    return native::recv(/*buf*/ call.recv_pointer(first), count, call.type, /*source*/ call.operation.root, payload_tag,
                        call.comm, MPI_STATUS_IGNORE);
  });
}

/// From a row of THE TABLE to its MPI call. MPI's code comes back as it is; nothing is thrown but
/// std::bad_alloc.
inline int run(const mpi_call& call) {
  switch (call.operation.collective) {
    case ISTHMUS_BROADCAST: return broadcast(call);
    case ISTHMUS_REDUCE: return reduce(call);
    case ISTHMUS_ALLREDUCE: return allreduce(call);
    case ISTHMUS_REDUCE_SCATTER: return reduce_scatter(call);
    case ISTHMUS_REDUCE_SCATTERV: return reduce_scatterv(call);
    case ISTHMUS_ALLGATHER: return allgather(call);
    case ISTHMUS_ALLGATHERV: return allgatherv(call);
    case ISTHMUS_GATHER: return gather(call);
    case ISTHMUS_GATHERV: return gatherv(call);
    case ISTHMUS_SCATTER: return scatter(call);
    case ISTHMUS_SCATTERV: return scatterv(call);
    case ISTHMUS_ALLTOALL: return alltoall(call);
    case ISTHMUS_ALLTOALLV: return alltoallv(call);
    case ISTHMUS_SEND: return send(call);
    case ISTHMUS_RECV: return recv(call);
    case ISTHMUS_BARRIER: return MPI_Barrier(call.comm);
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return MPI_ERR_ARG;
}

/// What the function table of mpi.hpp calls: looks the words of an operation up and runs it. One MPI_Comm_rank
/// more than the call itself.
inline int run_operation(MPI_Comm comm, const isthmus_operation& operation) {
  int rank = 0;
  if (const int code = MPI_Comm_rank(comm, &rank); code != MPI_SUCCESS) return code;
  return run(mpi_call{operation, comm, native_types::get().datatype(operation.datatype), bytes_of(operation.datatype), rank});
}

}  // namespace isthmus::mpi::detail

#endif
