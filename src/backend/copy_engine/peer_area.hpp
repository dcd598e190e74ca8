// The memory that the ranks share for signals and staging: one block of the symmetric heap, laid out alike
// on every rank.
//
// A loan is how a source lets a reader fetch something. A rank has three things to lend: two slots of its
// transit area, and the user's own buffer. For each of them and each reader there are two words:
//   lent[thing][reader]   in the source's block. The source sets it, the reader clears it when it has fetched.
//   ready[thing][source]  in the reader's block. The source writes the call's tag into it when the data are
//                         there; the reader waits for that very tag and clears the word before it fetches.
// Both are zero at rest, whatever the order of calls was, so a captured graph can be replayed. The source
// lends again only after the word is clear: that is the acknowledgement that makes skewed calls safe. A
// reader that expects another tag (another size, another place) never fetches: a mismatch writes nothing.
#pragma once

#include <isthmus/backend.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isthmus::copy_engine {

enum class thing : std::uint8_t { first_slot, second_slot, own_buffer };
constexpr int things = 3;
constexpr int max_ranks = 64;
constexpr std::uint64_t signal_bytes = 4096;
constexpr std::uint64_t alignment = 256;

constexpr thing slot_of(std::uint64_t use) { return use % 2 == 0 ? thing::first_slot : thing::second_slot; }

class peer_area {
 public:
  peer_area() = default;
  // `transit_bytes`: for both slots together. Throws nothing.
  peer_area(const isthmus_heap_block& shared, int size, std::uint64_t transit_bytes);

  bool is_open() const { return !m_ranks.empty(); }
  static std::uint64_t bytes_for(std::uint64_t transit_bytes) {
    return signal_bytes + 2 * slot_bytes_of(transit_bytes);
  }

  // Words in rank `at`'s block, at addresses of this process.
  std::uint32_t* lent(int at, thing what, int reader) const { return word(at, index(what, reader)); }
  std::uint32_t* ready(int at, thing what, int source) const { return word(at, index(what, source) + table); }
  std::uint32_t* gave_up(int at) const { return word(at, 2 * table); }

  // A slot of rank `of`'s transit area. Precondition: not own_buffer.
  std::byte* slot(int of, thing what) const {
    return m_ranks[static_cast<std::size_t>(of)] + signal_bytes +
           (what == thing::second_slot ? m_slot_bytes : 0);
  }
  std::uint64_t slot_bytes() const { return m_slot_bytes; }

  // Where a word is in a copy of a rank's signals.
  static std::size_t lent_index(thing what, int reader) { return index(what, reader); }
  static std::size_t ready_index(thing what, int source) { return index(what, source) + table; }
  static std::size_t gave_up_index() { return 2 * table; }

 private:
  static constexpr std::size_t table = static_cast<std::size_t>(things) * max_ranks;
  static_assert((2 * table + 1) * sizeof(std::uint32_t) <= signal_bytes);
  static std::uint64_t slot_bytes_of(std::uint64_t transit_bytes) {
    return transit_bytes / 2 / alignment * alignment;
  }
  static std::size_t index(thing what, int rank) {
    return static_cast<std::size_t>(what) * max_ranks + static_cast<std::size_t>(rank);
  }
  std::uint32_t* word(int at, std::size_t index) const {
    return reinterpret_cast<std::uint32_t*>(m_ranks[static_cast<std::size_t>(at)]) + index;
  }

  std::vector<std::byte*> m_ranks;
  std::uint64_t m_slot_bytes = 0;
};

inline peer_area::peer_area(const isthmus_heap_block& shared, int size, std::uint64_t transit_bytes)
    : m_slot_bytes(slot_bytes_of(transit_bytes)) {
  for (int rank = 0; rank < size; ++rank) m_ranks.push_back(static_cast<std::byte*>(shared.peers[rank]));
}

}  // namespace isthmus::copy_engine
