// One collective through each interface that the program compares.
#pragma once

#include <isthmus/sycl/mpi.hpp>

#include "shape.hpp"

namespace sycl_collectives {

// The SYCL front end of Isthmus; operands are USM pointers or buffers.
template <typename Send, typename Recv>
sycl::event call_isthmus(const isthmus::communicator& ranks, sycl::queue& queue, const call_shape& shape,
                         Send& send, Recv& recv) {
  constexpr auto sum = isthmus::reduction_op::sum;
  switch (shape.entry.collective) {
    case ISTHMUS_BROADCAST: return ranks.broadcast(queue, recv, shape.count, shape.root);
    case ISTHMUS_REDUCE: return ranks.reduce(queue, send, recv, shape.count, sum, shape.root);
    case ISTHMUS_ALLREDUCE: return ranks.allreduce(queue, send, recv, shape.count, sum);
    case ISTHMUS_REDUCE_SCATTER: return ranks.reduce_scatter(queue, send, recv, shape.count, sum);
    case ISTHMUS_REDUCE_SCATTERV:
      return ranks.reduce_scatterv(queue, send, shape.send_counts, shape.send_displs, recv, shape.count, sum);
    case ISTHMUS_ALLGATHER: return ranks.allgather(queue, send, recv, shape.count);
    case ISTHMUS_ALLGATHERV:
      return ranks.allgatherv(queue, send, shape.count, recv, shape.recv_counts, shape.recv_displs);
    case ISTHMUS_GATHER: return ranks.gather(queue, send, recv, shape.count, shape.root);
    case ISTHMUS_GATHERV:
      return ranks.gatherv(queue, send, shape.count, recv, shape.recv_counts, shape.recv_displs, shape.root);
    case ISTHMUS_SCATTER: return ranks.scatter(queue, send, recv, shape.count, shape.root);
    case ISTHMUS_SCATTERV:
      return ranks.scatterv(queue, send, shape.send_counts, shape.send_displs, recv, shape.count, shape.root);
    case ISTHMUS_ALLTOALL: return ranks.alltoall(queue, send, recv, shape.count);
    case ISTHMUS_ALLTOALLV:
      return ranks.alltoallv(queue, send, shape.send_counts, shape.send_displs, recv, shape.recv_counts,
                             shape.recv_displs);
    case ISTHMUS_SEND:
    case ISTHMUS_RECV: {
      isthmus::group exchange;
      ranks.send(queue, send, shape.count, shape.next());
      ranks.recv(queue, recv, shape.count, shape.previous());
      return exchange.end().back();
    }
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return ranks.barrier(queue);
}

// The C ABI of Isthmus on host pointers, on which the SYCL front end is built.
void call_core(isthmus_communicator ranks, const call_shape& shape, const float* send, float* recv);

// Plain MPI on host pointers.
void call_mpi(MPI_Comm comm, const call_shape& shape, const float* send, float* recv);

// The paper's Listing 1: plain MPI through host accessors.
void call_listing1(MPI_Comm comm, const call_shape& shape, sycl::buffer<float, 1>& send,
                   sycl::buffer<float, 1>& recv);

}  // namespace sycl_collectives
