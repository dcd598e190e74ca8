// C entry points of operations and groups. Each named collective fills one descriptor and submits it.
#include <isthmus/isthmus.h>

#include "base/error.hpp"
#include "core/communicator.hpp"
#include "core/group.hpp"
#include "core/handles.hpp"

namespace {

isthmus_status submit(isthmus_communicator communicator, const isthmus_operation& operation) noexcept {
  return isthmus::guard([&] {
    if (isthmus::group::is_active()) [[unlikely]]
      isthmus::group::add(communicator, operation);
    else
      isthmus::handle_table::instance().find(communicator).enqueue(operation);
  });
}

// Fills the members that almost all collectives use; the caller sets the others.
isthmus_operation make_operation(isthmus_collective collective, const void* send_buf, void* recv_buf,
                                 std::uint64_t count, isthmus_datatype datatype, isthmus_stream stream) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = datatype;
  operation.count = count;
  operation.send_buf = send_buf;
  operation.recv_buf = recv_buf;
  operation.stream = stream;
  return operation;
}

}  // namespace

isthmus_status isthmus_enqueue(isthmus_communicator communicator, const isthmus_operation* operation) {
  const bool is_deferred = operation != nullptr && operation->product != nullptr && isthmus::group::is_active();
  if (operation != nullptr && operation->rmsnorm == nullptr && !is_deferred)
    return submit(communicator, *operation);
  return isthmus::guard([=] {
    if (is_deferred)
      throw isthmus::make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                                "enqueue: an operation with a product is inside a group",
                                "call it before isthmus_group_start or after isthmus_group_end");
    if (operation != nullptr)
      throw isthmus::invalid_argument(
          ISTHMUS_HERE,
          fmt::format("enqueue: rmsnorm = {} must be NULL", static_cast<const void*>(operation->rmsnorm)),
          "call isthmus_allreduce_rmsnorm");
    isthmus::throw_null_argument(ISTHMUS_HERE, "enqueue", "operation",
                                 "pass the address of an isthmus_operation");
  });
}

isthmus_status isthmus_group_start(void) {
  return isthmus::guard([] { isthmus::group::start(); });
}

isthmus_status isthmus_group_end(void) {
  return isthmus::guard([] { isthmus::group::end(); });
}

isthmus_status isthmus_broadcast(const void* send_buf, void* recv_buf, uint64_t count,
                                 isthmus_datatype datatype, int root, isthmus_communicator communicator,
                                 isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_BROADCAST, send_buf, recv_buf, count, datatype, stream);
  operation.root = root;
  return submit(communicator, operation);
}

isthmus_status isthmus_reduce(const void* send_buf, void* recv_buf, uint64_t count, isthmus_datatype datatype,
                              isthmus_reduction_op op, int root, isthmus_communicator communicator,
                              isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_REDUCE, send_buf, recv_buf, count, datatype, stream);
  operation.op = op;
  operation.root = root;
  return submit(communicator, operation);
}

isthmus_status isthmus_allreduce(const void* send_buf, void* recv_buf, uint64_t count,
                                 isthmus_datatype datatype, isthmus_reduction_op op,
                                 isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_ALLREDUCE, send_buf, recv_buf, count, datatype, stream);
  operation.op = op;
  return submit(communicator, operation);
}

isthmus_status isthmus_reduce_scatter(const void* send_buf, void* recv_buf, uint64_t count,
                                      isthmus_datatype datatype, isthmus_reduction_op op,
                                      isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation =
      make_operation(ISTHMUS_REDUCE_SCATTER, send_buf, recv_buf, count, datatype, stream);
  operation.op = op;
  return submit(communicator, operation);
}

isthmus_status isthmus_reduce_scatterv(const void* send_buf, const uint64_t* send_counts,
                                       const uint64_t* send_displs, void* recv_buf, uint64_t count,
                                       isthmus_datatype datatype, isthmus_reduction_op op,
                                       isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation =
      make_operation(ISTHMUS_REDUCE_SCATTERV, send_buf, recv_buf, count, datatype, stream);
  operation.op = op;
  operation.send_counts = send_counts;
  operation.send_displs = send_displs;
  return submit(communicator, operation);
}

