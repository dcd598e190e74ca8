// Part of isthmus/mpi.hpp: one MPI call per collective, or a few if counts must be split. All functions return
// MPI_SUCCESS or MPI's error code.
//
// Preconditions: the core has validated root, counts, buffers and their overlap. MPI's own datatypes and
//   operations are used if they exist. Otherwise, those of native_types (native.hpp) are used.
// Blocking: a call returns when the MPI call returns. This rank's buffers can then be reused, but other ranks
//   may not be finished.
// Counts: 64-bit. Before MPI 4, MPI functions take an int (native::count_limit). Reductions, broadcasts and
//   messages are then split into chunks, in the same way on every rank. A block that MPI places itself
//   becomes one element of a derived type. v-collectives cannot be split and return MPI_ERR_COUNT before
//   any data moves.
// In place: MPI_IN_PLACE if MPI has the same rule as Isthmus, otherwise a copy. Each function documents this.
// Errors: chunks before the failed one have been transferred; the core aborts the communicator.
#ifndef ISTHMUS_MPI_COLLECTIVES_HPP
#define ISTHMUS_MPI_COLLECTIVES_HPP

#include <algorithm>
#include <isthmus/mpi/arguments.hpp>
#include <memory>
#include <new>

namespace isthmus::mpi::detail {

/// MPI_Bcast, in chunks if the count does not fit. The root sends from its send buffer. If its receive buffer
/// differs, the root fills it at the end, so a failure leaves the receive buffer unchanged.
inline int broadcast(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  // MPI takes one buffer: the root passes its send buffer and fills its receive buffer afterwards.
  void* buffer = call.is_root() ? const_cast<void*>(operation.send_buf) : operation.recv_buf;
  const int code = for_each_chunk(operation.count, [&](std::uint64_t first, native::count count) {
    return native::broadcast(/*buffer*/ static_cast<char*>(buffer) + first * call.element_bytes, count,
                             call.type, operation.root, call.comm);
  });
  if (code == MPI_SUCCESS && call.is_root() && operation.recv_buf != operation.send_buf && operation.count > 0)
    std::memcpy(operation.recv_buf, operation.send_buf, operation.count * call.element_bytes);
  return code;
}

/// MPI_Reduce, in chunks if the count does not fit; in place on root.
inline int reduce(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  const bool in_place = call.is_root() && operation.send_buf == operation.recv_buf;
  return for_each_chunk(operation.count, [&](std::uint64_t first, native::count count) {
    return native::reduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.send_pointer(first),
                          /*recvbuf*/ call.is_root() ? call.recv_pointer(first) : nullptr, count, call.type,
                          call.op(), operation.root, call.comm);
  });
}

/// MPI_Allreduce, in chunks if the count does not fit; in place if the buffers are equal. For min and max of
/// floating types, it uses an operation of Isthmus (native.hpp), in rank order.
inline int allreduce(const mpi_call& call) {
  const bool in_place = call.operation.send_buf == call.operation.recv_buf;
  return for_each_chunk(call.operation.count, [&](std::uint64_t first, native::count count) {
    return native::allreduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.send_pointer(first),
                             /*recvbuf*/ call.recv_pointer(first), count, call.type, call.op(), call.comm);
  });
}

