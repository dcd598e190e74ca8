// The ways to make an exchange that a run compares.
#pragma once

#include <isthmus/isthmus.h>

#include <functional>
#include <string>
#include <vector>

#include "backends/nccl_family/native_api.hpp"
#include "place.hpp"
#include "plan.hpp"

namespace patterns {

// The buffers of a rank, which all ways use.
struct buffers {
  std::byte* send;
  std::byte* receive;
};

struct way {
  std::string provider, backend, mode;
  std::function<void()> run;  // until the stream is idle
  std::vector<double> us;     // a sample each, of the slowest rank
};

// Messages: one group; else the collective. With `apart` each message is a group of its own, in pairs of a send
// and a receive: what a group saves.
way over_isthmus(const exchange_plan& plan, const memory_place& place, buffers in, isthmus_communicator ranks, bool is_ungrouped);

// NCCL as a program calls it: sends and receives in one group, as its manual shows all of these patterns.
way over_nccl(const exchange_plan& plan, const memory_place& place, buffers in, const isthmus::nccl_family::native_functions& native,
              isthmus::nccl_family::native_comm ranks);

// MPI on the buffers themselves; `staged`: on copies in pinned memory, as a program does whose MPI knows no
// devices.
way over_mpi(const exchange_plan& plan, const memory_place& place, buffers in, const buffers* staged);

bool mpi_supports_device_memory();
const char* mpi_family();

}  // namespace patterns
