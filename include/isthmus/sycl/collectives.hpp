// The collectives of a communicator. Documents operands, ordering and results.
#ifndef ISTHMUS_SYCL_COLLECTIVES_HPP
#define ISTHMUS_SYCL_COLLECTIVES_HPP

#include <isthmus/sycl/call.hpp>
#include <memory>
#include <utility>

namespace isthmus {

/// The collective operations. This is the base class of communicator; do not instantiate it.
///
/// operand.hpp describes operands. `count` and displacements are 64-bit numbers of operand elements. A count of
/// 0 is always allowed. Below, n = size(), and block r of a buffer is its elements [r*count, (r+1)*count).
///
/// Ordering: an operation starts after its wait events, after earlier accesses to its buffers and, on an
///   in-order queue, after earlier work of the queue. The returned event, later accesses to its buffers and, on
///   an in-order queue, later work of the queue see its result. Calls on several queues run in call order if
///   path() is host_task or native_command. On other device paths, use one queue or pass events. Inside an
///   isthmus::group, nothing starts before the end of the group.
///
/// Blocking: on the host platform, the call returns when this rank's part is complete (host_execution can
///   change that). On device platforms, it does not wait.
///
/// Aliasing: if the function allows it, the send and receive operands may be the same, or one may be this
///   rank's block of the other. Any other overlap is an error. broadcast() and allreduce() have overloads
///   with one operand.
///
/// Determinism: all ranks that receive the result of a reduction get the same bits. float16, bfloat16 and the
///   8-bit floating types are summed in float32 and rounded to nearest even. Integers wrap. min and max are NaN
///   if any contribution is NaN.
class collectives {
 public:
  /// recv[count] on every rank = send[count] of root.
  /// @code
  /// float* weights = sycl::malloc_device<float>(count, queue);
  /// if (ranks.rank() == 0) load(queue, weights);          // commands of the same in-order queue
  /// ranks.broadcast(queue, weights, count, 0);            // the in-place form
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send Read on root only; may be nullptr elsewhere.
  /// @param recv Written on every rank, root included; may be `send`.
  /// @param count The number of elements; equal on all ranks.
  /// @param root The sending rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: invalid `root`, buffer too small, null pointer, invalid
  ///   overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event broadcast(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue,
                                     {.collective = ISTHMUS_BROADCAST, .root = root, .count = count}, send,
                                     recv, wait_events);
  }
  /// broadcast() in place: copies data[count] of root to data of all other ranks.
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param data Read on root, written elsewhere.
  /// @param count The number of elements; equal on all ranks.
  /// @param root The sending rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: invalid `root`, buffer too small, null pointer, invalid
  ///   overlap, or a queue of another device. Nothing has been written.
  template <recv_operand Data>
  sycl::event broadcast(const sycl::queue& queue, const Data& data, std::uint64_t count, int root,
                        const dependencies& wait_events = {}) const {
    return broadcast(queue, data, data, count, root, wait_events);
  }

  /// recv[count] on root = reduction over ranks of send[count].
  /// @code
  /// ranks.reduce(queue, data, ranks.rank() == 0 ? result : nullptr, count, isthmus::reduction_op::sum, 0);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send Read on every rank. Isthmus must be able to reduce its datatype.
  /// @param recv Written on root only; may be nullptr elsewhere. On root it may be `send`.
  /// @param count The number of elements; equal on all ranks.
  /// @param op The reduction operation.
  /// @param root The receiving rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: invalid `root`, buffer too small, null pointer, invalid
  ///   overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event reduce(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                     reduction_op op, int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(
        m_rank, queue,
        {.collective = ISTHMUS_REDUCE, .op = detail::native_op(op), .root = root, .count = count}, send, recv,
        wait_events);
  }

  /// recv[count] on every rank = reduction over ranks of send[count], bit-identical everywhere.
  /// @code
  /// ranks.allreduce(queue, gradient, gradient, count, isthmus::reduction_op::avg);
  /// ranks.allreduce(queue, residual_buffer, 1, isthmus::reduction_op::max, {computed});
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send Read on every rank. Isthmus must be able to reduce its datatype.
  /// @param recv Written on every rank; may be `send`.
  /// @param count The number of elements; equal on all ranks.
  /// @param op The reduction operation.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: buffer too small, null pointer, invalid overlap, or a queue
  ///   of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event allreduce(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return detail::submit_collective(
        m_rank, queue, {.collective = ISTHMUS_ALLREDUCE, .op = detail::native_op(op), .count = count}, send,
        recv, wait_events);
  }
  /// allreduce() in place: replaces data[count] with the reduction over ranks of data[count].
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param data Read and written on every rank.
  /// @param count The number of elements; equal on all ranks.
  /// @param op The reduction operation.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: buffer too small, null pointer, invalid overlap, or a queue
  ///   of another device. Nothing has been written.
  template <recv_operand Data>
    requires reducible_operand<Data>
  sycl::event allreduce(const sycl::queue& queue, const Data& data, std::uint64_t count,
                        reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return allreduce(queue, data, data, count, op, wait_events);
  }

  /// recv[count] on rank r = reduction over ranks of block r of send[n*count].
  /// @code
  /// // In place: every rank receives its block of the sum.
  /// ranks.reduce_scatter(queue, all, all + ranks.rank() * count, count);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send n blocks on every rank.
  /// @param recv One block; may be this rank's block of `send`: at_offset(send, rank() * count), or send +
  ///   rank() * count.
  /// @param count The number of elements in one block; equal on all ranks.
  /// @param op The reduction operation.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: buffer too small, null pointer, invalid overlap, or a queue
  ///   of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event reduce_scatter(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                             reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return detail::submit_collective(
        m_rank, queue, {.collective = ISTHMUS_REDUCE_SCATTER, .op = detail::native_op(op), .count = count},
        send, recv, wait_events);
  }

  /// recv[count] on rank r = reduction over ranks of send_counts[r] elements at send_displs[r] of send.
  /// @code
  /// const std::vector<std::uint64_t> counts{5, 3}, displs{0, 5};  // or from isthmus::partition
  /// ranks.reduce_scatterv(queue, all, counts, displs, own, counts[ranks.rank()]);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send Blocks for every rank.
  /// @param send_counts One count per rank; equal on all ranks.
  /// @param send_displs The offset of each rank's block in `send`, in elements; equal on all ranks.
  /// @param recv This rank's block; may be this rank's block of `send`.
  /// @param count The number of elements of `recv`: send_counts[rank()].
  /// @param op The reduction operation.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: not one count and displacement per rank, a block outside its
  ///   buffer, null pointer, invalid overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event reduce_scatterv(const sycl::queue& queue, const Send& send, counts send_counts,
                              counts send_displs, const Recv& recv, std::uint64_t count,
                              reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return detail::submit_collective(
        m_rank, queue, {.collective = ISTHMUS_REDUCE_SCATTERV, .op = detail::native_op(op), .count = count},
        send, recv, wait_events, {.send_counts = send_counts, .send_displs = send_displs});
  }

  /// Block r of recv[n*count] on every rank = send[count] of rank r.
  /// @code
  /// // A sycl::buffer in place: every rank has filled its block.
  /// ranks.allgather(queue, isthmus::at_offset(all, ranks.rank() * count), all, count);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send One block; may be this rank's block of `recv`: at_offset(recv, rank() * count), or recv +
  ///   rank() * count.
  /// @param recv n blocks, in rank order.
  /// @param count The number of elements in one block; equal on all ranks.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: buffer too small, null pointer, invalid overlap, or a queue
  ///   of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event allgather(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_ALLGATHER, .count = count}, send,
                                     recv, wait_events);
  }

  /// recv_counts[r] elements at recv_displs[r] of recv on every rank = send of rank r.
  /// @code
  /// const std::vector<std::uint64_t> counts{3, 5}, displs{0, 3};
  /// ranks.allgatherv(queue, own, counts[ranks.rank()], all, counts, displs);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send This rank's block; may be this rank's block of `recv`.
  /// @param count The number of elements of `send`: recv_counts[rank()].
  /// @param recv All blocks; they must not overlap.
  /// @param recv_counts One count per rank; equal on all ranks.
  /// @param recv_displs The offset of each rank's block in `recv`, in elements; equal on all ranks.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: not one count and displacement per rank, a block outside its
  ///   buffer, null pointer, invalid overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event allgatherv(const sycl::queue& queue, const Send& send, std::uint64_t count, const Recv& recv,
                         counts recv_counts, counts recv_displs, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_ALLGATHERV, .count = count}, send,
                                     recv, wait_events,
                                     {.recv_counts = recv_counts, .recv_displs = recv_displs});
  }

  /// Block r of recv[n*count] on root = send[count] of rank r.
  /// @code
  /// float* all = ranks.rank() == root ? sycl::malloc_device<float>(ranks.size() * count, queue) : nullptr;
  /// ranks.gather(queue, own, all, count, root);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send One block on every rank; on root it may be this rank's block of `recv`.
  /// @param recv n blocks, written on root only; may be nullptr elsewhere.
  /// @param count The number of elements in one block; equal on all ranks.
  /// @param root The receiving rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: invalid `root`, buffer too small, null pointer, invalid
  ///   overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event gather(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                     int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(
        m_rank, queue, {.collective = ISTHMUS_GATHER, .root = root, .count = count}, send, recv, wait_events);
  }

  /// recv_counts[r] elements at recv_displs[r] of recv on root = send of rank r.
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send This rank's block; on root it may be this rank's block of `recv`.
  /// @param count The number of elements of `send`: the entry for this rank in root's recv_counts.
  /// @param recv All blocks, written on root only; may be nullptr elsewhere.
  /// @param recv_counts One count per rank; read on root only, may be empty elsewhere.
  /// @param recv_displs The offset of each rank's block in `recv`, in elements; read on root only.
  /// @param root The receiving rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: not one count and displacement per rank, a block outside its
  ///   buffer, null pointer, invalid overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event gatherv(const sycl::queue& queue, const Send& send, std::uint64_t count, const Recv& recv,
                      counts recv_counts, counts recv_displs, int root,
                      const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue,
                                     {.collective = ISTHMUS_GATHERV, .root = root, .count = count}, send, recv,
                                     wait_events, {.recv_counts = recv_counts, .recv_displs = recv_displs});
  }

  /// recv[count] on rank r = block r of root's send[n*count].
  /// @code
  /// ranks.scatter(queue, ranks.rank() == root ? all : nullptr, own, count, root);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send n blocks in rank order, read on root only; may be nullptr elsewhere.
  /// @param recv One block on every rank; on root it may be this rank's block of `send`.
  /// @param count The number of elements in one block; equal on all ranks.
  /// @param root The sending rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: invalid `root`, buffer too small, null pointer, invalid
  ///   overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event scatter(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                      int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(
        m_rank, queue, {.collective = ISTHMUS_SCATTER, .root = root, .count = count}, send, recv, wait_events);
  }

  /// recv on rank r = send_counts[r] elements at send_displs[r] of root's send.
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send All blocks, read on root only; may be nullptr elsewhere.
  /// @param send_counts One count per rank; read on root only, may be empty elsewhere.
  /// @param send_displs The offset of each rank's block in `send`, in elements; read on root only.
  /// @param recv This rank's block; on root it may be this rank's block of `send`.
  /// @param count The number of elements of `recv`: the entry for this rank in root's send_counts.
  /// @param root The sending rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: not one count and displacement per rank, a block outside its
  ///   buffer, null pointer, invalid overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event scatterv(const sycl::queue& queue, const Send& send, counts send_counts, counts send_displs,
                       const Recv& recv, std::uint64_t count, int root,
                       const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue,
                                     {.collective = ISTHMUS_SCATTERV, .root = root, .count = count}, send, recv,
                                     wait_events, {.send_counts = send_counts, .send_displs = send_displs});
  }

  /// Block s of recv[n*count] on rank r = block r of send[n*count] of rank s.
  /// @code
  /// // Rows of a distributed matrix become columns: block r of each rank goes to rank r.
  /// ranks.alltoall(queue, rows, columns, block_rows * block_columns);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send n blocks: block r goes to rank r.
  /// @param recv n blocks: block s comes from rank s; may be `send`.
  /// @param count The number of elements in one block; equal on all ranks.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: buffer too small, null pointer, invalid overlap, or a queue
  ///   of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event alltoall(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                       const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_ALLTOALL, .count = count}, send,
                                     recv, wait_events);
  }

  /// recv_counts[s] elements at recv_displs[s] of recv on rank r = send_counts[r] elements at send_displs[r] of
  /// send of rank s.
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send Blocks for every rank.
  /// @param send_counts One count per rank; send_counts[r] on rank s must equal recv_counts[s] on rank r.
  /// @param send_displs The offset of each rank's block in `send`, in elements.
  /// @param recv Blocks from every rank, which must not overlap each other; may be `send`.
  /// @param recv_counts One count per rank.
  /// @param recv_displs The offset of each rank's block in `recv`, in elements.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: not one count and displacement per rank, a block outside its
  ///   buffer, null pointer, invalid overlap, or a queue of another device. Nothing has been written.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event alltoallv(const sycl::queue& queue, const Send& send, counts send_counts, counts send_displs,
                        const Recv& recv, counts recv_counts, counts recv_displs,
                        const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_ALLTOALLV}, send, recv, wait_events,
                                     {.send_counts = send_counts,
                                      .send_displs = send_displs,
                                      .recv_counts = recv_counts,
                                      .recv_displs = recv_displs});
  }

  /// Sends elements to one rank. The peer calls recv() with the same count and type; messages between two ranks
  /// arrive in order.
  /// Blocking: send() may block until the message is received. Put matching sends and receives into a group.
  /// @code
  /// isthmus::group group;
  /// ranks.send(queue, outgoing, count, right);
  /// ranks.recv(queue, incoming, count, left);
  /// group.end();
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param send The elements to send.
  /// @param count The number of elements; equal on both ranks.
  /// @param peer The receiving rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: `peer` is not another rank, buffer too small, null pointer,
  ///   or a queue of another device. Nothing has been written.
  template <send_operand Send>
  sycl::event send(const sycl::queue& queue, const Send& send, std::uint64_t count, int peer,
                   const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_SEND, .root = peer, .count = count},
                                     send, nullptr, wait_events);
  }
  /// Receives the elements that `peer` sends with send().
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param recv Receives the elements.
  /// @param count The number of elements; equal on both ranks.
  /// @param peer The sending rank.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused. Inside a
  ///   group, see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT: `peer` is not another rank, buffer too small, null pointer,
  ///   or a queue of another device. Nothing has been written.
  template <recv_operand Recv>
  sycl::event recv(const sycl::queue& queue, const Recv& recv, std::uint64_t count, int peer,
                   const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_RECV, .root = peer, .count = count},
                                     nullptr, recv, wait_events);
  }

  /// Waits until every rank has entered. Then, on the host platform, the call returns; on device platforms, the
  /// stream continues.
  /// @code
  /// ranks.barrier(queue, {written}).wait();               // every rank has written
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when every rank has entered.
  /// @throws isthmus::exception INVALID_ARGUMENT: a queue of another device. Nothing has been written.
  sycl::event barrier(const sycl::queue& queue, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_BARRIER}, nullptr, nullptr,
                                     wait_events);
  }

  /// Allreduce (sum), residual addition and RMSNorm in one call. allreduce_rmsnorm.h describes the arguments, the
  /// results and their bits.
  /// @code
  /// isthmus_allreduce_rmsnorm_arguments arguments{};
  /// arguments.struct_bytes = sizeof arguments;
  /// arguments.tokens = tokens, arguments.hidden = hidden, arguments.eps = 1e-6;
  /// arguments.datatype = arguments.output = ISTHMUS_BFLOAT16;
  /// arguments.input = partial, arguments.residual = arguments.residual_out = residual;  // USM
  /// arguments.weight = weight, arguments.normalized = normalized;
  /// ranks.allreduce_rmsnorm(queue, arguments);
  /// @endcode
  /// @param queue A queue of device(). If it is in order, the operation is ordered with the other work
  ///   of the queue.
  /// @param arguments The sizes, datatypes and USM buffers; copied. `stream` is ignored, because the queue
  ///   determines it.
  /// @param wait_events Additional events that the operation waits for; they can come from any queue.
  /// @return The event that completes when results can be read and buffers reused.
  /// @throws isthmus::exception INVALID_ARGUMENT: as isthmus_allreduce_rmsnorm(), or a queue of another device;
  ///   INVALID_USAGE inside a group; UNSUPPORTED on devices without the backend `p2p`. Nothing has been written.
  sycl::event allreduce_rmsnorm(const sycl::queue& queue, const isthmus_allreduce_rmsnorm_arguments& arguments,
                                const dependencies& wait_events = {}) const {
    return detail::submit_allreduce_rmsnorm(m_rank, queue, arguments, wait_events);
  }

 protected:
  explicit collectives(std::shared_ptr<detail::rank_state> rank) : m_rank(std::move(rank)) {}
  collectives(collectives&&) noexcept = default;
  collectives& operator=(collectives&&) = delete;
  ~collectives() = default;

  std::shared_ptr<detail::rank_state> m_rank;
};

}  // namespace isthmus

#endif
