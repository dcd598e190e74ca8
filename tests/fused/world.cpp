#include "world.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>

#include "each_rank.hpp"
#include "place.hpp"

namespace fused_test {
namespace {

std::unique_ptr<world>& slot() {
  static std::unique_ptr<world> only;
  return only;
}

isthmus_communicator_options options() {
  isthmus_communicator_options chosen{};
  chosen.struct_bytes = sizeof chosen;
  chosen.timeout_s = 60;
  return chosen;
}

}  // namespace

std::uint64_t next_seed() {
  static std::uint64_t seed = 1000;
  return seed += 1000;
}

isthmus_error_info last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info;
}

std::string last_error_text() {
  const auto info = last_error();
  return std::string(info.message) + " [" + info.hint + "]";
}

void world::start(int argc, char** argv) {
  using each_rank::argument;
  auto made = std::make_unique<world>();
  if (const char* named = argument(argc, argv, "--platform"); named != nullptr && std::string(named) == "hip")
    use_platform(ISTHMUS_PLATFORM_HIP);
  auto chosen = options();
  if (const char* rank = argument(argc, argv, "--rank")) {
    const char* size = argument(argc, argv, "--size");
    const char* id = argument(argc, argv, "--id");
    if (size == nullptr || id == nullptr) throw std::runtime_error("--rank needs --size and --id");
    made->m_size = std::atoi(size);
    member own{std::atoi(rank), made->m_size};
    chosen.device = {platform(), own.rank};
    const isthmus_unique_id meeting = each_rank::meet(own.rank, id);
    if (isthmus_communicator_create(&meeting, own.rank, own.size, &chosen, &own.communicator) !=
        ISTHMUS_SUCCESS)
      throw std::runtime_error(last_error_text());
    made->m_members.push_back(own);
  } else {
    const char* ranks = argument(argc, argv, "--ranks");
    made->m_size = ranks != nullptr                      ? std::atoi(ranks)
                   : platform() == ISTHMUS_PLATFORM_HOST ? 3
                                                         : device_count();
    std::vector<isthmus_device> devices;
    for (int rank = 0; rank < made->m_size; ++rank)
      devices.push_back({platform(), platform() == ISTHMUS_PLATFORM_HOST ? 0 : rank});
    std::vector<isthmus_communicator> handles(devices.size());
    if (isthmus_communicator_create_all(made->m_size, devices.data(), &chosen, handles.data()) !=
        ISTHMUS_SUCCESS)
      throw std::runtime_error(last_error_text());
    for (int rank = 0; rank < made->m_size; ++rank)
      made->m_members.push_back({rank, made->m_size, handles[static_cast<std::size_t>(rank)]});
  }
  for (member& each : made->m_members) each.stream = create_stream(each.rank);
  slot() = std::move(made);
}

world& world::get() { return *slot(); }

void world::stop() {
  if (slot() == nullptr) return;
  slot()->each([](member& self) {
    destroy_stream(self.stream);
    EXPECT_EQ(isthmus_communicator_destroy(self.communicator), ISTHMUS_SUCCESS) << last_error_text();
  });
  slot().reset();
}

void world::each(const std::function<void(member&)>& work) {
  std::vector<std::thread> threads;
  for (member& self : m_members)
    threads.emplace_back([&work, &self] {
      try {
        use_device(self.rank);
        work(self);
      } catch (const std::exception& failure) {
        ADD_FAILURE() << "rank " << self.rank << ": " << failure.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fused_test
