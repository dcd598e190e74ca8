// Resources of a rank whose node reduces on its devices: a stream, scratch memory on the device and pinned
// memory on the host.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/hierarchical/subcommunicators.hpp"
#include "device/owned.hpp"

namespace isthmus::hierarchical {

// Errors: functions throw subcommunicator_failure, or error if the driver fails.
// Thread safety: one thread at a time.
class device_staging {
 public:
  static constexpr std::size_t slots = 2;

  // Precondition: `intra_node` supports device buffers.
  device_staging(const isthmus_backend_context& context, device_driver& driver,
                 const subcommunicator& intra_node);

  native_stream stream() const { return m_stream; }
  std::byte* scratch(int slot) const { return static_cast<std::byte*>(m_scratch[index_of(slot)].get()); }
  std::byte* pinned(int slot) const { return static_cast<std::byte*>(m_pinned[index_of(slot)].get()); }

  // Allocates the memory of each slot. Must be called before an operation issues its chunks, while no work
  // is in progress.
  void reserve(std::uint64_t scratch_bytes, std::uint64_t pinned_bytes);
  // These copies are stream-ordered. fetch() also blocks until its copy is complete.
  void fetch(int slot, const std::byte* source, std::uint64_t bytes);
  void upload(std::byte* destination, const std::byte* from_pinned, std::uint64_t bytes);
  void move(std::byte* destination, const std::byte* source, std::uint64_t bytes);
  // Waits up to the timeout until all work is complete.
  void finish();

 private:
  static std::size_t index_of(int slot) { return static_cast<std::size_t>(slot); }
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
