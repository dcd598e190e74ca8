// The compared methods of an exchange. Each blocks until its stream is idle.
#pragma once

#include <isthmus/isthmus.h>

#include "harness/methods.hpp"
#include "harness/nccl.hpp"
#include "harness/place.hpp"
#include "plan.hpp"

namespace patterns {

using bench::memory_block;
using bench::memory_place;

// The buffers of a rank, shared by all methods.
struct buffers {
  std::byte* send;
  std::byte* receive;
};

// Messages use one group, other forms the collective. With `is_ungrouped` each pair of a send and a receive is
// its own group, which shows what grouping saves.
bench::method make_isthmus_method(const exchange_plan& plan, const memory_place& place, buffers in,
                                  isthmus_communicator ranks, bool is_ungrouped);

// Direct use of NCCL: sends and receives in one group, as in its manual.
bench::method make_nccl_method(const exchange_plan& plan, const memory_place& place, buffers in,
                               const bench::nccl_functions& nccl, bench::nccl_comm ranks);

// MPI on the buffers, or with `staged` on copies in pinned memory, as in a program whose MPI does
// not support devices.
bench::method make_mpi_method(const exchange_plan& plan, const memory_place& place, buffers in,
                              const buffers* staged);

}  // namespace patterns
