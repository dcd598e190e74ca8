// Sees to it that a rank's streams do not wait for ever: nobody else can release a stream that waits for a
// word which no peer will write.
//
// It looks at one word of pinned memory: the id of the call that the stream is in. A call that lasts longer
// than the timeout fails; before that, a signal that can't belong to it is a mismatch, and a peer that gave
// up says so. A failed rank tells its peers and writes the words that its own stream waits for. What the
// stream then fetches goes into this rank's receive buffers and its own transit area; what it then puts goes
// where its peers would have lent it.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "backend/copy_engine/call.hpp"
#include "backend/copy_engine/holdings.hpp"

namespace isthmus::copy_engine {

struct failure {
  isthmus_status status;
  std::string message, hint;
};

class overseer {
 public:
  using clock = std::chrono::steady_clock;

  // Throws isthmus::error. The references outlive it.
  overseer(const isthmus_backend_context& context, equipment& tools, const call_log& log, holdings& held);
  overseer(const overseer&) = delete;
  overseer& operator=(const overseer&) = delete;

  std::uint32_t* progress() const { return m_pinned; }
  // The call that the stream is in; 0: none.
  std::uint32_t current() const {
    return std::atomic_ref<std::uint32_t>(*m_pinned).load(std::memory_order_acquire);
  }

  // One look; a few milliseconds at most. Called by one thread at a time.
  void look(clock::time_point now);
  // From any thread. The watch does the work.
  void request_abort() { m_abort.store(true, std::memory_order_release); }
  void give_up(failure why);
  bool failed() const { return m_failed.load(std::memory_order_acquire); }
  std::optional<failure> reason() const;

  // Not while the watch looks: whether no peer may still fetch something from here; and whether this rank's own
  // stream got through soon.
  bool all_loans_returned();
  bool wait_briefly();

 private:
  bool read_signals();
  void inspect(std::uint32_t id, clock::time_point now);
  bool is_mismatch(const call_record& record) const;
  bool still_stuck(std::uint32_t id) const;
  void time_out(std::uint32_t id);
  std::string story_of(std::uint32_t id);
  void tell_peers();
  void release(clock::time_point now);
  void write_releasing_words(std::uint32_t id);
  std::uint32_t signal(std::size_t index) const { return m_pinned[mirror_at + index]; }

  static constexpr std::size_t mirror_at = 64;  // words; the signals are copied behind the progress word

  const isthmus_backend_context& m_context;
  equipment& m_tools;
  const call_log& m_log;
  native_stream m_stream;  // of its own: the others may be stuck
  native_event m_done;
  std::uint32_t* m_pinned;

  std::uint32_t m_seen = 0;
  clock::time_point m_since{}, m_inspected{};
  std::uint32_t m_suspect = 0;  // the call in which a mismatch was seen once
  std::optional<clock::time_point> m_release_since;
  bool m_told = false, m_complained = false;

  std::atomic<bool> m_abort{false}, m_failed{false};
  mutable std::mutex m_mutex;  // over the reason
  std::optional<failure> m_reason;
};

}  // namespace isthmus::copy_engine
