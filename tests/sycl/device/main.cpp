// Exit code 77: nothing to run on.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "crew.hpp"

namespace sycl_device_test {

namespace {

bool has(int argc, char** argv, const char* word) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], word) == 0) return true;
  return false;
}

constexpr double timeout_s = 60;

std::vector<member> members_of(std::vector<isthmus::communicator> all) {
  std::vector<member> made;
  for (isthmus::communicator& each : all) {
    const sycl::device device = each.device();
    const sycl::queue queue(device, sycl::property::queue::in_order{});
    const sycl::context shared = queue.get_context();
    made.push_back({std::move(each),
                    queue,
                    {sycl_test::lasting_queue(shared, device), sycl_test::lasting_queue(shared, device),
                     sycl_test::lasting_queue(device)}});
  }
  return made;
}

}  // namespace

bool crew::make(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
         0);  // a kernel that holds must not hold streams that share its queue
  std::vector<sycl::device> devices = sycl::device::get_devices(sycl::info::device_type::gpu);
  if (devices.empty() && has(argc, argv, "--gpu")) return false;
  crew& made = only().emplace();
  const auto one = topology::parse_rank_arguments(argc, argv);
  if (!one) {
    if (devices.empty()) devices = sycl_test::devices(2);
    made.m_members = members_of(isthmus::communicator::create_all(devices, {.timeout_s = timeout_s}));
    return true;
  }
  if (devices.empty()) devices = sycl_test::devices(1);
  const isthmus::unique_id id = topology::share_unique_id(one->rank, one->id_file);
  std::vector<isthmus::communicator> own;
  own.emplace_back(devices[static_cast<std::size_t>(one->device) % devices.size()], id, one->rank, one->size,
                   isthmus::communicator_options{.timeout_s = timeout_s});
  made.m_members = members_of(std::move(own));
  made.m_in_one_process = false;
  return true;
}

}  // namespace sycl_device_test

using namespace nlohmann::literals;

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using sycl_device_test::crew;
  try {
    if (!crew::make(argc, argv)) {
      std::puts("SKIPPED: this SYCL runtime sees no GPU");
      return 77;
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "cannot start: %s\n", failure.what());
    return 1;
  }
  const sycl::device device = crew::get().members().front().queue.get_device();
  const isthmus::communicator& first = crew::get().members().front().ranks;
  const auto told = nlohmann::json::parse(first.explain(ISTHMUS_ALLREDUCE, 1000));
  const auto& backend = told.at("/selection/backend"_json_pointer);
  std::printf("%d ranks, %zu of them here, on %s: %s by %s\n", first.size(), crew::get().members().size(),
              device.get_info<sycl::info::device::name>().c_str(), backend.dump().c_str(),
              told.at("/sycl/path"_json_pointer).get<std::string>().c_str());
  const int result = RUN_ALL_TESTS();
  crew::end();
  return result;
}
