// Every collective of a communicator, described from its own view: what it takes, writes and returns.
#ifndef ISTHMUS_SYCL_COLLECTIVES_HPP
#define ISTHMUS_SYCL_COLLECTIVES_HPP

#include <isthmus/sycl/call.hpp>
#include <memory>
#include <utility>

namespace isthmus {

/// What a communicator can be asked for; no class to make or to hold, a communicator is one. Operands are
/// described in operand.hpp. `count` and displacements are in elements of the operands, 64 bits; a count of 0
/// is allowed everywhere. In the descriptions n = size(), and block r of a buffer is its elements
/// [r*count, (r+1)*count).
///
/// Ordering. An operation starts after its dependencies, after earlier accesses to its buffers and, on an
/// in-order queue, after earlier work of the queue; the returned event, later accesses to its buffers and, on
/// an in-order queue, later work see its result. On the host platform the call returns when this rank's part is
/// complete (host_execution says how to change that); on device platforms it does not wait. Calls on several
/// queues keep their order where path() is host_task, or native_command with one rank in the process; elsewhere
/// on devices use one queue or pass events. Inside an isthmus::group nothing starts before the group's end.
///
/// Aliasing. Send and receive operand may be the same, or one the own block of the other, where a function says
/// so; any other overlap is an error. broadcast() and allreduce() have a shorthand with one operand.
///
/// Bits. After a reduction all ranks hold the same bits. float16, bfloat16 and the 8-bit types are summed in
/// float32 and rounded to nearest even; integers wrap; min and max are NaN where a contribution is.
class collectives {
 public:
  /// recv[count] on every rank = send[count] of root.
  /// @code
  /// float* weights = sycl::malloc_device<float>(count, queue);
  /// if (ranks.rank() == 0) load(queue, weights);          // commands of the same in-order queue
  /// ranks.broadcast(queue, weights, count, 0);            // the in-place form
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send Read on root only; nullptr is allowed elsewhere.
  /// @param recv Written on every rank, root included; may be `send`.
  /// @param count Elements, equal on all ranks.
  /// @param root The rank that sends.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: `root` is no rank, a buffer that is too
  ///   small, a pointer that is null, operands that overlap otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event broadcast(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_BROADCAST, .root = root, .count = count}, send,
                        recv, wait_events);
  }
  /// broadcast() in place: data[count] of root goes into data of all others.
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param data Read on root, written elsewhere.
  /// @param count Elements, equal on all ranks.
  /// @param root The rank that sends.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: `root` is no rank, a buffer that is too
  ///   small, a pointer that is null, operands that overlap otherwise, a queue of another device.
  template <recv_operand Data>
  sycl::event broadcast(const sycl::queue& queue, const Data& data, std::uint64_t count, int root,
                        const dependencies& wait_events = {}) const {
    return broadcast(queue, data, data, count, root, wait_events);
  }

  /// recv[count] on root = reduction over ranks of send[count].
  /// @code
  /// ranks.reduce(queue, data, ranks.rank() == 0 ? result : nullptr, count, isthmus::reduction_op::sum, 0);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send Read on every rank; elements that THE TABLE can combine.
  /// @param recv Written on root only, nullptr is allowed elsewhere; on root it may be `send`.
  /// @param count Elements, equal on all ranks.
  /// @param op How elements are combined.
  /// @param root The rank that receives.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: `root` is no rank, a buffer that is too
  ///   small, a pointer that is null, operands that overlap otherwise, a queue of another device.
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
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send Read on every rank; elements that THE TABLE can combine.
  /// @param recv Written on every rank; may be `send`.
  /// @param count Elements, equal on all ranks.
  /// @param op How elements are combined.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: a buffer that is too small, a pointer
  ///   that is null, operands that overlap otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event allreduce(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue,
                        {.collective = ISTHMUS_ALLREDUCE, .op = detail::native_op(op), .count = count}, send,
                        recv, wait_events);
  }
  /// allreduce() in place: data[count] becomes the reduction over ranks of data[count].
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param data Read and written on every rank.
  /// @param count Elements, equal on all ranks.
  /// @param op How elements are combined.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: a buffer that is too small, a pointer
  ///   that is null, operands that overlap otherwise, a queue of another device.
  template <recv_operand Data>
    requires reducible_operand<Data>
  sycl::event allreduce(const sycl::queue& queue, const Data& data, std::uint64_t count,
                        reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return allreduce(queue, data, data, count, op, wait_events);
  }

  /// recv[count] on rank r = reduction over ranks of block r of send[n*count].
  /// @code
  /// // The own block in place: every rank ends with its share of the sum.
  /// ranks.reduce_scatter(queue, all, all + ranks.rank() * count, count);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send n blocks on every rank.
  /// @param recv One block; may be the own block of `send`: at_offset(send, rank() * count), or send + rank() * count.
  /// @param count Elements of one block, equal on all ranks.
  /// @param op How elements are combined.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: a buffer that is too small, a pointer
  ///   that is null, operands that overlap otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event reduce_scatter(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                             reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue,
                        {.collective = ISTHMUS_REDUCE_SCATTER, .op = detail::native_op(op), .count = count},
                        send, recv, wait_events);
  }

  /// recv[count] on rank r = reduction over ranks of send_counts[r] elements at send_displs[r] of send.
  /// @code
  /// const std::vector<std::uint64_t> counts{5, 3}, displs{0, 5};  // shares by speed: isthmus::partition
  /// ranks.reduce_scatterv(queue, all, counts, displs, mine, counts[ranks.rank()]);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send Blocks for every rank.
  /// @param send_counts n counts, equal on all ranks.
  /// @param send_displs Where each rank's block begins in `send`, in elements; equal on all ranks.
  /// @param recv The own block; may be the own block of `send`.
  /// @param count Its elements: send_counts[rank()].
  /// @param op How elements are combined.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: counts or displacements that are not
  ///   one for each rank, blocks that leave the buffer, a pointer that is null, operands that overlap
  ///   otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event reduce_scatterv(const sycl::queue& queue, const Send& send, counts send_counts,
                              counts send_displs, const Recv& recv, std::uint64_t count,
                              reduction_op op = reduction_op::sum, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue,
                        {.collective = ISTHMUS_REDUCE_SCATTERV, .op = detail::native_op(op), .count = count},
                        send, recv, wait_events, {.send_counts = send_counts, .send_displs = send_displs});
  }

  /// Block r of recv[n*count] on every rank = send[count] of rank r.
  /// @code
  /// // A sycl::buffer in place: every rank has filled its own block.
  /// ranks.allgather(queue, isthmus::at_offset(all, ranks.rank() * count), all, count);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send One block; may be the own block of `recv`: at_offset(recv, rank() * count), or recv + rank() * count.
  /// @param recv n blocks, in rank order.
  /// @param count Elements of one block, equal on all ranks.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: a buffer that is too small, a pointer
  ///   that is null, operands that overlap otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event allgather(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_ALLGATHER, .count = count}, send, recv, wait_events);
  }

  /// recv_counts[r] elements at recv_displs[r] of recv on every rank = send of rank r.
  /// @code
  /// const std::vector<std::uint64_t> counts{3, 5}, displs{0, 3};
  /// ranks.allgatherv(queue, mine, counts[ranks.rank()], all, counts, displs);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send The own block; may be the own block of `recv`.
  /// @param count Its elements: recv_counts[rank()].
  /// @param recv All blocks; they must not overlap.
  /// @param recv_counts n counts, equal on all ranks.
  /// @param recv_displs Where each rank's block begins in `recv`, in elements; equal on all ranks.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: counts or displacements that are not
  ///   one for each rank, blocks that leave the buffer, a pointer that is null, operands that overlap
  ///   otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event allgatherv(const sycl::queue& queue, const Send& send, std::uint64_t count, const Recv& recv,
                         counts recv_counts, counts recv_displs, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_ALLGATHERV, .count = count}, send, recv, wait_events,
                        {.recv_counts = recv_counts, .recv_displs = recv_displs});
  }

  /// Block r of recv[n*count] on root = send[count] of rank r.
  /// @code
  /// float* all = ranks.rank() == root ? sycl::malloc_device<float>(ranks.size() * count, queue) : nullptr;
  /// ranks.gather(queue, mine, all, count, root);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send One block on every rank; on root it may be the own block of `recv`.
  /// @param recv n blocks, written on root only; nullptr is allowed elsewhere.
  /// @param count Elements of one block, equal on all ranks.
  /// @param root The rank that receives.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: `root` is no rank, a buffer that is too
  ///   small, a pointer that is null, operands that overlap otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event gather(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                     int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_GATHER, .root = root, .count = count}, send, recv,
                        wait_events);
  }

  /// recv_counts[r] elements at recv_displs[r] of recv on root = send of rank r.
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send The own block; on root it may be the own block of `recv`.
  /// @param count Its elements; what root has in recv_counts for this rank.
  /// @param recv All blocks, written on root only; nullptr is allowed elsewhere.
  /// @param recv_counts n counts; read on root only, may be empty elsewhere.
  /// @param recv_displs Where each rank's block begins in `recv`, in elements; read on root only.
  /// @param root The rank that receives.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: counts or displacements that are not
  ///   one for each rank, blocks that leave the buffer, a pointer that is null, operands that overlap
  ///   otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event gatherv(const sycl::queue& queue, const Send& send, std::uint64_t count, const Recv& recv,
                      counts recv_counts, counts recv_displs, int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_GATHERV, .root = root, .count = count}, send,
                        recv, wait_events, {.recv_counts = recv_counts, .recv_displs = recv_displs});
  }

  /// recv[count] on rank r = block r of root's send[n*count].
  /// @code
  /// ranks.scatter(queue, ranks.rank() == root ? all : nullptr, mine, count, root);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send n blocks in rank order, read on root only; nullptr is allowed elsewhere.
  /// @param recv One block on every rank; on root it may be the own block of `send`.
  /// @param count Elements of one block, equal on all ranks.
  /// @param root The rank that sends.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: `root` is no rank, a buffer that is too
  ///   small, a pointer that is null, operands that overlap otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event scatter(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                      int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_SCATTER, .root = root, .count = count}, send,
                        recv, wait_events);
  }

  /// recv on rank r = send_counts[r] elements at send_displs[r] of root's send.
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send All blocks, read on root only; nullptr is allowed elsewhere.
  /// @param send_counts n counts; read on root only, may be empty elsewhere.
  /// @param send_displs Where each rank's block begins in `send`, in elements; read on root only.
  /// @param recv The own block; on root it may be the own block of `send`.
  /// @param count Its elements; what root has in send_counts for this rank.
  /// @param root The rank that sends.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: counts or displacements that are not
  ///   one for each rank, blocks that leave the buffer, a pointer that is null, operands that overlap
  ///   otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event scatterv(const sycl::queue& queue, const Send& send, counts send_counts, counts send_displs,
                       const Recv& recv, std::uint64_t count, int root, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_SCATTERV, .root = root, .count = count}, send,
                        recv, wait_events, {.send_counts = send_counts, .send_displs = send_displs});
  }

  /// Block s of recv[n*count] on rank r = block r of send[n*count] of rank s.
  /// @code
  /// // Rows of a distributed matrix become columns: block r of each rank goes to rank r.
  /// ranks.alltoall(queue, rows, columns, block_rows * block_columns);
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send n blocks: block r goes to rank r.
  /// @param recv n blocks: block s comes from rank s; may be `send`.
  /// @param count Elements of one block, equal on all ranks.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: a buffer that is too small, a pointer
  ///   that is null, operands that overlap otherwise, a queue of another device.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event alltoall(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                       const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_ALLTOALL, .count = count}, send, recv, wait_events);
  }

  /// recv_counts[s] elements at recv_displs[s] of recv on rank r = send_counts[r] elements at send_displs[r] of
  /// send of rank s.
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send Blocks for every rank.
  /// @param send_counts n counts; send_counts[r] here equals recv_counts[s] on rank r, where s is this rank.
  /// @param send_displs Where each rank's block begins in `send`, in elements.
  /// @param recv Blocks from every rank; must not overlap each other; may be `send`.
  /// @param recv_counts n counts.
  /// @param recv_displs Where each rank's block begins in `recv`, in elements.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: counts or displacements that are not
  ///   one for each rank, blocks that leave the buffer, a pointer that is null, operands that overlap
  ///   otherwise, a queue of another device.
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

  /// Point to point: the peer calls recv() with the same count and type; messages between two ranks arrive in
  /// their order. A send may block until it is received, so an exchange belongs in a group.
  /// @code
  /// isthmus::group group;
  /// ranks.send(queue, mine, count, right);
  /// ranks.recv(queue, theirs, count, left);
  /// group.end();
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param send Elements to send.
  /// @param count How many; equal on both ranks.
  /// @param peer The rank that receives.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: `peer` is no other rank, a buffer that
  ///   is too small, a pointer that is null, a queue of another device.
  template <send_operand Send>
  sycl::event send(const sycl::queue& queue, const Send& send, std::uint64_t count, int peer,
                   const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_SEND, .root = peer, .count = count}, send,
                        nullptr, wait_events);
  }
  /// The other side of send().
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param recv Where the elements go.
  /// @param count How many; equal on both ranks.
  /// @param peer The rank that sends.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return Complete when results may be read and every buffer used again; in a group see group::end().
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: `peer` is no other rank, a buffer that
  ///   is too small, a pointer that is null, a queue of another device.
  template <recv_operand Recv>
  sycl::event recv(const sycl::queue& queue, const Recv& recv, std::uint64_t count, int peer,
                   const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_RECV, .root = peer, .count = count}, nullptr,
                        recv, wait_events);
  }

  /// No rank leaves (host) or lets its stream pass (device) before every rank has entered.
  /// @code
  /// ranks.barrier(queue, {written}).wait();               // every rank has written before any goes on
  /// @endcode
  /// @param queue A queue of device(); an in-order one orders the operation among its other work.
  /// @param wait_events Events of any queue that the operation waits for besides.
  /// @return The event after which every rank has entered.
  /// @throws isthmus::exception INVALID_ARGUMENT, with nothing written: a buffer that is too small, a pointer
  ///   that is null, operands that overlap otherwise, a queue of another device.
  sycl::event barrier(const sycl::queue& queue, const dependencies& wait_events = {}) const {
    return detail::submit_collective(m_rank, queue, {.collective = ISTHMUS_BARRIER}, nullptr, nullptr, wait_events);
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
