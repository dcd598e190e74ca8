// The compared ways to perform an exchange.
#pragma once

#include <isthmus/isthmus.h>

#include <functional>
#include <string>
#include <vector>

#include "nccl/api.hpp"
#include "place.hpp"
#include "plan.hpp"

namespace patterns {

// The buffers of a rank, shared by all ways.
struct buffers {
  std::byte* send;
  std::byte* receive;
};

struct exchange_method {
  std::string provider, backend, mode;
  std::function<void()> run;  // Blocking: until the stream is idle
  std::vector<double> us;     // samples, each from the slowest rank
};

// Messages use one group, other forms the collective. With `is_ungrouped` each pair of a send and a receive is
// its own group, which shows what grouping saves.
exchange_method make_isthmus_method(const exchange_plan& plan, const memory_place& place, buffers in,
                                    isthmus_communicator ranks, bool is_ungrouped);

// Direct use of NCCL: sends and receives in one group, as in its manual.
exchange_method make_nccl_method(const exchange_plan& plan, const memory_place& place, buffers in,
                                 const isthmus::nccl::native_functions& native,
                                 isthmus::nccl::native_comm ranks);

// MPI on the buffers, or with `staged` on copies in pinned memory, as in a program whose MPI does
// not support devices.
exchange_method make_mpi_method(const exchange_plan& plan, const memory_place& place, buffers in,
                                const buffers* staged);

bool mpi_supports_device_memory();
const char* mpi_family();

}  // namespace patterns
