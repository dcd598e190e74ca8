// Isthmus for SYCL programs: collectives on USM and on buffers, on any device. Header-only over the C ABI;
// C++20 and SYCL 2020, extensions only where the implementation has them (sycl/features.hpp).
//
//   sycl::queue queue{device, sycl::property::queue::in_order{}};
//   isthmus::communicator ranks{device, id, rank, size};          // or all(devices), or sycl/mpi.hpp
//   ranks.allreduce(queue, send, recv, count);                    // USM
//   ranks.broadcast(queue, buffer, count, root);                  // sycl::buffer of any type and dimension
//   ranks.allgather(queue, isthmus::at(buffer, 16), recv, count, {produced});
//
// docs/sycl.md explains operands, ordering, groups and what each path costs.
#ifndef ISTHMUS_SYCL_HPP
#define ISTHMUS_SYCL_HPP

#include <isthmus/sycl/communicator.hpp>

#endif
