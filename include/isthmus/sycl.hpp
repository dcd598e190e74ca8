// Isthmus for SYCL programs: collectives on USM and on buffers, on any device. Header-only over the C ABI;
// C++20 and SYCL 2020, extensions only where the implementation has them (sycl/features.hpp). Compiles with g++
// and Clang against DPC++'s headers, with DPC++'s compilers, and with AdaptiveCpp 24.06 and later.
//
// This header has communicators, operands and groups. Beside it stand
//
//   isthmus/sycl/mpi.hpp               ranks that meet through MPI: make_communicator
//   isthmus/sycl/memory.hpp            device memory, the symmetric heap, copies between any two devices
//   isthmus/sycl/fused.hpp             products that overlap with the collective that feeds or follows them
//   isthmus/sycl/tensor_parallel.hpp   sums over the devices of one process, for inference engines
//   sccl.hpp                           the SuCL paper's spelling
//
// Ranks meet by an id, by MPI, or live in one process:
//
//   isthmus::communicator ranks{device, id, rank, size};           // id: make_unique_id() of one rank
//   isthmus::communicator ranks = isthmus::make_communicator(MPI_COMM_WORLD, device);
//   std::vector<isthmus::communicator> all = isthmus::communicator::create_all(devices);
//
// Operands say where elements are; the datatype follows from their C++ type, counts are in elements:
//
//   sycl::queue queue{device, sycl::property::queue::in_order{}};
//   ranks.allreduce(queue, send, recv, count);                               // USM
//   ranks.allreduce(queue, data, count, isthmus::reduction_op::max);         // in place
//   ranks.broadcast(queue, buffer, count, root);                           // sycl::buffer, any type
//   ranks.allgather(queue, isthmus::at_offset(buffer, 16), recv, count);            // a part of a buffer
//   ranks.allreduce(queue, isthmus::as_datatype(isthmus::datatype::float32, points), 3 * count);
//   ranks.reduce(queue, data, is_root ? sum : nullptr, count, isthmus::reduction_op::sum, root);
//
// Queues order operations among other work. With out-of-order queues and USM, events do:
//
//   const sycl::event produced = queue.submit(...);
//   const sycl::event reduced = ranks.allreduce(queue, data, count, isthmus::reduction_op::sum, {produced});
//   queue.submit([&](sycl::handler& handler) { handler.depends_on(reduced); ... });
//
// One thread that drives several ranks, and an exchange between two, want a group:
//
//   isthmus::group group;
//   for (std::size_t r = 0; r < all.size(); ++r) all[r].allreduce(queues[r], data[r], count);
//   std::vector<sycl::event> done = group.end();
//
// A failure is an isthmus::exception: what() is the whole story, hint() says what to do. After a timeout or the
// loss of a rank the communicator is poisoned on all ranks, so no rank waits longer than its timeout; make a
// new one. Failures of work that a call left in the background are in async_error().
//
// Which backend, algorithm and rule a call takes is chosen in each call from size, datatype and device, by
// rules that a configuration file may change (docs/selection.md); communicator::explain() tells, and
// ISTHMUS_LOG=info logs it.
//
// docs/sycl.md explains operands, ordering, groups and what each path costs; examples/ has whole programs.
#ifndef ISTHMUS_SYCL_HPP
#define ISTHMUS_SYCL_HPP

#include <isthmus/sycl/communicator.hpp>

#endif