// Calls MPI_Reduce once for each root. Used for blocks that are not contiguous or exceed MPI's counts. The
// block of `rank` has `block_count(rank)` elements starting at `block_begin(rank)`.
template <typename Begin, typename Count>
int reduce_to_each(const mpi_call& call, int size, Begin&& block_begin, Count&& block_count) {
  for (int root = 0; root < size; ++root) {
    const std::uint64_t begin = block_begin(root), elements = block_count(root);
    if (elements == 0) continue;  // equal on all ranks
    const bool is_own_block = root == call.rank,
               in_place = is_own_block && call.recv_pointer(0) == call.send_pointer(begin);
    const int code = for_each_chunk(elements, [&](std::uint64_t first, native::count count) {
      return native::reduce(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.send_pointer(begin + first),
                            /*recvbuf*/ is_own_block ? call.recv_pointer(first) : nullptr, count, call.type,
                            call.op(), root, call.comm);
    });
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

/// MPI_Reduce_scatter_block. In place, it needs temporary memory for one block. If the count does not fit, it
/// calls MPI_Reduce once for each root.
inline int reduce_scatter(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  if (operation.count > native::count_limit)
    return reduce_to_each(
        call, size, [&](int root) { return static_cast<std::uint64_t>(root) * operation.count; },
        [&](int) { return operation.count; });
  // MPI_IN_PLACE would write the result to the first block of the buffer, but Isthmus requires it in this
  // rank's block, so it goes through temporary memory.
  const bool in_place = operation.recv_buf == call.send_pointer(call.own_block()) && operation.count > 0;
  const std::uint64_t bytes = operation.count * call.element_bytes;
  const std::unique_ptr<char[]> temporary(in_place ? new char[bytes] : nullptr);
  const int code = native::reduce_scatter(
      /*sendbuf*/ operation.send_buf, /*recvbuf*/ in_place ? temporary.get() : operation.recv_buf,
      static_cast<native::count>(operation.count), call.type, call.op(), call.comm);
  if (code == MPI_SUCCESS && in_place) std::memcpy(operation.recv_buf, temporary.get(), bytes);
  return code;
}

/// MPI_Reduce_scatter if the blocks are contiguous and their sum fits, otherwise one MPI_Reduce for each root.
/// The in-place rule is that of reduce_scatter.
inline int reduce_scatterv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const converted_array<native::count> counts(operation.send_counts, size);
  const std::uint64_t first = operation.send_displs[0];
  std::uint64_t next_displ = first;
  bool is_contiguous = counts.fits();
  for (int r = 0; r < size && is_contiguous; ++r) {
    is_contiguous = operation.send_displs[r] == next_displ &&
                    operation.send_counts[r] <= native::count_limit - (next_displ - first);
    next_displ += operation.send_counts[r];
  }
  if (!is_contiguous)
    return reduce_to_each(
        call, size, [&](int root) { return operation.send_displs[root]; },
        [&](int root) { return operation.send_counts[root]; });
  // A rank without elements may pass any buffer, but MPICH checks whether it equals the send buffer.
  const bool in_place =
      operation.count == 0 || operation.recv_buf == call.send_pointer(operation.send_displs[call.rank]);
  const std::uint64_t bytes = operation.count * call.element_bytes;
  const std::unique_ptr<char[]> temporary(in_place ? new char[bytes] : nullptr);
  const int code = native::reduce_scatterv(/*sendbuf*/ call.send_pointer(first),
                                           /*recvbuf*/ in_place ? temporary.get() : operation.recv_buf,
                                           counts.data(), call.type, call.op(), call.comm);
  if (code == MPI_SUCCESS && in_place && bytes > 0) std::memcpy(operation.recv_buf, temporary.get(), bytes);
  return code;
}

/// MPI_Allgather in one call; blocks that do not fit are one element of a derived type.
inline int allgather(const mpi_call& call) {
  const bool in_place = call.operation.send_buf == call.recv_pointer(call.own_block());
  const counted_block own(call.operation.count, call.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::allgather(/*sendbuf*/ in_place ? MPI_IN_PLACE : call.operation.send_buf, own.count(),
                           own.type(),
                           /*recvbuf*/ call.operation.recv_buf, own.count(), own.type(), call.comm);
}

/// MPI_Allgatherv; MPI_ERR_COUNT if a count or displacement does not fit. In place if the send buffer is the
/// rank's block of the receive buffer.
inline int allgatherv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const vector_layout recv(operation.recv_counts, operation.recv_displs, size);
  if (!recv.fits() || operation.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = operation.send_buf == call.recv_pointer(operation.recv_displs[call.rank]);
  return native::allgatherv(
      /*sendbuf*/ in_place ? MPI_IN_PLACE : operation.send_buf, static_cast<native::count>(operation.count),
      call.type, /*recvbuf*/ operation.recv_buf, recv.counts.data(), recv.displs.data(), call.type, call.comm);
}

/// MPI_Gather in one call, like allgather. In place on root if its block is already in the receive buffer.
/// Other ranks need no receive buffer.
inline int gather(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  const bool in_place = call.is_root() && operation.send_buf == call.recv_pointer(call.own_block());
  const counted_block own(operation.count, call.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::gather(/*sendbuf*/ in_place ? MPI_IN_PLACE : operation.send_buf, own.count(), own.type(),
                        /*recvbuf*/ call.is_root() ? operation.recv_buf : nullptr, own.count(), own.type(),
                        operation.root, call.comm);
}

/// MPI_Gatherv. Only root reads the counts and displacements of all ranks and checks that they fit.
inline int gatherv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const bool is_root = call.is_root();
  const vector_layout recv(is_root ? operation.recv_counts : nullptr, is_root ? operation.recv_displs : nullptr,
                           size);
  if (!recv.fits() || operation.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = is_root && operation.send_buf == call.recv_pointer(operation.recv_displs[call.rank]);
  return native::gatherv(/*sendbuf*/ in_place ? MPI_IN_PLACE : operation.send_buf,
                         static_cast<native::count>(operation.count), call.type,
                         /*recvbuf*/ is_root ? operation.recv_buf : nullptr, recv.counts.data(),
                         recv.displs.data(), call.type, operation.root, call.comm);
}

/// MPI_Scatter in one call, like allgather. In place on root if its receive buffer is its block of the send
/// buffer. Other ranks need no send buffer.
inline int scatter(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  const bool in_place = call.is_root() && operation.recv_buf == call.send_pointer(call.own_block());
  const counted_block own(operation.count, call.type);
  if (own.error() != MPI_SUCCESS) return own.error();
  return native::scatter(/*sendbuf*/ call.is_root() ? operation.send_buf : nullptr, own.count(), own.type(),
                         /*recvbuf*/ in_place ? MPI_IN_PLACE : operation.recv_buf, own.count(), own.type(),
                         operation.root, call.comm);
}

/// MPI_Scatterv. Only root reads the counts and displacements of all ranks and checks that they fit.
inline int scatterv(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const bool is_root = call.is_root();
  const vector_layout send(is_root ? operation.send_counts : nullptr, is_root ? operation.send_displs : nullptr,
                           size);
  if (!send.fits() || operation.count > native::count_limit) return MPI_ERR_COUNT;
  const bool in_place = is_root && operation.recv_buf == call.send_pointer(operation.send_displs[call.rank]);
  return native::scatterv(/*sendbuf*/ is_root ? operation.send_buf : nullptr, send.counts.data(),
                          send.displs.data(), call.type,
                          /*recvbuf*/ in_place ? MPI_IN_PLACE : operation.recv_buf,
                          static_cast<native::count>(operation.count), call.type, operation.root, call.comm);
}

// Copies the send data of an in-place alltoall. MPI_IN_PLACE changes the algorithm, so either all ranks or none
// must pass it, but a rank does not know what the others pass. With a copy of this rank's contribution, all
// ranks make the same call.
inline std::unique_ptr<char[]> copy_bytes(const void* data, std::uint64_t bytes) {
  std::unique_ptr<char[]> copy(new char[bytes]);
  if (bytes > 0) std::memcpy(copy.get(), data, bytes);
  return copy;
}

/// MPI_Alltoall. In place, it sends from a copy of this rank's contribution.
inline int alltoall(const mpi_call& call) {
  const isthmus_operation& operation = call.operation;
  int size = 0;
  if (const int code = MPI_Comm_size(call.comm, &size); code != MPI_SUCCESS) return code;
  const counted_block block(operation.count, call.type);
  if (block.error() != MPI_SUCCESS) return block.error();
  std::unique_ptr<char[]> copy;
  if (operation.send_buf == operation.recv_buf)
    copy =
        copy_bytes(operation.send_buf, operation.count * static_cast<std::uint64_t>(size) * call.element_bytes);
  return native::alltoall(/*sendbuf*/ copy ? copy.get() : operation.send_buf, block.count(), block.type(),
                          /*recvbuf*/ operation.recv_buf, block.count(), block.type(), call.comm);
}

/// MPI_Alltoallv. In place, it sends from a copy of the buffer up to the last element that is sent.
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

/// MPI_Send, in the same chunks as on the receiver. MPI decides whether it waits for the receiver. In a group,
/// the mpi backend starts both sides with requests.
inline int send(const mpi_call& call) {
  return for_each_chunk(call.operation.count, [&](std::uint64_t first, native::count count) {
    return native::send(/*buf*/ call.send_pointer(first), count, call.type, /*dest*/ call.operation.root,
                        payload_tag, call.comm);
  });
}

/// MPI_Recv; the chunks of one message arrive in order.
inline int recv(const mpi_call& call) {
  return for_each_chunk(call.operation.count, [&](std::uint64_t first, native::count count) {
    return native::recv(/*buf*/ call.recv_pointer(first), count, call.type, /*source*/ call.operation.root,
                        payload_tag, call.comm, MPI_STATUS_IGNORE);
  });
}

/// Runs the MPI call of a collective. Returns MPI's code unchanged; throws only std::bad_alloc.
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

/// Runs an operation for the function table of mpi.hpp. Costs one MPI_Comm_rank in addition to the call.
inline int run_operation(MPI_Comm comm, const isthmus_operation& operation) {
  int rank = 0;
  if (const int code = MPI_Comm_rank(comm, &rank); code != MPI_SUCCESS) return code;
  return run(mpi_call{operation, comm, native_types::get().datatype(operation.datatype),
                      bytes_of(operation.datatype), rank});
}

}  // namespace isthmus::mpi::detail

#endif
