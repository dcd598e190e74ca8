// A large message in chunks: while one is between islands, the next is summed and the one before handed out
// within.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backends/islands/layout.hpp"
#include "backends/islands/parts.hpp"

namespace isthmus::islands {

// Staging that grows and stays. What it holds is lost when it grows.
class staging {
 public:
  // Aligned to every datatype.
  std::byte* at_least(std::uint64_t bytes) {
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

struct chunk {
  std::uint64_t at = 0, count = 0;  // elements
  int slot = 0;                     // whose staging it uses
};

// What happens to a chunk, one after the other. They throw part_failure.
struct stages {
  std::function<void(const chunk&)> gather;   // within islands
  std::function<void(const chunk&)> cross;    // between them
  std::function<void(const chunk&)> scatter;  // within them again
};

// What all calls of one communicator share.
struct crew {
  static constexpr int slots = 2;

  const isthmus_backend_context* context;
  layout ranks;
  parts of;
  std::uint64_t chunk_bytes = 0;
  bool overlaps = false;  // a thread of its own may call the parts within
  std::array<staging, slots> sums, results;
  std::string plan;  // the latest that was asked for

  explicit crew(const isthmus_backend_context& given) : context(&given), ranks(given) {}

  // `count` elements in chunks of at most `step`; no chunk where there are none.
  void run_in_chunks(std::uint64_t count, std::uint64_t step, const stages& work);
};

}  // namespace isthmus::islands
