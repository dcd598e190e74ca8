// Direct copies between the buffers of ranks, and write gates, which prevent late ranks from writing into the memory
// of a rank whose call has failed.
//
// A rank may be stopped between its abort check and its write, and resume after its peers have aborted. A rank
// that aborts therefore blocks every path into its memory:
//
// - Copies through the kernel first write one byte into the target's write gate, in the same system call. Once
//   the gate is closed, the call ends there. A stopped process is not inside a system call.
// - Mapped pages are replaced by a private copy. Late stores go to the shared pages, which are no longer read.
// - The rank waits for threads of the same process.
//
// If the kernel refuses a copy, the rank posts a copy_request, and the peer copies through the rank's segment. The
// peer waits in the same call, because a call returns only after its buffers have been read and written. Later
// calls are staged.
//
// Writers announce writes only in `write_flag` of their own header, so this costs nothing in
// calls that succeed.
#pragma once

#include <isthmus/backend.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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

// Memory that peers may access during a call.
struct exposed_range {
  std::byte* begin;
  std::uint64_t bytes;
  bool is_writable, is_mapped;  // by other processes
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

class node_group;

// Access of a rank to the buffers of its peers, and of the peers to its buffers.
class peer_memory {
 public:
  // `gate_addresses`: by rank, in that rank's process. `can_kernel_copy`: the kernel copies between all processes.
  peer_memory(node_group& group, std::unique_ptr<write_gate> gate, std::vector<std::byte*> gate_addresses,
              bool can_kernel_copy)
      : m_group(group),
        m_gate(std::move(gate)),
        m_gate_addresses(std::move(gate_addresses)),
        m_can_kernel_copy(can_kernel_copy) {}

  // Returns true if the kernel can copy between the processes of all ranks, unless a rank has lost access.
  bool can_kernel_copy() const { return m_can_kernel_copy; }
  // Returns true if the kernel has refused a copy of `rank`. Its user has changed, or it has a seccomp filter.
  bool has_lost_access(int rank) const;
  // Returns true if `peer` can copy from and to this rank's memory at `address`.
  bool is_accessible_by(int peer, const std::byte* address) const;
  // Returns true if every peer can copy from and to this rank's memory at `address`.
  bool is_accessible_by_all(const std::byte* address) const;
  // Copies from or to a buffer of `peer` at an address that the peer has published.
  // Precondition of write_to: a write_scope exists.
  void read_from(int peer, std::byte* to, const std::byte* address, std::uint64_t bytes) const;
  void write_to(int peer, const std::byte* from, std::byte* address, std::uint64_t bytes) const;

  // Registers memory that peers may access until this call ends. Accesses to memory exposed by earlier
  // calls are complete.
  void expose(const exposed_range& memory) { m_exposed_ranges.push_back(memory); }
  void clear_exposed_ranges() { m_exposed_ranges.clear(); }
  // Copies for peers whose copies the kernel has refused. Returns true if there was a request.
  bool serve_copy_requests() const;
  // Blocks late peers from writing into exposed memory. Called before a failed call returns; all ranks must
  // have been notified of the failure.
  void revoke_write_access() noexcept;

 private:
  using kernel_copy_function = ssize_t(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                                       unsigned long);
  void copy_through_kernel(int peer, kernel_copy_function* copy, std::byte* local, std::byte* remote,
                           std::uint64_t bytes) const;
  void copy_through_segment(int peer, bool is_write, std::byte* local, std::byte* remote,
                            std::uint64_t bytes) const;
  void lose_access(int peer, int code) const;
  [[noreturn]] void fail_copy(int peer, const char* direction, std::uint64_t bytes, int code) const;
  enum class writer_state { finished, stopped, unknown };
  writer_state wait_for_writer(int peer) const noexcept;

  node_group& m_group;
  std::unique_ptr<write_gate> m_gate;
  std::vector<std::byte*> m_gate_addresses;
  bool m_can_kernel_copy;
  std::vector<exposed_range> m_exposed_ranges;
};

}  // namespace isthmus::shm
