// 03: one process with several devices, without MPI. Without GPUs the example uses sub-devices of the CPU. One
// thread starts the operations of all ranks together in a group.
#include <cstdio>
#include <isthmus/sycl.hpp>
#include <vector>

std::vector<sycl::device> some_devices() {
  auto gpus = sycl::device::get_devices(sycl::info::device_type::gpu);
  if (gpus.size() > 1) return gpus;
  const sycl::device cpu{sycl::cpu_selector_v};
  if (cpu.get_info<sycl::info::device::max_compute_units>() < 2 ||
      cpu.get_info<sycl::info::device::partition_max_sub_devices>() < 2)
    return {cpu, cpu};
  return cpu.create_sub_devices<sycl::info::partition_property::partition_equally>(
      cpu.get_info<sycl::info::device::max_compute_units>() / 2);
}

int main() {
  const std::vector<sycl::device> devices = some_devices();
  const std::vector<isthmus::communicator> ranks = isthmus::communicator::create_all(devices);
  std::vector<sycl::queue> queues;
  std::vector<int*> values;
  for (const isthmus::communicator& rank : ranks) {
    queues.emplace_back(rank.device(), sycl::property::queue::in_order{});
    values.push_back(sycl::malloc_shared<int>(1, queues.back()));
    *values.back() = 1 << rank.rank();
  }

  isthmus::group group;
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].allreduce(queues[r], values[r], 1);
  for (sycl::event& done : group.end()) done.wait();

  int wrong = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    wrong += *values[r] != (1 << ranks.size()) - 1;
    std::printf("rank %zu of %zu: %d\n", r, ranks.size(), *values[r]);
    sycl::free(values[r], queues[r]);
  }
  return wrong == 0 ? 0 : 1;
}
