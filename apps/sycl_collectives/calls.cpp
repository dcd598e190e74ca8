#include "calls.hpp"

#include <optional>

namespace sycl_collectives {

namespace {

isthmus_operation operation_of(const call_shape& shape, const float* send, float* recv) {
  isthmus_operation operation{};
  operation.collective = shape.entry.collective;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.op = ISTHMUS_SUM;
  operation.root = shape.root;
  operation.count = shape.count;
  operation.send_buf = shape.in_place ? recv : send;
  operation.recv_buf = recv;
  const auto data = [](const std::vector<std::uint64_t>& values) {
    return values.empty() ? nullptr : values.data();
  };
  operation.send_counts = data(shape.send_counts);
  operation.send_displs = data(shape.send_displs);
  operation.recv_counts = data(shape.recv_counts);
  operation.recv_displs = data(shape.recv_displs);
  return operation;
}

// MPI counts and displacements are int; the sizes of this program are far below the limit.
std::vector<int> narrow(const std::vector<std::uint64_t>& values) { return {values.begin(), values.end()}; }

}  // namespace

void call_core(isthmus_communicator ranks, const call_shape& shape, const float* send, float* recv) {
  if (shape.entry.collective != ISTHMUS_SEND) {
    const isthmus_operation operation = operation_of(shape, send, recv);
    isthmus::detail::check(isthmus_enqueue(ranks, &operation));
    return;
  }
  isthmus::detail::check(isthmus_group_start());
  isthmus_send(send, shape.count, ISTHMUS_FLOAT32, shape.next(), ranks, nullptr);
  isthmus_recv(recv, shape.count, ISTHMUS_FLOAT32, shape.previous(), ranks, nullptr);
  isthmus::detail::check(isthmus_group_end());
}

void call_mpi(MPI_Comm comm, const call_shape& shape, const float* send, float* recv) {
  const int count = static_cast<int>(shape.count);
  const MPI_Datatype type = MPI_FLOAT;
  switch (shape.entry.collective) {
    case ISTHMUS_BROADCAST: MPI_Bcast(recv, count, type, shape.root, comm); return;
    case ISTHMUS_REDUCE: MPI_Reduce(send, recv, count, type, MPI_SUM, shape.root, comm); return;
    case ISTHMUS_ALLREDUCE: MPI_Allreduce(send, recv, count, type, MPI_SUM, comm); return;
    case ISTHMUS_REDUCE_SCATTER: MPI_Reduce_scatter_block(send, recv, count, type, MPI_SUM, comm); return;
    case ISTHMUS_REDUCE_SCATTERV:
      MPI_Reduce_scatter(send, recv, narrow(shape.send_counts).data(), type, MPI_SUM, comm);
      return;
    case ISTHMUS_ALLGATHER: MPI_Allgather(send, count, type, recv, count, type, comm); return;
    case ISTHMUS_ALLGATHERV:
      MPI_Allgatherv(send, count, type, recv, narrow(shape.recv_counts).data(),
                     narrow(shape.recv_displs).data(), type, comm);
      return;
    case ISTHMUS_GATHER: MPI_Gather(send, count, type, recv, count, type, shape.root, comm); return;
    case ISTHMUS_GATHERV:
      MPI_Gatherv(send, count, type, recv, narrow(shape.recv_counts).data(), narrow(shape.recv_displs).data(),
                  type, shape.root, comm);
      return;
    case ISTHMUS_SCATTER: MPI_Scatter(send, count, type, recv, count, type, shape.root, comm); return;
    case ISTHMUS_SCATTERV:
      MPI_Scatterv(send, narrow(shape.send_counts).data(), narrow(shape.send_displs).data(), type, recv, count,
                   type, shape.root, comm);
      return;
    case ISTHMUS_ALLTOALL: MPI_Alltoall(send, count, type, recv, count, type, comm); return;
    case ISTHMUS_ALLTOALLV:
      MPI_Alltoallv(send, narrow(shape.send_counts).data(), narrow(shape.send_displs).data(), type, recv,
                    narrow(shape.recv_counts).data(), narrow(shape.recv_displs).data(), type, comm);
      return;
    case ISTHMUS_SEND:
    case ISTHMUS_RECV:
      MPI_Sendrecv(send, count, type, shape.next(), 0, recv, count, type, shape.previous(), 0, comm,
                   MPI_STATUS_IGNORE);
      return;
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT: MPI_Barrier(comm); return;
  }
}

void call_listing1(MPI_Comm comm, const call_shape& shape, sycl::buffer<float, 1>& send,
                   sycl::buffer<float, 1>& recv) {
  // Only operands that this rank uses, because an accessor costs as much as a small message.
  std::optional<sycl::host_accessor<float, 1>> send_accessor, recv_accessor;
  if (shape.send_elements > 0) send_accessor.emplace(send);
  if (shape.recv_elements > 0) recv_accessor.emplace(recv);
  call_mpi(comm, shape, send_accessor ? &(*send_accessor)[0] : nullptr,
           recv_accessor ? &(*recv_accessor)[0] : nullptr);
}

}  // namespace sycl_collectives