isthmus_status isthmus_allgather(const void* send_buf, void* recv_buf, uint64_t count,
                                 isthmus_datatype datatype, isthmus_communicator communicator,
                                 isthmus_stream stream) {
  return submit(communicator, make_operation(ISTHMUS_ALLGATHER, send_buf, recv_buf, count, datatype, stream));
}

isthmus_status isthmus_allgatherv(const void* send_buf, uint64_t count, void* recv_buf,
                                  const uint64_t* recv_counts, const uint64_t* recv_displs,
                                  isthmus_datatype datatype, isthmus_communicator communicator,
                                  isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_ALLGATHERV, send_buf, recv_buf, count, datatype, stream);
  operation.recv_counts = recv_counts;
  operation.recv_displs = recv_displs;
  return submit(communicator, operation);
}

isthmus_status isthmus_gather(const void* send_buf, void* recv_buf, uint64_t count, isthmus_datatype datatype,
                              int root, isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_GATHER, send_buf, recv_buf, count, datatype, stream);
  operation.root = root;
  return submit(communicator, operation);
}

isthmus_status isthmus_gatherv(const void* send_buf, uint64_t count, void* recv_buf,
                               const uint64_t* recv_counts, const uint64_t* recv_displs,
                               isthmus_datatype datatype, int root, isthmus_communicator communicator,
                               isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_GATHERV, send_buf, recv_buf, count, datatype, stream);
  operation.root = root;
  operation.recv_counts = recv_counts;
  operation.recv_displs = recv_displs;
  return submit(communicator, operation);
}

isthmus_status isthmus_scatter(const void* send_buf, void* recv_buf, uint64_t count, isthmus_datatype datatype,
                               int root, isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_SCATTER, send_buf, recv_buf, count, datatype, stream);
  operation.root = root;
  return submit(communicator, operation);
}

isthmus_status isthmus_scatterv(const void* send_buf, const uint64_t* send_counts, const uint64_t* send_displs,
                                void* recv_buf, uint64_t count, isthmus_datatype datatype, int root,
                                isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_SCATTERV, send_buf, recv_buf, count, datatype, stream);
  operation.root = root;
  operation.send_counts = send_counts;
  operation.send_displs = send_displs;
  return submit(communicator, operation);
}

isthmus_status isthmus_alltoall(const void* send_buf, void* recv_buf, uint64_t count, isthmus_datatype datatype,
                                isthmus_communicator communicator, isthmus_stream stream) {
  return submit(communicator, make_operation(ISTHMUS_ALLTOALL, send_buf, recv_buf, count, datatype, stream));
}

isthmus_status isthmus_alltoallv(const void* send_buf, const uint64_t* send_counts, const uint64_t* send_displs,
                                 void* recv_buf, const uint64_t* recv_counts, const uint64_t* recv_displs,
                                 isthmus_datatype datatype, isthmus_communicator communicator,
                                 isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_ALLTOALLV, send_buf, recv_buf, 0, datatype, stream);
  operation.send_counts = send_counts;
  operation.send_displs = send_displs;
  operation.recv_counts = recv_counts;
  operation.recv_displs = recv_displs;
  return submit(communicator, operation);
}

isthmus_status isthmus_send(const void* send_buf, uint64_t count, isthmus_datatype datatype, int peer,
                            isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_SEND, send_buf, nullptr, count, datatype, stream);
  operation.root = peer;
  return submit(communicator, operation);
}

isthmus_status isthmus_recv(void* recv_buf, uint64_t count, isthmus_datatype datatype, int peer,
                            isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation = make_operation(ISTHMUS_RECV, nullptr, recv_buf, count, datatype, stream);
  operation.root = peer;
  return submit(communicator, operation);
}

isthmus_status isthmus_barrier(isthmus_communicator communicator, isthmus_stream stream) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BARRIER;
  operation.stream = stream;
  return submit(communicator, operation);
}
