// What keeps late ranks out of a rank's memory once a call has failed there.
//
// A rank may be stopped between its look at poison and its write, and go on after the others have given up. So
// whoever gives up takes the ways into its memory away, each in its own manner:
//
// - copies through the kernel write one byte into the target's *gate* first, in the same system call; once the
// gate
//   is closed, the call ends there. A stopped process is in no system call;
// - stores into mapped pages are cut off by putting a private copy in the place of the pages: what comes late
//   lands in the shared ones, which nobody reads any more;
// - threads of one process are waited for.
//
// Writers say so in the `writes` of their header, so that healthy ranks pay none of this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/shm/segment_layout.hpp"

namespace isthmus::shm {

// A page of this rank that no copy into its memory gets past once it is closed.
class write_gate {
 public:
  write_gate();  // throws std::bad_alloc
  ~write_gate();
  write_gate(const write_gate&) = delete;
  write_gate& operator=(const write_gate&) = delete;

  std::byte* address() const { return m_page; }
  void close() noexcept;

 private:
  std::byte* m_page;
  bool m_is_closed = false;
};

// Memory that others may write during a call.
struct exposed_range {
  std::byte* begin;
  std::uint64_t bytes;
  bool is_mapped;  // by other processes
};

// Around writes into memory of others, with a look at poison after its beginning: either whoever poisons sees
// the flag, or the look sees the poison.
class write_scope {
 public:
  explicit write_scope(flag& write_flag) : m_write_flag(write_flag) { m_write_flag.store(1, std::memory_order_seq_cst); }
  ~write_scope() { m_write_flag.store(0, std::memory_order_release); }
  write_scope(const write_scope&) = delete;
  write_scope& operator=(const write_scope&) = delete;

 private:
  flag& m_write_flag;
};

// Replaces the pages by a private copy. False when there is no memory for it.
bool make_private(const exposed_range& memory) noexcept;

}  // namespace isthmus::shm
