// Ranks on devices, of one platform or of several: what they have goes through host memory, where a
// communicator of all ranks works on it. Sums may go another way (device_sums).
//
// Every rank makes the same calls there, the host's ranks on the caller's own buffers, those of devices on
// pinned memory. What goes element by element is cut into chunks: while one is worked on, the next comes in and
// the one before goes out. Calls block: a stream is waited for when a call begins, and its results are there
// when it ends.
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
  // `cut_of`: what an algorithm's name says.
  host_staging(const isthmus_backend_context& context, shard_mode (*shard_mode_of)(const char* algorithm))
      : m_context(context), m_shard_mode_of(shard_mode_of) {}

  // Collective: whether some rank has a device, and whether the ranks are on several platforms.
  struct platforms {
    bool has_devices = false, is_mixed = false;
  };
  static isthmus_status look(const isthmus_backend_context& context, platforms& found);

  // Collective. Success, or the failure that the runtime has reported.
  isthmus_status create(std::uint64_t chunk_bytes);
  // The operations of one enqueue. Throws subcommunicator_failure, or error.
  void run(const isthmus_operation* operations, const char* const* algorithms, std::size_t n);
  std::string plan(const isthmus_operation& operation, const char* algorithm) const;
  void abort() const noexcept;

 private:
  // One call on the host, and what it takes from and brings to the device.
  struct step {
    isthmus_operation call;
    block_map blocks;
  };
  // This rank's way to its device and back; none on the host.
  struct lane {
    lane(const isthmus_backend_context& context, device_driver& of);
    device_driver& driver;
    int device;
    owned_stream in, out;
    owned_event arrived;
    stream_gate gate;
    std::array<owned_event, 2> left;
    std::array<owned_pinned, 2> send, recv;
  };

  isthmus_status open_lane();
  std::vector<step> steps_of(const isthmus_operation& operation) const;
  void run_collective(const isthmus_operation& operation);
  void run_messages(const isthmus_operation* operations, std::size_t n);
  void fetch(const step& what, std::size_t slot);
  void call(const step& what, std::size_t slot);
  void bring_back(const step& what, std::size_t slot);
  void copy(void* to, const void* from, std::uint64_t bytes, native_stream stream);
  std::byte* reserve(owned_pinned& memory, std::uint64_t bytes);

  const isthmus_backend_context& m_context;
  shard_mode (*m_shard_mode_of)(const char* algorithm);
  std::uint64_t m_chunk_bytes = 0;
  subcommunicator m_host;
  std::unique_ptr<lane> m_lane;
  std::unique_ptr<device_reducer> m_sums;  // where ranks of one node and platform sum among themselves
};

}  // namespace isthmus::hierarchical
