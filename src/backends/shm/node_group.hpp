// One rank's view of the ranks of its node that share segments with it, including the waits for these ranks.
//
// Protocol: Every collective uses one or more sequence numbers, which advance identically on all ranks.
//   Sequence number t uses slot t % depth of every rank's segment. A rank that contributes to t waits until
//   slot t is free, which means that all peers have completed t - depth. It fills the slot and stores t + 1
//   into `staged`, which the readers wait for. A rank that has finished with the slots of all sequence numbers
//   up to t stores t + 1 into its `completed_sequence`. A rank that stages t has completed all sequence numbers
//   below t - lookahead. A rank that sees `staged` therefore usually knows that the next slot is free, so
//   back-to-back collectives wait only for their data.
//
// Segment rotation: In small groups the segments rotate with every round of the ring (t / depth), so that a
//   rank writes where it read in the previous round. A line that a peer has read since then is more than twice
//   as expensive to acquire. A block for a single rank alternates between the writer's and the reader's
//   segment. All other segments pass to the rank that reads them last: it writes there in the next round. Large
//   groups do not rotate: visiting every page would take as many rounds as there are ranks, and by then all other
//   ranks would have read the lines.
#pragma once

#include <isthmus/backend.h>
#include <sys/uio.h>

#include <exception>
#include <span>
#include <string>
#include <vector>

#include "backends/shm/connect.hpp"
#include "base/file_descriptor.hpp"
#include "base/process.hpp"
#include "failure/wait.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::shm {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool is_thread_sanitized = true;
#else
inline constexpr bool is_thread_sanitized = false;
#endif

// Exception that ends an operation after context.fail has recorded the cause. Caught in enqueue.
struct operation_failure {
  isthmus_status status;
};

class node_group {
 public:
  node_group(const isthmus_backend_context& context, segment_connection connected);
  node_group(const node_group&) = delete;
  node_group& operator=(const node_group&) = delete;
  ~node_group();

  int rank() const { return m_context.rank; }
  int size() const { return m_context.size; }
  const isthmus_backend_context& context() const { return m_context; }
  const geometry& sizes() const { return m_sizes; }
  const tuning_parameters& parameters() const { return m_parameters; }
  const cpu::kernel_table& kernels() const { return m_kernels; }
  bool is_same_process(int peer) const {
    return m_context.process_of[peer] == m_context.process_of[m_context.rank];
  }
  // Returns true if the kernel can copy between the processes of all ranks.
  bool can_kernel_copy() const { return m_can_kernel_copy; }
  // Returns true if `peer` can copy from and to this rank's memory at `address`.
  bool is_accessible_by(int peer, const std::byte* address) const {
    return is_same_process(peer) || (m_can_kernel_copy && is_ordinary(address));
  }
  // Returns true if every peer can copy from and to this rank's memory at `address`.
  bool is_accessible_by_all(const std::byte* address) const {
    return is_one_process() || (m_can_kernel_copy && is_ordinary(address));
  }
  // Copies from or to a buffer of `peer` at an address that the peer has published.
  // Precondition of write_to: a write_scope exists.
  void read_from(int peer, std::byte* to, const std::byte* address, std::uint64_t bytes) const;
  void write_to(int peer, const std::byte* from, std::byte* address, std::uint64_t bytes) const;
  bool is_one_process() const { return m_context.process_size == m_context.size; }

  segment_header& header(int rank) const { return locate<segment_header>(rank, 0); }
  // Data that `rank` publishes under a sequence number.
  slot_header& slot(int rank, std::uint64_t sequence) const {
    return locate<slot_header>(home_segment(rank, sequence), slot_offset(sequence));
  }
  packet_line* packets(int rank, std::uint64_t sequence) const {
    return &locate<packet_line>(home_segment(rank, sequence), slot_offset(sequence) + m_layout.slot_packets());
  }
  // Packets of a call in which only `root` publishes. The root reads nothing, so they are always in
  // its own segment.
  packet_line* root_packets(int root, std::uint64_t sequence) const {
    return &locate<packet_line>(root, slot_offset(sequence) + m_layout.slot_packets());
  }
  std::byte* data(int rank, std::uint64_t sequence) const {
    return &locate<std::byte>(home_segment(rank, sequence), slot_offset(sequence) + m_layout.slot_data());
  }
  std::byte* result(int rank, std::uint64_t sequence) const {
    return &locate<std::byte>(home_segment(rank, sequence), slot_offset(sequence) + m_layout.slot_result());
  }
  // Block of a slot that only `to` reads.
  packet_line* packets_for(int to, int from, std::uint64_t sequence) const {
    const auto [segment, block] = locate_block(from, to, sequence);
    return &locate<packet_line>(segment, slot_offset(sequence) + m_layout.slot_packets()) +
           static_cast<std::uint64_t>(block) * m_sizes.packet_block_lines(size());
  }
  std::byte* data_for(int to, int from, std::uint64_t sequence) const {
    const auto [segment, block] = locate_block(from, to, sequence);
    return &locate<std::byte>(segment, slot_offset(sequence) + m_layout.slot_data()) +
           static_cast<std::uint64_t>(block) * m_sizes.slot_block_bytes(size());
  }
  cell_header& cell(int owner, channel_kind kind, int destination, std::uint64_t sequence) const {
    return locate<cell_header>(
        owner, m_layout.cell(kind, static_cast<std::uint64_t>(destination), sequence % m_sizes.cells));
  }
  // State of `owner` as the receiver of its channel from `source`.
  receiver_state& receiver(int owner, channel_kind kind, int source) const {
    return locate<receiver_state>(owner, m_layout.receiver_state(kind, static_cast<std::uint64_t>(source)));
  }

