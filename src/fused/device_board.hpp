// The words by which the streams of the ranks wait for each other, and a stage: for rows that lie outside the
// symmetric heap, or for partial sums. All in the symmetric heap: words are written by peers and waited for by
// their owner.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/driver/device_driver.hpp"
#include "runtime/communicator.hpp"

namespace isthmus::fused {

class device_board {
 public:
  // Collective. Words start as 0.
  device_board(communicator& owner, device_driver& driver, std::uint64_t stage_bytes);
  ~device_board();
  device_board(const device_board&) = delete;
  device_board& operator=(const device_board&) = delete;

  // The word of `owner` in which `writer` counts the steps of its rows, or of its sums, that may be fetched.
  std::uint32_t* ready(int owner, int writer) const { return word(owner, writer); }
  // The word of `owner` in which `reader` counts the runs for which it has fetched all it needs from there.
  std::uint32_t* done(int owner, int reader) const { return word(owner, m_size + reader); }
  std::byte* stage(int rank) const { return static_cast<std::byte*>(m_stages[static_cast<std::size_t>(rank)]); }

  std::uint64_t stage_bytes() const { return m_stage_bytes; }

  // Lets every wait of this rank's streams pass, for a failed communicator: what they fetch is not used.
  void release_all();

 private:
  static constexpr std::uint64_t word_gap = 32;  // words of different writers share no cache line
  std::uint32_t* word(int owner, int index) const {
    return static_cast<std::uint32_t*>(m_words[static_cast<std::size_t>(owner)]) +
           static_cast<std::uint64_t>(index) * word_gap;
  }

  communicator& m_owner;
  device_driver& m_driver;
  int m_size, m_rank, m_device;
  std::uint64_t m_stage_bytes;
  std::vector<void*> m_words, m_stages;  // by rank, as this process reaches them
  void* m_own_words = nullptr;
  void* m_own_stage = nullptr;
  // One of each priority: drivers put streams of one priority into few queues, and the one that is stuck must
  // not hold up its rescuer.
  std::vector<native_stream> m_rescuers;
};

}  // namespace isthmus::fused
