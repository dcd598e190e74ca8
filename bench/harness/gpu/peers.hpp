// Other libraries that a benchmark loads as plug-ins (peer.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calls.hpp"
#include "peer.h"

namespace gpu_bench {

class peer_library {
 public:
  // `option`: NAME=FILE. Opens the library for the ranks of `thread`, whose calls read the send buffers.
  peer_library(const std::string& option, const device_thread& thread, const std::vector<rank_buffers>& buffers,
               std::uint64_t largest_bytes);

  const std::string& name() const { return m_name; }
  const char* version() const { return m_peer->library; }
  // One call for each method that supports `arguments`, which has one element for each lane. Provider: the name. Backend:
  // the method.
  std::vector<device_call> make_calls(const device_thread& thread, const bench_case& test_case,
                                      const std::vector<rank_buffers>& buffers,
                                      const std::vector<gpu_bench_peer_call>& arguments) const;

 private:
  std::string m_name;
  const gpu_bench_peer* m_peer = nullptr;
};

// The libraries of --peer. Names must be distinct.
std::vector<peer_library> load_peers(const std::vector<std::string>& options, const device_thread& thread,
                                     const std::vector<rank_buffers>& buffers, std::uint64_t largest_bytes);
// The versions of NCCL and of `peers`, for the records.
nlohmann::json versions_of(const bench::nccl_library& nccl, const std::vector<peer_library>& peers);

// The arguments of an allreduce, one for each lane.
std::vector<gpu_bench_peer_call> allreduce_arguments(const device_thread& thread, const bench_case& test_case,
                                                     const std::vector<rank_buffers>& buffers);

}  // namespace gpu_bench
