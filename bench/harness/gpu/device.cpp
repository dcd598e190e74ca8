#include "device.hpp"

#include "check.hpp"
#include "harness/rules_file.hpp"

namespace gpu_bench {
namespace {

// Runs `work` for every rank in its own thread, with its device current.
void each_rank(int size, const std::function<void(int rank)>& work) {
  bench::thread_ranks(size).each([&](const bench::team& thread) {
    check(cudaSetDevice(thread.rank()));
    work(thread.rank());
  });
}

}  // namespace

std::vector<isthmus_communicator> isthmus_communicators(int first, int size, const std::string& configuration) {
  const bench::rules_file file(configuration);
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < size; ++rank) devices.push_back({ISTHMUS_PLATFORM_CUDA, first + rank});
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = file.path();
  options.timeout_s = 60;
  std::vector<isthmus_communicator> communicators(devices.size());
  check(isthmus_communicator_create_all(size, devices.data(), &options, communicators.data()));
  return communicators;
}

std::vector<bench::nccl_comm> nccl_communicators(const bench::nccl_library& nccl, int size,
                                                 bench::nccl_config* config) {
  const bench::nccl_unique_id id = nccl.unique_id();
  std::vector<bench::nccl_comm> communicators(static_cast<std::size_t>(size));
  each_rank(size, [&](int rank) {
    communicators[static_cast<std::size_t>(rank)] = nccl.join(id, rank, size, config);
  });
  return communicators;
}

std::vector<rank_buffers> window_buffers(const bench::nccl_library& nccl,
                                         const std::vector<bench::nccl_comm>& windows, std::uint64_t send_bytes,
                                         std::uint64_t recv_bytes) {
  const auto allocate = nccl.function<int(void**, std::size_t)>("ncclMemAlloc");
  if (nccl->window_register == nullptr) throw std::runtime_error("NCCL has no function ncclCommWindowRegister");
  std::vector<rank_buffers> buffers(windows.size());
  each_rank(static_cast<int>(windows.size()), [&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    for (const auto& [pointer, bytes] :
         {std::pair(&buffers[own].send, send_bytes), std::pair(&buffers[own].recv, recv_bytes)}) {
      bench::nccl::native_window window = nullptr;
      bench::check_nccl(allocate(reinterpret_cast<void**>(pointer), bytes));
      bench::check_nccl(
          nccl->window_register(windows[own], *pointer, bytes, &window, bench::nccl::window_symmetric));
    }
    fill_inputs(buffers[own].send, send_bytes, rank);
  });
  return buffers;
}

}  // namespace gpu_bench