  // Sequence numbers allocated so far.
  std::uint64_t next_sequence_number() const { return m_sequence; }
  std::uint64_t allocate_sequence_numbers(std::uint64_t n) {
    m_sequence += n;
    return m_sequence - n;
  }
  // Waits until this rank's slot of the sequence number can be written.
  void reserve_slot(std::uint64_t sequence) {
    if (sequence < m_sizes.depth) return;
    const std::uint64_t needed = sequence - m_sizes.depth + 1;
    for (int r = 0; r < size(); ++r)
      if (m_completed_sequences[static_cast<std::size_t>(r)] < needed && r != rank())
        wait_until_completed(r, needed);
  }
  // Waits for `ready`, a flag of `peer` for this sequence number set after the peer has staged its data.
  void wait_for(int peer, const flag& ready, std::uint64_t sequence);
  void complete(std::uint64_t sequence) {
    header(rank()).completed_sequence.store(sequence + 1, std::memory_order_release);
  }
  // Waits until all ranks have completed the sequence number.
  void wait_until_all_complete(std::uint64_t sequence);

  // Registers memory that peers may write until this call ends. Writes into memory exposed by earlier
  // calls are complete.
  void expose(const exposed_range& memory) { m_exposed_ranges.push_back(memory); }
  void clear_exposed_ranges() { m_exposed_ranges.clear(); }
  // Blocks late peers from writing into exposed memory. Called before a failed call returns; all ranks must
  // have been notified of the failure.
  void revoke_write_access() noexcept;

