// A large message in chunks: while one is between islands, the next is summed and the one before handed out
// within.
#pragma once

#include <isthmus/backend.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/hierarchical/device_staging.hpp"
#include "backends/hierarchical/rank_layout.hpp"
#include "backends/hierarchical/subcommunicators.hpp"

namespace isthmus::hierarchical {

// Staging that grows and stays. What it holds is lost when it grows.
class staging_buffer {
 public:
  // Aligned to every datatype.
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

struct chunk_range {
  std::uint64_t begin = 0, count = 0;  // elements
  int slot = 0;                     // whose staging it uses
};

// What happens to a chunk, one after the other. They throw subcommunicator_failure.
struct stages {
  std::function<void(const chunk_range&)> gather;   // within islands
  std::function<void(const chunk_range&)> cross;    // between them
  std::function<void(const chunk_range&)> scatter;  // within them again
};

// Whether a thread of its own may call the parts within.
inline bool can_overlap(const isthmus_backend_context& context) {
  constexpr int thread_multiple = 3;  // of MPI
  return context.mpi == nullptr || context.mpi->thread_level >= thread_multiple;
}

// Elements of a chunk, where an element of the message takes so many bytes of all blocks together. What is
// worth it is cut into several: of a single one nothing overlaps.
inline std::uint64_t chunk_elements(std::uint64_t count, std::uint64_t bytes_per_element, std::uint64_t chunk_bytes) {
  constexpr std::uint64_t several = 4, min_bytes = 1 << 20;  // smaller ones cost more than they hide
  const std::uint64_t bytes = std::max(min_bytes, count * bytes_per_element / several);
  return std::max<std::uint64_t>(1, std::min(chunk_bytes, bytes) / bytes_per_element);
}

// What all calls of one communicator share.
struct node_hierarchy {
  static constexpr int slots = 2;

  const isthmus_backend_context* context;
  rank_layout layout;
  subcommunicators comms;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t step(std::uint64_t count, std::uint64_t bytes_per_element) const {
    return chunk_elements(count, bytes_per_element, chunk_bytes);
  }
  bool overlaps = false;  // can_overlap
  std::array<staging_buffer, slots> sums, results;
  std::unique_ptr<device_staging> device;  // of a rank whose part within its island is on its device
  std::string plan;                     // the latest that was asked for

  // Islands are nodes.
  explicit node_hierarchy(const isthmus_backend_context& given)
      : node_hierarchy(given, std::vector<int>(given.node_of, given.node_of + given.size)) {}
  node_hierarchy(const isthmus_backend_context& given, std::vector<int> node_of)
      : context(&given), ranks(given.rank, std::move(node_of)) {}

  // `count` elements in chunks of at most `step`; no chunk where there are none.
  void run_in_chunks(std::uint64_t count, std::uint64_t step, const stages& work);
};

}  // namespace isthmus::hierarchical
