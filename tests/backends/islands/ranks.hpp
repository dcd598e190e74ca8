// Ranks in processes on nodes that the tests make up, over the stand-in between machines.
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

#include "wire.h"
#include "topology/topology.hpp"

namespace hierarchical_test {

inline const std::string hierarchical_config =
    "[plugins]\nwire = \"" WIRE "\"\n[[rule]]\nnodes = \"2..\"\nuse = \"wire\"\n[[rule]]\nuse = \"hierarchical\"\n";

// One rank; its communicator may not have been made.
struct rank {
  int number, size;
  isthmus_communicator communicator;
  isthmus_status status;
  isthmus_error_info failure;
  topology::rendezvous& all;
};

using body = std::function<void(const rank&)>;

struct setting {
  std::string config = hierarchical_config;
  double timeout_s = 60;
  std::function<void(int rank)> prepare = [](int) {};  // in the rank's process, before it creates
  std::vector<isthmus_platform> platforms;             // of each rank; empty: all on the host
  std::vector<int> ordinals;                           // of each rank's device; empty: 0
};

// Runs `work` on every rank, a process each: rank i on the node nodes[i]. What fails there fails here, but for
// ranks that a signal ends.
inline void on_nodes(const std::vector<std::string>& nodes, const setting& with, const body& work,
                     int ended_by_signal = 0) {
  const int size = static_cast<int>(nodes.size());
  auto& all = topology::rendezvous::create(size);
  const auto config =
      std::filesystem::temp_directory_path() / ("isthmus-hierarchical-" + std::to_string(getpid()) + ".toml");
  std::ofstream(config) << with.config;
  auto& done = *new (topology::map_shared(sizeof(std::atomic<int>))) std::atomic<int>{0};  // rank 0 has the store
  topology::child_processes ranks;
  for (int number = 0; number < size; ++number)
    ranks.start(number, [&, number] {
      setenv("ISTHMUS_NODE", nodes[static_cast<std::size_t>(number)].c_str(), 1);
      // Where ranks share a GPU: NCCL takes them for those of two hosts.
      if (std::getenv("TEST_SHARE_DEVICE") != nullptr)
        setenv("NCCL_HOSTID", ("rank" + std::to_string(number)).c_str(), 1);
      with.prepare(number);
      isthmus_communicator_options options{};
      options.struct_bytes = sizeof options;
      options.timeout_s = with.timeout_s;
      options.config_path = config.c_str();
      if (!with.platforms.empty()) options.device.platform = with.platforms[static_cast<std::size_t>(number)];
      if (!with.ordinals.empty()) options.device.ordinal = with.ordinals[static_cast<std::size_t>(number)];
      const isthmus_unique_id id = all.new_unique_id(number);
      rank own{number, size, nullptr, ISTHMUS_SUCCESS, {}, all};
      own.status = isthmus_communicator_create(&id, number, size, &options, &own.communicator);
      own.failure = topology::last_error();
      work(own);
      ++done;
      while (done < size - ended_by_signal) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      isthmus_communicator_destroy(own.communicator);
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
  EXPECT_EQ(signals, ended_by_signal);
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

// Of this process, since it was asked last.
inline wire_tally take_tally() {
  void* const library = dlopen(WIRE, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const auto take = reinterpret_cast<wire_tally (*)()>(dlsym(library, "wire_take_tally"));
  const wire_tally tally = take();
  dlclose(library);
  return tally;
}

}  // namespace hierarchical_test
