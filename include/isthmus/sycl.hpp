// Isthmus for SYCL programs: collectives on USM and on buffers, on any device. Header-only, built on the C ABI.
//
// Requires C++20 and SYCL 2020. Extensions are used only if the implementation has them
// (sycl/features.hpp). Compiles with g++ and Clang against DPC++'s headers, with DPC++'s compilers, and
// with AdaptiveCpp 24.06 and later.
//
// This header provides communicators, operands and groups. Further headers:
//
//   isthmus/sycl/mpi.hpp               make_communicator: communicators from an MPI communicator
//   isthmus/sycl/memory.hpp            device memory, the symmetric heap, copies between any two devices
//   isthmus/sycl/fused.hpp             matrix products that overlap with a collective
//   isthmus/sycl/tensor_parallel.hpp   sums over the devices of one process, for inference engines
//   sccl.hpp                           the interface of the SuCL paper
//
// Creating communicators: ranks connect through an id or through MPI, or all ranks are in one process:
//
//   isthmus::communicator ranks{device, id, rank, size};           // id: make_unique_id() of one rank
//   isthmus::communicator ranks = isthmus::make_communicator(MPI_COMM_WORLD, device);
//   std::vector<isthmus::communicator> ranks = isthmus::communicator::create_all(devices);
//
// Operands describe the memory of the elements. The datatype follows from the C++ type; counts are in elements:
//
//   sycl::queue queue{device, sycl::property::queue::in_order{}};
//   ranks.allreduce(queue, send, recv, count);                               // USM
//   ranks.allreduce(queue, data, count, isthmus::reduction_op::max);         // in place
//   ranks.broadcast(queue, buffer, count, root);                             // sycl::buffer, any type
//   ranks.allgather(queue, isthmus::at_offset(buffer, 16), recv, count);     // part of a buffer
//   ranks.allreduce(queue, isthmus::as_datatype(isthmus::datatype::float32, points), 3 * count);
//   ranks.reduce(queue, data, is_root ? sum : nullptr, count, isthmus::reduction_op::sum, root);
//
// Ordering: in-order queues and accessors order operations with other work. With out-of-order queues and
//   USM, use events:
//
//   const sycl::event produced = queue.submit(...);
//   const sycl::event reduced = ranks.allreduce(queue, data, count, isthmus::reduction_op::sum, {produced});
//   queue.submit([&](sycl::handler& handler) { handler.depends_on(reduced); ... });
//
// Groups start several operations together. Use a group if one thread drives several ranks, or to pair
// send with recv:
//
//   isthmus::group group;
//   for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].allreduce(queues[r], data[r], count);
//   std::vector<sycl::event> done = group.end();
//
// Errors: a failure throws isthmus::exception. what() has the complete description, hint() suggests a
//   fix. After a timeout or the loss of a rank, the communicator is aborted on all ranks, so no rank
//   waits longer than its timeout. Create a new communicator to continue. async_error() returns failures
//   of asynchronous operations.
//
// Selection: rules select the backend and the algorithm of each call from its size, datatype and device. A
//   configuration file can change the rules (docs/reference/configuration.md). communicator::explain() returns
//   the decision, and ISTHMUS_LOG=info logs it.
//
// docs/guide/sycl.md explains operands, ordering, groups and the cost of each path. The folder examples/
// has complete programs.
#ifndef ISTHMUS_SYCL_HPP
#define ISTHMUS_SYCL_HPP

#include <isthmus/error.hpp>  // fails before C++20
#if __cplusplus >= 202002L
#include <isthmus/sycl/communicator.hpp>
#endif

#endif
