#include "world.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "each_rank.hpp"

namespace gpu {
namespace {

std::unique_ptr<world>& slot() {
  static std::unique_ptr<world> only;
  return only;
}

isthmus_communicator_options test_options() {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.timeout_s = 60;
  return options;
}

}  // namespace

std::string last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return std::string(info.message) + " [" + info.backend + " " + std::to_string(info.native_code) + "; " +
         info.hint + "]";
}

void world::create_here(int ranks) {
  m_size = ranks;
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
  std::vector<isthmus_communicator> made(static_cast<std::size_t>(ranks));
  const auto options = test_options();
  if (isthmus_communicator_create_all(ranks, devices.data(), &options, made.data()) != ISTHMUS_SUCCESS)
    throw std::runtime_error("create_all: " + last_error());
  for (int rank = 0; rank < ranks; ++rank)
    m_members.push_back({rank, rank, made[static_cast<std::size_t>(rank)], std::make_unique<stream>(rank)});
}

void world::create_one(int rank, int size, const std::string& id_file) {
  m_size = size;
  const isthmus_unique_id id = each_rank::meet(rank, id_file);
  auto options = test_options();
  options.device = {ISTHMUS_PLATFORM_CUDA, rank};
  member made{rank, rank, nullptr, std::make_unique<stream>(rank)};
  if (isthmus_communicator_create(&id, rank, size, &options, &made.communicator) != ISTHMUS_SUCCESS)
    throw std::runtime_error("create: " + last_error());
  m_members.push_back(std::move(made));
}

void world::start(int argc, char** argv) {
  using each_rank::argument;
  auto made = std::make_unique<world>();
  if (const char* rank = argument(argc, argv, "--rank")) {
    const char* size = argument(argc, argv, "--size");
    const char* id = argument(argc, argv, "--id");
    if (size == nullptr || id == nullptr) throw std::runtime_error("--rank needs --size and --id");
    made->create_one(std::atoi(rank), std::atoi(size), id);
  } else {
    const char* ranks = argument(argc, argv, "--ranks");
    made->create_here(ranks != nullptr ? std::atoi(ranks) : device_count());
  }
  slot() = std::move(made);
}

world& world::get() { return *slot(); }

void world::stop() {
  if (slot() == nullptr) return;
  slot()->each([](member& self) {
    self.queue->synchronize();
    EXPECT_EQ(isthmus_communicator_destroy(self.communicator), ISTHMUS_SUCCESS) << last_error();
  });
  slot().reset();
}

void world::each(const std::function<void(member&)>& work) {
  std::vector<std::thread> threads;
  for (member& self : m_members)
    threads.emplace_back([&work, &self] {
      try {
        use_device(self.device);
        work(self);
      } catch (const std::exception& failure) {
        ADD_FAILURE() << "rank " << self.rank << ": " << failure.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gpu
