// Sees to it that a rank's streams do not wait for ever: nobody else can release a stream that waits for a
// word which no peer will write.
//
// It looks at one word of pinned memory: the id of the call that the stream is in. A call that lasts longer
// than the timeout fails; before that, a signal that can't belong to it is a mismatch, and a peer that gave
// up says so. A failed rank tells its peers and writes the flags that its own stream waits for. What the
// stream then fetches goes into this rank's receive buffers and its own staging slots; what it then puts goes
// where its peers would have asked for it.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "backends/copy_engine/call_log.hpp"
#include "backends/copy_engine/resources.hpp"
#include "device/signal_channel.hpp"
#include "device/watchdog.hpp"

namespace isthmus::copy_engine {

struct call_failure {
  isthmus_status status;
  std::string message, hint;
};

class call_watchdog {
 public:
  using clock = watchdog_clock;

  // Throws isthmus::error. The references outlive it.
  call_watchdog(const isthmus_backend_context& context, rank_resources& resources, const call_log& log);
  call_watchdog(const call_watchdog&) = delete;
  call_watchdog& operator=(const call_watchdog&) = delete;

  // Between them the process's watchdog looks. The ranks' memory is shared before.
  void begin();
  void end() { m_watch.reset(); }

  // The call that the stream is in; 0: none.
  std::uint32_t current_call() const {
    return std::atomic_ref<std::uint32_t>(*m_resources.progress_word()).load(std::memory_order_acquire);
  }

  // From any thread. The watchdog does the work.
  void request_abort();
  void fail(call_failure failure);
  bool has_failed() const { return m_has_failed.load(std::memory_order_acquire); }
  // Told once no other rank pushes into this rank's buffers any more, or after this wait.
  std::optional<call_failure> reason() const;

  // Not while the watchdog looks: whether no peer may still fetch something from here; and whether this rank's
  // own stream got through soon.
  bool are_all_acknowledged();
  bool wait_briefly() { return m_monitor.wait_briefly(); }
  void abandon_memory() noexcept { m_monitor.abandon_memory(); }

 private:
  bool check_abort();
  void inspect(std::uint32_t id);
  bool is_mismatch(const call_record& record) const;
  bool is_still_stuck(std::uint32_t id) const;
  void report_timeout(std::uint32_t id);
  std::string describe_call(std::uint32_t id);
  std::string describe_missing_ranks(std::uint32_t id);
  void fence_late_ranks();
  void publish_reason_when_safe();
  void release();
  void write_release_flags(std::uint32_t id);
  std::uint32_t ready(transfer_slot slot, int source) const {
    return m_monitor.ready(static_cast<std::size_t>(slot), source);
  }

  const isthmus_backend_context& m_context;
  rank_resources& m_resources;
  const call_log& m_log;
  signal_monitor m_monitor;

  std::uint32_t m_mismatch_candidate = 0;  // the call in which a mismatch was seen once
  std::optional<clock::time_point> m_release_since;
  bool m_has_warned = false;

  std::atomic<bool> m_is_abort_requested{false}, m_has_failed{false};
  mutable std::mutex m_mutex;  // over the reason
  mutable std::condition_variable m_changed;
  std::optional<call_failure> m_reason;
  bool m_is_reason_public = false;                   // the reason may be told
  std::optional<clock::time_point> m_notified_at;  // when the peers were
  bool m_may_be_in_call = false;             // a call, then
  std::optional<watch> m_watch;             // last: it looks at the others
};

}  // namespace isthmus::copy_engine
