// The main program of the device suite. Exit code 77: no device to run on.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "rank_team.hpp"

namespace sycl_device_test {

namespace {

bool has(int argc, char** argv, const char* word) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], word) == 0) return true;
  return false;
}

constexpr double timeout_s = 60;

// Makes the out-of-order queue create all of its streams. DPC++'s adapter for CUDA creates up to 128 streams for
// commands and 64 for copies, each when the queue first uses it, and CUDA 13 creates about every 32nd stream of
// a device only after the running kernels have ended. In these tests, some kernels wait for the host.
void create_streams(sycl::queue queue) {
  constexpr int most_streams = 128;
  const block<char> data(2, queue);
  for (int i = 0; i < most_streams; ++i) {
    queue.submit([](sycl::handler& handler) { isthmus::detail::native_enqueue(handler, [](auto&) {}); });
    queue.memcpy(data.data(), data.data() + 1, 1);
  }
  queue.wait();
}

std::vector<test_rank> make_test_ranks(std::vector<isthmus::communicator> all) {
  std::vector<test_rank> test_ranks;
  for (isthmus::communicator& communicator : all) {
    const sycl::device device = communicator.device();
    const sycl::queue queue(device, sycl::property::queue::in_order{});
    const sycl::context shared = queue.get_context();
    const std::vector unordered{sycl_test::persistent_queue(shared, device),
                                sycl_test::persistent_queue(shared, device),
                                sycl_test::persistent_queue(device)};
    if (device.is_gpu()) std::for_each(unordered.begin(), unordered.end(), create_streams);
    test_ranks.push_back({std::move(communicator), queue, unordered});
  }
  return test_ranks;
}

}  // namespace

bool rank_team::make(int argc, char** argv) {
  // A waiting kernel must not block streams that share its hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  std::vector<sycl::device> devices = sycl::device::get_devices(sycl::info::device_type::gpu);
  if (devices.empty() && has(argc, argv, "--gpu")) return false;
  rank_team& team = instance().emplace();
  const auto own_rank = topology::parse_rank_arguments(argc, argv);
  if (!own_rank) {
    if (devices.empty()) devices = sycl_test::devices(2);
    team.m_members = make_test_ranks(isthmus::communicator::create_all(devices, {.timeout_s = timeout_s}));
    team.m_barrier = std::make_unique<std::barrier<>>(static_cast<std::ptrdiff_t>(team.m_members.size()));
    return true;
  }
  if (devices.empty()) devices = sycl_test::devices(1);
  const isthmus::unique_id id = topology::share_unique_id(own_rank->rank, own_rank->id_file);
  std::vector<isthmus::communicator> own;
  own.emplace_back(devices[static_cast<std::size_t>(own_rank->device) % devices.size()], id, own_rank->rank,
                   own_rank->size, isthmus::communicator_options{.timeout_s = timeout_s});
  team.m_members = make_test_ranks(std::move(own));
  team.m_barrier = std::make_unique<std::barrier<>>(1);
  team.m_is_in_one_process = false;
  return true;
}

}  // namespace sycl_device_test

using namespace nlohmann::literals;

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using sycl_device_test::rank_team;
  try {
    if (!rank_team::make(argc, argv)) {
      std::puts("SKIPPED: this SYCL runtime sees no GPU");
      return 77;
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "cannot start: %s\n", failure.what());
    return 1;
  }
  const sycl::device device = rank_team::get().members().front().queue.get_device();
  const isthmus::communicator& first = rank_team::get().members().front().ranks;
  const auto explanation = nlohmann::json::parse(first.explain(ISTHMUS_ALLREDUCE, 1000));
  const auto& backend = explanation.at("/selection/backend"_json_pointer);
  std::printf("%d ranks, %zu of them here, on %s: %s by %s\n", first.size(), rank_team::get().members().size(),
              device.get_info<sycl::info::device::name>().c_str(), backend.dump().c_str(),
              explanation.at("/sycl/path"_json_pointer).get<std::string>().c_str());
  const int result = RUN_ALL_TESTS();
  rank_team::end();
  return result;
}
