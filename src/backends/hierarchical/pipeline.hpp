// Pipelining of large messages. While one chunk is in the inter-node phase, the next is reduced and the
// previous one is distributed within the node.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/hierarchical/subcommunicators.hpp"
#include "device/owned.hpp"
#include "device/staging_pipeline.hpp"

namespace isthmus::hierarchical {

// Staging memory that grows on demand and is never released. Growing discards its contents.
class staging_buffer {
 public:
  // Aligned for every datatype.
  std::byte* reserve(std::uint64_t bytes) {
    if (bytes > m_bytes) {
      m_memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
      m_bytes = bytes;
    }
    return m_memory.get();
  }

 private:
  std::unique_ptr<std::byte[]> m_memory;
  std::uint64_t m_bytes = 0;
};

// The device memory of a rank whose node reduces on its devices: a stream, scratch memory on the device and pinned memory
// on the host.
//
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
  void move(std::byte* destination, const std::byte* source, std::uint64_t bytes);
  // Waits up to the timeout until all work is complete.
  void finish();

 private:
  static std::size_t index_of(int slot) { return static_cast<std::size_t>(slot); }

  const isthmus_backend_context& m_context;
  device_driver& m_driver;
  const subcommunicator& m_intra_node;
  owned_stream m_stream;
  owned_event m_done;
  std::array<owned_memory, slots> m_scratch;
  std::array<owned_pinned, slots> m_pinned;
};

struct chunk_range {
  std::uint64_t begin = 0, count = 0;  // elements
  int slot = 0;                        // index of the staging buffers that it uses
};

// The stages of a chunk, in this order. Errors: they throw subcommunicator_failure.
struct stages {
  std::function<void(const chunk_range&)> gather;    // intra-node
  std::function<void(const chunk_range&)> exchange;  // inter-node
  std::function<void(const chunk_range&)> scatter;   // intra-node
};

// Returns true if a separate thread may call the intra-node subcommunicator.
inline bool can_overlap(const isthmus_backend_context& context) {
  constexpr int thread_multiple = 3;  // of MPI
  return context.mpi == nullptr || context.mpi->thread_level >= thread_multiple;
}

// State that all calls of one communicator share.
struct node_hierarchy {
  static constexpr int slots = 2;

  const isthmus_backend_context* context;
  rank_layout layout;
  subcommunicators comms;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t step(std::uint64_t count, std::uint64_t bytes_per_element) const {
    return chunk_elements(count, bytes_per_element, chunk_bytes);
  }
  bool overlaps = false;  // result of can_overlap
  std::array<staging_buffer, slots> sums, results;
  std::unique_ptr<device_staging> device;  // set if the intra-node subcommunicator uses the device
  std::string plan;                        // the plan that explain most recently returned

  // Groups the ranks by node.
  explicit node_hierarchy(const isthmus_backend_context& base_context)
      : node_hierarchy(base_context,
                       std::vector<int>(base_context.node_of, base_context.node_of + base_context.size)) {}
  node_hierarchy(const isthmus_backend_context& base_context, std::vector<int> node_of)
      : context(&base_context), layout(base_context.rank, std::move(node_of)) {}

  // Runs the stages for `count` elements in chunks of at most `step`.
  void run_in_chunks(std::uint64_t count, std::uint64_t step, const stages& work);
};

}  // namespace isthmus::hierarchical
