// One rank's view of the ranks of its node that share segments with it, including the waits for these ranks.
//
// Protocol: Every collective uses one or more sequence numbers, which advance identically on all ranks.
//   Sequence number t uses slot t % depth of every rank's segment. A rank that contributes to t waits until
//   slot t is free, which means that all peers have completed t - depth. It fills the slot and stores t + 1
//   into `staged`, which the readers wait for. A rank that has finished with the slots of all sequence numbers
//   up to t stores t + 1 into its `completed_sequence`. A rank that stages t has completed all sequence numbers
//   below t - lookahead. A rank that sees `staged` therefore usually knows that the next slot is free, so
//   back-to-back collectives wait only for their data.
//   In a run of calls with a single reader, such as reductions to one root, a slot is free once that rank has
//   completed t - depth: it has read what every other rank wrote. Senders learn this from refresh_completed().
#pragma once

#include <isthmus/backend.h>

#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/shm/peer_memory.hpp"
#include "backends/shm/segments.hpp"
#include "base/block_map.hpp"
#include "failure/wait.hpp"

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

class node_group : public node_segments {
 public:
  node_group(const isthmus_backend_context& context, segment_connection connected);
  node_group(const node_group&) = delete;
  node_group& operator=(const node_group&) = delete;
  ~node_group();

  peer_memory& memory() { return m_memory; }
  const peer_memory& memory() const { return m_memory; }

  // Sequence numbers allocated so far.
  std::uint64_t next_sequence_number() const { return m_sequence; }
  // `only_reader`: the rank whose completion implies that all reads of these slots are complete, or all_ranks.
  std::uint64_t allocate_sequence_numbers(std::uint64_t n, int only_reader = all_ranks) {
    header(rank()).current_call.store(call_flag(m_sequence, m_call_signature), std::memory_order_release);
    if (only_reader != m_only_reader) {
      m_only_reader = only_reader;
      m_only_reader_begin = m_sequence;
    }
    m_sequence += n;
    return m_sequence - n;
  }
  // Waits until this rank's slot of the sequence number can be written.
  void reserve_slot(std::uint64_t sequence) {
    if (sequence < sizes().depth) return;
    const std::uint64_t needed = sequence - sizes().depth + 1;
    const auto [first, last] = readers_of(needed - 1);
    for (int r = first; r <= last; ++r)
      if (m_completed_sequences[static_cast<std::size_t>(r)] < needed && r != rank())
        wait_until_completed(r, needed);
  }
  // For the end of a call with a single reader. Its senders wait for none of its flags, so they load here what it has
  // completed. A cache miss in reserve_slot() would delay the call.
  void refresh_completed(std::uint64_t sequence) {
    if (m_only_reader == all_ranks || m_only_reader == rank()) return;
    std::uint64_t& completed = m_completed_sequences[static_cast<std::size_t>(m_only_reader)];
    if (completed + sizes().depth / 2 <= sequence)
      completed = header(m_only_reader).completed_sequence.load(std::memory_order_acquire);
  }
  // Starts a collective. `algorithm`: the requested one. All ranks must pass the same arguments.
  void begin_call(const isthmus_operation& operation, int algorithm);
  // Hash of the arguments that must be equal on all ranks.
  std::uint64_t call_signature() const { return m_call_signature; }
  // Value of the flags of the current call for this sequence number.
  std::uint64_t flag_value(std::uint64_t sequence) const { return call_flag(sequence, m_call_signature); }
  // Sets a flag of the current call that peers wait for.
  void set_flag(flag& ready, std::uint64_t sequence) const {
    ready.store(flag_value(sequence), std::memory_order_release);
  }
  // Waits for `ready`, a flag of `peer` for this sequence number set after the peer has staged its data.
  // Errors: MISMATCH if the peer makes a different call.
  void wait_for(int peer, const flag& ready, std::uint64_t sequence);
  [[noreturn]] void fail_with_mismatch(int peer) const;
  void complete(std::uint64_t sequence) {
    header(rank()).completed_sequence.store(sequence + 1, std::memory_order_release);
  }
  // Waits until all ranks have completed the sequence number.
  void wait_until_all_complete(std::uint64_t sequence);

  // Name of the current operation, for error messages.
  void set_activity(const char* name) { m_activity = name; }
  const char* activity() const { return m_activity; }
  // Returns true if the rank has destroyed its communicator or its process has exited.
  bool has_exited(int peer) const noexcept;
  // Runs the progress callback of the communicator's user during a wait. False: there was nothing to do.
  bool make_progress() const { return context().progress(context().runtime) != 0; }
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

  // First and last rank that read what is published under a sequence number, which belongs to the current call or
  // was reused by it.
  std::pair<int, int> readers_of(std::uint64_t sequence) const {
    if (m_only_reader != all_ranks && sequence >= m_only_reader_begin) return {m_only_reader, m_only_reader};
    return {0, size() - 1};
  }
  void wait_until_completed(int peer, std::uint64_t sequence_numbers);
  void wait_for_flag(int peer, const flag& ready, std::uint64_t sequence);
  bool makes_different_call(int peer, const flag& ready, std::uint64_t sequence) const;
  [[noreturn]] void fail_with_rank(int failed_rank, isthmus_status status, const char* location,
                                   const char* hint, const std::string& text) const;
  void publish_abort_word(std::uint64_t word) const noexcept;

  peer_memory m_memory;
  std::vector<std::uint64_t> m_process_starts;       // by rank; 0 for ranks of this process
  std::vector<std::uint64_t> m_completed_sequences;  // by rank: latest known completed_sequence
  std::uint64_t m_sequence = 0;
  int m_only_reader = all_ranks;
  std::uint64_t m_only_reader_begin = 0;  // first sequence number since which m_only_reader has not changed
  std::uint64_t m_call_signature = 0;
  const char* m_activity = "";
};

// One wait: `while (!ready()) wait.pause(peer);`. It detects aborts, exited peers and the timeout.
class waiter {
 public:
  explicit waiter(node_group& group) : m_group(group), m_backoff(group.parameters().spins) {}
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
  bool is_long() const { return m_backoff.is_long(); }
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
  int find_blocking_peer(std::span<const int> peers) const;
  void publish_awaited(int peer) const;
  [[noreturn]] void fail_with_timeout(std::span<const int> peers);

  node_group& m_group;
  backoff m_backoff;
  int m_exited_peer = -1;
  wait_clock::duration m_next_check{};  // since the long wait began
};

inline void node_group::wait_for(int peer, const flag& ready, std::uint64_t sequence) {
  if (ready.load(std::memory_order_acquire) != call_flag(sequence, m_call_signature))
    wait_for_flag(peer, ready, sequence);
  // Before it wrote, the peer saw that all ranks had completed the slot. The thread sanitizer cannot track that
  // across processes, so this rank repeats the loads.
  if (is_thread_sanitized)
    for (int r = 0; r < size(); ++r)
      static_cast<void>(header(r).completed_sequence.load(std::memory_order_acquire));
  std::uint64_t& completed = m_completed_sequences[static_cast<std::size_t>(peer)];
  if (completed + lookahead < sequence) completed = sequence - lookahead;
}

}  // namespace isthmus::shm
