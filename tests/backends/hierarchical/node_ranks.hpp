// Ranks as processes on simulated nodes, over the stand-in for an inter-node backend.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "topology/topology.hpp"
#include "wire.h"

namespace hierarchical_test {

inline const std::string hierarchical_config =
    "[plugins]\nwire = \"" WIRE
    "\"\n[[rule]]\nnodes = \"2..\"\nuse = \"wire\"\n[[rule]]\nuse = \"hierarchical\"\n";

// One rank. `communicator` is null if its creation failed.
struct test_rank {
  int number, size;
  isthmus_communicator communicator;
  isthmus_status status;
  isthmus_error_info failure;
  topology::rendezvous& sync;
};

using body = std::function<void(const test_rank&)>;

struct run_settings {
  std::string config = hierarchical_config;
  double timeout_s = 60;
  std::function<void(int rank)> prepare = [](int) {};  // in the rank's process, before create
  std::vector<isthmus_platform> platforms;             // of each rank; empty: all on the host platform
  std::vector<int> ordinals;                           // of each rank's device; empty: 0
};

// Runs `work` on every rank, each in its own process: rank i on node nodes[i]. Failures in the ranks fail this
// test, except for the expected number of killed ranks.
inline void run_on_nodes(const std::vector<std::string>& nodes, const run_settings& settings, const body& work,
                         int killed_ranks = 0) {
  const int size = static_cast<int>(nodes.size());
  auto& sync = topology::rendezvous::create(size);
  const auto config =
      std::filesystem::temp_directory_path() / ("isthmus-hierarchical-" + std::to_string(getpid()) + ".toml");
  std::ofstream(config) << settings.config;
  auto& done =
      *new (topology::map_shared(sizeof(std::atomic<int>))) std::atomic<int>{0};  // rank 0 has the store
  topology::child_processes ranks;
  for (int number = 0; number < size; ++number)
    ranks.start(number, [&, number] {
      setenv("ISTHMUS_NODE", nodes[static_cast<std::size_t>(number)].c_str(), 1);
      // For ranks that share a GPU: NCCL accepts them if they seem to be on different hosts.
      if (std::getenv("TEST_SHARE_DEVICE") != nullptr)
        setenv("NCCL_HOSTID", ("rank" + std::to_string(number)).c_str(), 1);
      settings.prepare(number);
      isthmus_communicator_options options{};
      options.struct_bytes = sizeof options;
      options.timeout_s = settings.timeout_s;
      options.config_path = config.c_str();
      if (!settings.platforms.empty())
        options.device.platform = settings.platforms[static_cast<std::size_t>(number)];
      if (!settings.ordinals.empty())
        options.device.ordinal = settings.ordinals[static_cast<std::size_t>(number)];
      const isthmus_unique_id id = sync.new_unique_id(number);
      test_rank self{number, size, nullptr, ISTHMUS_SUCCESS, {}, sync};
      self.status = isthmus_communicator_create(&id, number, size, &options, &self.communicator);
      self.failure = topology::last_error();
      work(self);
      ++done;
      while (done < size - killed_ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      isthmus_communicator_destroy(self.communicator);
      return testing::Test::HasFailure() ? 1 : 0;
    });
  int signals = 0;
  for (const auto& each : ranks.join()) {
    if (WIFSIGNALED(each.status)) {
      ++signals;
    } else {
      EXPECT_EQ(each.failures(), 0) << "rank " << each.process;
    }
  }
  EXPECT_EQ(signals, killed_ranks);
  std::filesystem::remove(config);
}

inline std::string text_of(
    const std::function<isthmus_status(char* text, std::size_t capacity, std::size_t* required_bytes)>& write) {
  std::size_t required_bytes = 0;
  EXPECT_EQ(write(nullptr, 0, &required_bytes), ISTHMUS_SUCCESS) << topology::last_error().message;
  std::string text(required_bytes, '\0');
  EXPECT_EQ(write(text.data(), text.size(), nullptr), ISTHMUS_SUCCESS);
  text.pop_back();
  return text;
}

// The statistics of this process since the last call.
inline wire_statistics take_statistics() {
  void* const library = dlopen(WIRE, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const auto take = reinterpret_cast<wire_statistics (*)()>(dlsym(library, "wire_take_statistics"));
  const wire_statistics statistics = take();
  dlclose(library);
  return statistics;
}

}  // namespace hierarchical_test