  // Name of the current operation, for error messages.
  void set_activity(const char* name) { m_activity = name; }
  // Runs the progress callback of the communicator's user during a wait. False: there was nothing to do.
  bool make_progress() const { return m_context.progress(m_context.runtime) != 0; }
  // Throws operation_failure if the communicator has been aborted.
  void check_abort() const;
  // Checks only for aborts by other ranks, with one load from a line of this rank. If it returns, all earlier
  // reads happened before any peer aborted.
  void poll_abort() const {
    if constexpr (!is_thread_sanitized)  // the thread sanitizer does not support fences
      std::atomic_thread_fence(std::memory_order_acquire);
    if (header(rank()).abort_word.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      check_abort();
  }
  write_scope begin_remote_writes() const { return write_scope(header(rank()).write_flag); }
  // Notifies all ranks of a failed rank, of a timeout of this rank, or of an abort request.
  // Thread safety: any thread may call these functions.
  void publish_failed_rank(int failed_rank) const noexcept;
  void publish_timeout() const noexcept;
  void publish_abort() const noexcept;

 private:
  friend class waiter;

  template <typename Type>
  Type& locate(int rank, std::uint64_t offset) const {
    return *reinterpret_cast<Type*>(m_bases[static_cast<std::size_t>(rank)] + offset);
  }
  std::uint64_t slot_offset(std::uint64_t sequence) const {
    return m_layout.slot(sequence & (m_sizes.depth - 1));
  }
  std::uint64_t ring_round(std::uint64_t sequence) const { return sequence >> m_depth_bits; }
  // Segment in which `rank` publishes. In the next round, the rank that reads it last publishes there.
  int home_segment(int rank, std::uint64_t sequence) const {
    const auto ranks = static_cast<std::uint32_t>(size());
    if (ranks > max_rotating_ranks) return rank;
    const std::uint32_t shift = static_cast<std::uint32_t>(ring_round(sequence)) % ranks;
    return static_cast<int>((static_cast<std::uint32_t>(rank) + ranks - shift) % ranks);
  }
  struct slot_block {
    int segment, block;
  };
  slot_block locate_block(int from, int to, std::uint64_t sequence) const {
    return ring_round(sequence) % 2 == 0 ? slot_block{from, to} : slot_block{to, from};
  }
  void wait_until_completed(int peer, std::uint64_t sequence_numbers);
  static bool is_ordinary(const std::byte* address);
  using kernel_copy_function = ssize_t(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                                       unsigned long);
  void copy_through_kernel(int peer, kernel_copy_function* copy, std::byte* local, std::byte* remote,
                           std::uint64_t bytes) const;
  [[noreturn]] void fail_with_rank(int failed_rank, isthmus_status status, const char* location,
                                   const char* hint, const std::string& text) const;
  [[noreturn]] void fail_copy(int peer, const char* direction, std::uint64_t bytes, int code) const;
  bool has_exited(int peer) const;
  enum class writer_state { finished, stopped, unknown };
  writer_state wait_for_writer(int peer) const noexcept;
  void publish_abort_word(std::uint64_t word) const noexcept;

  isthmus_backend_context m_context;
  geometry m_sizes;
  tuning_parameters m_parameters;
  const cpu::kernel_table& m_kernels = cpu::kernels();
  segment_layout m_layout;
  int m_depth_bits;
  bool m_can_kernel_copy;
  std::vector<std::shared_ptr<shared_segment>> m_segments;
  std::vector<std::byte*> m_bases;
  std::vector<file_descriptor> m_process_descriptors;  // by rank; none for ranks of this process
  std::unique_ptr<write_gate> m_gate;
  std::vector<std::byte*> m_gate_addresses;  // by rank, in that rank's process
  std::vector<exposed_range> m_exposed_ranges;
  std::vector<std::uint64_t> m_completed_sequences;  // by rank: latest known completed_sequence
  std::uint64_t m_sequence = 0;
  const char* m_activity = "";
};

// One wait: `while (!ready()) wait.pause(peer);`. It detects aborts, exited peers and the timeout.
class waiter {
 public:
  explicit waiter(node_group& group) : m_group(group), m_backoff(group.m_parameters.spins) {}
  waiter(const waiter&) = delete;
  waiter& operator=(const waiter&) = delete;
  // After a failure, the awaited rank stays published, so that the chain of waits can still be followed.
  ~waiter() {
    if (m_backoff.is_long() && std::uncaught_exceptions() == 0) publish_awaited(-1);
  }

  void pause(int peer) { pause({&peer, 1}); }
  // For waits that any of several peers can end.
  void pause(std::span<const int> peers) {
    if (!m_backoff.spin()) return pause_long(peers);
    relax_core();
    if (m_backoff.is_progress_due()) poll(peers);
  }
  // Restarts the wait and its timeout after progress.
  void reset() {
    if (m_backoff.is_long()) publish_awaited(-1);
    m_backoff.reset();
    m_exited_peer = -1;
  }

 private:
  static constexpr std::uint64_t spins_before_core_check = 4 * backoff::spins_per_progress;

  void poll(std::span<const int> peers);
  bool shares_core(std::span<const int> peers) const;
  void pause_long(std::span<const int> peers);
  void check_peers(std::span<const int> peers);
  void publish_awaited(int peer) const { m_group.m_context.set_awaited_rank(m_group.m_context.runtime, peer); }
  [[noreturn]] void fail_with_timeout(std::span<const int> peers);

  node_group& m_group;
  backoff m_backoff;
  int m_exited_peer = -1;
  wait_clock::duration m_next_check{};  // since the long wait began
};

inline void node_group::wait_for(int peer, const flag& ready, std::uint64_t sequence) {
  if (ready.load(std::memory_order_acquire) <= sequence) {
    waiter wait(*this);
    while (ready.load(std::memory_order_acquire) <= sequence) wait.pause(peer);
  }
  // Before it wrote, the peer saw that all ranks had completed the slot. The thread sanitizer cannot track that
  // across processes, so this rank repeats the loads.
  if (is_thread_sanitized)
    for (int r = 0; r < size(); ++r)
      static_cast<void>(header(r).completed_sequence.load(std::memory_order_acquire));
  std::uint64_t& completed = m_completed_sequences[static_cast<std::size_t>(peer)];
  if (completed + lookahead < sequence) completed = sequence - lookahead;
}

}  // namespace isthmus::shm
