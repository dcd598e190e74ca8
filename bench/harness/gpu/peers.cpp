#include "peers.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/dynamic_library.hpp"

namespace gpu_bench {
namespace {

void throw_error(const std::string& name, const char* error) {
  if (error != nullptr) throw std::runtime_error("--peer " + name + ": " + error);
}

const gpu_bench_peer* load(const std::string& option, const char* file) {
  isthmus::library_search_request search;
  search.option = file;
  std::string reason;
  const isthmus::dynamic_library library = isthmus::dynamic_library::open(search, reason);
  if (!library) throw std::runtime_error("--peer " + option + ": " + reason);
  const auto get =
      reinterpret_cast<decltype(&gpu_bench_peer_library)>(library.symbol("gpu_bench_peer_library"));
  if (get == nullptr)
    throw std::runtime_error("--peer " + option + ": the file does not export gpu_bench_peer_library()");
  const gpu_bench_peer* const peer = get();
  if (peer->version != GPU_BENCH_PEER_VERSION)
    throw std::runtime_error("--peer " + option + ": the file implements version " +
                             std::to_string(peer->version) + " of peer.h; rebuild it with version " +
                             std::to_string(GPU_BENCH_PEER_VERSION));
  return peer;
}

}  // namespace

peer_library::peer_library(const std::string& option, const device_thread& thread,
                           const std::vector<rank_buffers>& buffers, std::uint64_t largest_bytes)
    : m_name(option.substr(0, option.find('='))) {
  if (m_name.empty() || m_name.size() + 1 >= option.size())
    throw std::runtime_error("--peer " + option + ": use NAME=FILE, for example other=./other.so");
  m_peer = load(option, option.c_str() + m_name.size() + 1);
  std::vector<int> devices;
  std::vector<void*> inputs;
  thread.each([&](const device_lane& lane, std::size_t i) {
    devices.push_back(lane.rank);
    inputs.push_back(buffers[i].send);
  });
  const gpu_bench_peer_group group{thread.size(), devices.data(), inputs.data(), largest_bytes};
  throw_error(m_name, m_peer->open(&group));
}

std::vector<device_call> peer_library::make_calls(const device_thread& thread, const bench_case& test_case,
                                                  const std::vector<rank_buffers>& buffers,
                                                  const std::vector<gpu_bench_peer_call>& arguments) const {
  std::vector<device_call> calls;
  for (int method = 0; m_peer->methods[method] != nullptr; ++method) {
    if (m_peer->supports(method, &arguments.front()) == 0) continue;
    const auto enqueue = [this, &thread, method, arguments] {
      thread.each([&](const device_lane&, std::size_t i) {
        throw_error(m_name, m_peer->enqueue(method, &arguments[i]));
      });
    };
    calls.push_back({{m_name, m_peer->methods[method], "graph", enqueue}, test_case, buffers});
  }
  return calls;
}

std::vector<peer_library> load_peers(const std::vector<std::string>& options, const device_thread& thread,
                                     const std::vector<rank_buffers>& buffers, std::uint64_t largest_bytes) {
  std::vector<peer_library> peers;
  for (const std::string& option : options) {
    peer_library peer(option, thread, buffers, largest_bytes);
    if (std::any_of(peers.begin(), peers.end(),
                    [&](const peer_library& other) { return other.name() == peer.name(); }))
      throw std::runtime_error("--peer " + option + ": the name is used twice; use distinct names");
    peers.push_back(std::move(peer));
  }
  return peers;
}

nlohmann::json versions_of(const bench::nccl_library& nccl, const std::vector<peer_library>& peers) {
  nlohmann::json versions{{"nccl", nccl.version()}};
  for (const peer_library& peer : peers) versions[peer.name()] = peer.version();
  return versions;
}

std::vector<gpu_bench_peer_call> allreduce_arguments(const device_thread& thread, const bench_case& test_case,
                                                     const std::vector<rank_buffers>& buffers) {
  std::vector<gpu_bench_peer_call> arguments;
  thread.each([&](const device_lane& lane, std::size_t i) {
    gpu_bench_peer_call call{};
    call.rank = lane.rank;
    call.stream = lane.stream;
    call.datatype = test_case.datatype;
    call.tokens = 1;
    call.hidden = test_case.shape(thread.size()).count;
    call.input = buffers[i].send;
    call.output = buffers[i].recv;
    arguments.push_back(call);
  });
  return arguments;
}

}  // namespace gpu_bench
