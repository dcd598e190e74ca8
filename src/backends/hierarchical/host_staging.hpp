// Collectives of ranks on devices of one or several platforms. Data is staged in host memory, and a
// communicator of all ranks operates on it. Some reductions use device_reducer instead.
//
// Every rank makes the same calls on the host communicator: ranks on the host platform pass the caller's
// buffers, ranks on devices pass pinned memory. Element-wise collectives are divided into chunks. While one
// chunk is communicated, the next is copied in and the previous one is copied out.
//
// Blocking: a call first waits for its stream, and its results are complete when it returns.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/device_reducer.hpp"
#include "backends/hierarchical/subcommunicators.hpp"
#include "base/block_map.hpp"
#include "device/owned.hpp"
#include "device/stream_gate.hpp"

namespace isthmus::hierarchical {

class host_staging {
 public:
  // `shard_mode_of` translates the index of an algorithm.
  host_staging(const isthmus_backend_context& context, shard_mode (*shard_mode_of)(int algorithm))
      : m_context(context), m_shard_mode_of(shard_mode_of) {}

  // has_devices: some rank has a device. is_mixed: the ranks are on several platforms.
  struct platforms {
    bool has_devices = false, is_mixed = false;
  };
  // Collective.
  static isthmus_status detect_platforms(const isthmus_backend_context& context, platforms& result);

  // Collective. Errors: returns the status of a failure that has been reported.
  isthmus_status create(std::uint64_t chunk_bytes);
  // Runs the operations of one enqueue. Errors: throws subcommunicator_failure or error.
  void run(const isthmus_operation* operations, const int* algorithms, std::size_t n);
  std::string plan(const isthmus_operation& operation, int algorithm) const;
  void abort() const noexcept;

 private:
  // One call on the host communicator. The operation holds the caller's pointers.
  struct host_step {
    isthmus_operation operation;
    block_map blocks;
  };
  // Streams, events and pinned buffers for copies between device and host.
  struct device_lane {
    device_lane(const isthmus_backend_context& context, device_driver& platform_driver);
    device_driver& driver;
    int ordinal;
    owned_stream in_stream, out_stream;
    owned_event copy_in_event;
    stream_gate gate;
    std::array<owned_event, 2> copy_out_events;
    std::array<owned_pinned, 2> send, recv;
  };

  isthmus_status open_device();
  std::vector<host_step> split_into_steps(const isthmus_operation& operation) const;
  void run_collective(const isthmus_operation& operation);
  void run_messages(const isthmus_operation* operations, std::size_t n);
  void copy_in(const host_step& step, std::size_t slot);
  void run_on_host(const host_step& step, std::size_t slot);
  void copy_out(const host_step& step, std::size_t slot);
  void copy(void* destination, const void* source, std::uint64_t bytes, native_stream stream);
  std::byte* reserve(owned_pinned& memory, std::uint64_t bytes);

  const isthmus_backend_context& m_context;
  shard_mode (*m_shard_mode_of)(int algorithm);
  std::uint64_t m_chunk_bytes = 0;
  subcommunicator m_host_comm;
  std::unique_ptr<device_lane> m_device;
  std::unique_ptr<device_reducer> m_reducer;  // set if ranks of one node and platform reduce on their devices
};

}  // namespace isthmus::hierarchical
