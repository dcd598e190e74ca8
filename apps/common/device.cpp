#include "device.hpp"

#include <mpi.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace apps {

void prepare_environment() {
  MPI_Comm node = MPI_COMM_NULL;
  int node_size = 1;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &node_size);
  MPI_Comm_free(&node);
  setenv("OCL_ICD_FILENAMES", ISTHMUS_OPENCL_CPU, 0);
  const std::string units = std::to_string(std::max(1, get_nprocs() / node_size));
  setenv("DPCPP_CPU_NUM_CUS", units.c_str(), 0);
}

sycl::device pick_device(int rank) {
  const auto gpus = sycl::device::get_devices(sycl::info::device_type::gpu);
  if (!gpus.empty()) return gpus[static_cast<std::size_t>(rank) % gpus.size()];
  return sycl::device{sycl::cpu_selector_v};
}

std::uint64_t memory_limit() {
  struct sysinfo info{};
  sysinfo(&info);
  std::uint64_t limit = (static_cast<std::uint64_t>(info.freeram) + info.bufferram) * info.mem_unit / 2;
  MPI_Bcast(&limit, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  return limit;
}

}  // namespace apps
