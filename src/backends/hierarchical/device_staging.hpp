// What a rank has on its device while its island sums there: a stream, and memory on both sides of the way to
// the host.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/hierarchical/subcommunicators.hpp"
#include "device/owned.hpp"

namespace isthmus::hierarchical {

// Functions throw subcommunicator_failure, or error of the driver. Not thread-safe.
class device_staging {
 public:
  static constexpr std::size_t slots = 2;

  // `island` works on the device.
  device_staging(const isthmus_backend_context& context, device_driver& driver, const subcommunicator& intra_node);

  native_stream stream() const { return m_stream; }
  std::byte* scratch(int slot) const { return static_cast<std::byte*>(m_scratch[at(slot)].get()); }
  std::byte* pinned(int slot) const { return static_cast<std::byte*>(m_pinned[at(slot)].get()); }

  // Before the chunks of a call, when no work is under way: memory of each slot.
  void reserve(std::uint64_t scratch_bytes, std::uint64_t pinned_bytes);
  // All three are in the order of the stream; fetch waits until the bytes are there.
  void fetch(int slot, const std::byte* from, std::uint64_t bytes);
  void upload(std::byte* to, const std::byte* from_pinned, std::uint64_t bytes);
  void move(std::byte* to, const std::byte* from, std::uint64_t bytes);
  // Until all is done, at most the timeout.
  void finish();

 private:
  static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
  void wait();

  const isthmus_backend_context& m_context;
  device_driver& m_driver;
  const subcommunicator& m_intra_node;
  owned_stream m_stream;
  owned_event m_done;
  std::array<owned_memory, slots> m_scratch;
  std::array<owned_pinned, slots> m_pinned;
};

}  // namespace isthmus::hierarchical
