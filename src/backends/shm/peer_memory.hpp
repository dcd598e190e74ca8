// Write gates prevent late ranks from writing into the memory of a rank whose call has failed.
//
// A rank may be stopped between its abort check and its write, and resume after its peers have aborted. A rank
// that aborts therefore blocks every path into its memory:
//
// - Copies through the kernel first write one byte into the target's write gate, in the same system call. Once
//   the gate is closed, the call ends there. A stopped process is not inside a system call.
// - Mapped pages are replaced by a private copy. Late stores go to the shared pages, which are no longer read.
// - The rank waits for threads of the same process.
//
// Writers announce writes only in `write_flag` of their own header, so this costs nothing in
// calls that succeed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/shm/segment_layout.hpp"

namespace isthmus::shm {

// A page of this rank. Once the gate is closed, no kernel copy into the rank's memory succeeds.
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

// Memory that peers may write during a call.
struct exposed_range {
  std::byte* begin;
  std::uint64_t bytes;
  bool is_mapped;  // by other processes
};

// Scope around writes into a peer's memory. The writer must check for an abort after entering it: either the
// aborting rank sees the flag, or the writer sees the abort.
class write_scope {
 public:
  explicit write_scope(flag& write_flag) : m_write_flag(write_flag) {
    m_write_flag.store(1, std::memory_order_seq_cst);
  }
  ~write_scope() { m_write_flag.store(0, std::memory_order_release); }
  write_scope(const write_scope&) = delete;
  write_scope& operator=(const write_scope&) = delete;

 private:
  flag& m_write_flag;
};

// Replaces the pages by a private copy. False: out of memory.
bool make_private(const exposed_range& memory) noexcept;

}  // namespace isthmus::shm
