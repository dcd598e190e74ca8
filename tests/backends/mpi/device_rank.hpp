// One rank of an MPI program on a device, with a communicator whose rules name `mpi`.
#pragma once

#include <gtest/gtest.h>
#include <isthmus/tools.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <isthmus/mpi.hpp>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.hpp"
#include "gpu/test_ranks.hpp"

namespace mpi_device_test {

constexpr std::uint64_t threshold = 32 << 10;
constexpr std::uint64_t chunk_bytes = 8 << 10;  // small, so that the tests need several chunks

// Configurations: all messages over MPI; MPI below the threshold and NCCL above, as two rules; the shorthand for
// these rules.
inline const std::string all_over_mpi = "[[rule]]\nuse = \"mpi\"\n";
inline const std::string two_rules =
    "[[rule]]\nplatform = \"cuda\"\nuse = \"nccl\"\n"
    "[[rule]]\nplatform = \"cuda\"\nbytes = \"..32K\"\nuse = \"mpi\"\n";
inline const std::string shorthand = "threshold = \"32K\"\n";

struct settings {
  std::string rules = all_over_mpi;
  std::string buffers = "staged";
  double timeout_s = 60;
};

inline int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

inline gpu::member make_member(const settings& options_of_test, const isthmus_mpi_table* table) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string config = ::testing::TempDir() + "mpi_device" + std::to_string(getpid()) + ".toml";
  std::ofstream(config) << options_of_test.rules << "[backend.mpi]\nchunk_bytes = " << chunk_bytes
                        << "\nbuffers = \"" << options_of_test.buffers << "\"\n";
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.device = {ISTHMUS_PLATFORM_CUDA, rank};
  options.config_path = config.c_str();
  options.timeout_s = options_of_test.timeout_s;
  gpu::member self({rank, world_size(), rank});
  EXPECT_EQ(isthmus_communicator_create_mpi(table, &options, &self.communicator), ISTHMUS_SUCCESS)
      << gpu::last_error();
  std::remove(config.c_str());
  return self;
}

inline void release(gpu::member& self) {
  self.queue->synchronize();
  EXPECT_EQ(isthmus_communicator_destroy(self.communicator), ISTHMUS_SUCCESS) << gpu::last_error();
}

// The explanation of an allreduce of `bytes` bytes.
inline std::string explain_call(const gpu::member& self, std::uint64_t bytes) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_UINT8;
  operation.count = bytes;
  std::vector<char> text(1 << 16);
  isthmus_communicator_explain(self.communicator, &operation, text.data(), text.size(), nullptr);
  return text.data();
}

inline std::string backend_for(const gpu::member& self, std::uint64_t bytes) {
  const std::string json = explain_call(self, bytes);
  const auto key_position = json.find("\"backend\"");
  const auto start = json.find('"', json.find(':', key_position)) + 1;
  return json.substr(start, json.find('"', start) - start);
}

}  // namespace mpi_device_test
