#include "issue.hpp"

#include <cstdlib>

namespace conformance {
namespace {

const std::uint64_t* data_or_null(bool significant, const std::vector<std::uint64_t>& values) {
  return significant ? values.data() : nullptr;
}

std::uint64_t own_count(const oracle::operation_shape& shape, int rank) {
  switch (shape.collective) {
    case ISTHMUS_ALLGATHERV:
    case ISTHMUS_GATHERV: return shape.recv_layouts[shape.root].counts[rank];
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_SCATTERV: return shape.send_layouts[shape.root].counts[rank];
    case ISTHMUS_ALLTOALLV:
    case ISTHMUS_BARRIER: return 0;
    default: return shape.count;
  }
}

isthmus_status named_call(const isthmus_operation& o, isthmus_communicator c) {
  switch (o.collective) {
    case ISTHMUS_BROADCAST:
      return isthmus_broadcast(o.send_buf, o.recv_buf, o.count, o.datatype, o.root, c, nullptr);
    case ISTHMUS_REDUCE:
      return isthmus_reduce(o.send_buf, o.recv_buf, o.count, o.datatype, o.op, o.root, c, nullptr);
    case ISTHMUS_ALLREDUCE:
      return isthmus_allreduce(o.send_buf, o.recv_buf, o.count, o.datatype, o.op, c, nullptr);
    case ISTHMUS_REDUCE_SCATTER:
      return isthmus_reduce_scatter(o.send_buf, o.recv_buf, o.count, o.datatype, o.op, c, nullptr);
    case ISTHMUS_REDUCE_SCATTERV:
      return isthmus_reduce_scatterv(o.send_buf, o.send_counts, o.send_displs, o.recv_buf, o.count, o.datatype,
                                     o.op, c, nullptr);
    case ISTHMUS_ALLGATHER: return isthmus_allgather(o.send_buf, o.recv_buf, o.count, o.datatype, c, nullptr);
    case ISTHMUS_ALLGATHERV:
      return isthmus_allgatherv(o.send_buf, o.count, o.recv_buf, o.recv_counts, o.recv_displs, o.datatype, c,
                                nullptr);
    case ISTHMUS_GATHER: return isthmus_gather(o.send_buf, o.recv_buf, o.count, o.datatype, o.root, c, nullptr);
    case ISTHMUS_GATHERV:
      return isthmus_gatherv(o.send_buf, o.count, o.recv_buf, o.recv_counts, o.recv_displs, o.datatype, o.root,
                             c, nullptr);
    case ISTHMUS_SCATTER:
      return isthmus_scatter(o.send_buf, o.recv_buf, o.count, o.datatype, o.root, c, nullptr);
    case ISTHMUS_SCATTERV:
      return isthmus_scatterv(o.send_buf, o.send_counts, o.send_displs, o.recv_buf, o.count, o.datatype, o.root,
                              c, nullptr);
    case ISTHMUS_ALLTOALL: return isthmus_alltoall(o.send_buf, o.recv_buf, o.count, o.datatype, c, nullptr);
    case ISTHMUS_ALLTOALLV:
      return isthmus_alltoallv(o.send_buf, o.send_counts, o.send_displs, o.recv_buf, o.recv_counts,
                               o.recv_displs, o.datatype, c, nullptr);
    case ISTHMUS_SEND: return isthmus_send(o.send_buf, o.count, o.datatype, o.root, c, nullptr);
    case ISTHMUS_RECV: return isthmus_recv(o.recv_buf, o.count, o.datatype, o.root, c, nullptr);
    case ISTHMUS_BARRIER: return isthmus_barrier(c, nullptr);
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  std::abort();
}

isthmus_status call(const test_case& test, const isthmus_operation& operation, const rank_member& member) {
  return test.seed % 2 == 0 ? named_call(operation, member.communicator)
                            : isthmus_enqueue(member.communicator, &operation);
}

isthmus_status ring(const test_case& test, const oracle::operation_shape& shape, const rank_buffers& buffers,
                    const rank_member& member, bool plain_pairs) {
  const int n = shape.size;
  isthmus_operation send = operation_of(test, shape, buffers.addresses(), member.rank);
  isthmus_operation recv = send;
  send.recv_buf = nullptr;
  recv.send_buf = nullptr;
  recv.collective = ISTHMUS_RECV;
  send.root = (member.rank + shape.root) % n;
  recv.root = (member.rank + n - shape.root) % n;
  const bool send_first = plain_pairs ? member.rank % 2 == 0 : test.seed % 3 != 0;
  if (!plain_pairs) isthmus_group_start();
  isthmus_status status = call(test, send_first ? send : recv, member);
  if (status == ISTHMUS_SUCCESS) status = call(test, send_first ? recv : send, member);
  if (plain_pairs) return status;
  const isthmus_status end = isthmus_group_end();
  return status != ISTHMUS_SUCCESS ? status : end;
}

}  // namespace

bool can_be_plain_pairs(const oracle::operation_shape& shape) {
  return shape.size % 2 == 0 && shape.root % 2 == 1;
}

isthmus_operation operation_of(const test_case& test, const oracle::operation_shape& shape,
                               const placement& addresses, int rank) {
  isthmus_operation operation{};
  operation.collective = test.collective;
  operation.datatype = test.datatype;
  if (reduces(test.collective)) operation.op = test.op;
  if (has_root(test.collective)) operation.root = shape.root;
  operation.count = own_count(shape, rank);
  operation.send_buf = addresses.send;
  operation.recv_buf = addresses.recv;
  const auto here = static_cast<std::size_t>(rank);
  if (!shape.send_layouts.empty()) {
    const bool significant = !has_root(test.collective) || rank == shape.root;
    operation.send_counts = data_or_null(significant, shape.send_layouts[here].counts);
    operation.send_displs = data_or_null(significant, shape.send_layouts[here].displs);
  }
  if (!shape.recv_layouts.empty()) {
    const bool significant = !has_root(test.collective) || rank == shape.root;
    operation.recv_counts = data_or_null(significant, shape.recv_layouts[here].counts);
    operation.recv_displs = data_or_null(significant, shape.recv_layouts[here].displs);
  }
  return operation;
}

isthmus_status issue(const test_case& test, const oracle::operation_shape& shape, const rank_buffers& buffers,
                     const rank_member& member, bool plain_pairs) {
  if (test.collective == ISTHMUS_SEND) return ring(test, shape, buffers, member, plain_pairs);
  return call(test, operation_of(test, shape, buffers.addresses(), member.rank), member);
}

}  // namespace conformance
