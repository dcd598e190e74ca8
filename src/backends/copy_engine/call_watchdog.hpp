// Watchdog of the copy engine's streams. If a stream waits for a word that no peer will write, only the host
// can release it. The watchdog calls no function of the driver, because other threads can block the driver.
//
// Detection: The watchdog reads one word of pinned memory, the id of the call that the stream executes. A call
//   fails if it takes longer than the timeout, if a signal belongs to a different call (mismatch), or if a peer
//   reports that it aborted.
//
// Release: A failed rank notifies its peers and writes the flags that its own stream waits for. The stream then
//   fetches data only into this rank's receive buffers and staging slots. It pushes data only to the locations
//   that its peers would have requested.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/copy_engine/call_log.hpp"
#include "backends/copy_engine/resources.hpp"
#include "device/signal_channel.hpp"
#include "failure/watchdog.hpp"

namespace isthmus::copy_engine {

struct call_failure {
  isthmus_status status;
  std::string message, hint;
};

class call_watchdog {
 public:
  using clock = watchdog_clock;

  // Errors: throws isthmus::error. Lifetime: the referenced objects must outlive the watchdog.
  call_watchdog(const isthmus_backend_context& context, rank_resources& resources, const call_log& log);
  call_watchdog(const call_watchdog&) = delete;
  call_watchdog& operator=(const call_watchdog&) = delete;

  // The process-wide watchdog thread checks this object between begin and end. The ranks' memory must be
  // shared before begin.
  void begin();
  void end() { m_watch.reset(); }

  // The id of the call that the stream executes; 0: none.
  std::uint32_t current_call() const {
    return std::atomic_ref<std::uint32_t>(*m_resources.progress_word()).load(std::memory_order_acquire);
  }

  // Thread safety: any thread may call these. The watchdog thread does the work.
  void request_abort();
  void fail(call_failure failure);
  bool has_failed() const { return m_has_failed.load(std::memory_order_acquire); }
  // Blocking: waits until no rank pushes into this rank's buffers anymore, for a limited time.
  std::optional<call_failure> reason() const;

  // Only after end(). Returns true if no peer can still fetch data from this rank.
  bool are_all_acknowledged() const;

 private:
  bool check_abort();
  void inspect(std::uint32_t id);
  bool is_mismatch(const call_record& record) const;
  bool is_still_stuck(std::uint32_t id) const;
  void report_timeout(std::uint32_t id);
  std::string describe_call(std::uint32_t id);
  std::vector<int> awaited_ranks(std::uint32_t id);
  std::string describe_awaited(std::uint32_t id);
  void publish_awaited(int rank);  // -1: none
  void fence_late_ranks();
  void publish_reason_when_safe();
  void release();
  void write_release_flags(std::uint32_t id);
  std::uint32_t ready(transfer_slot slot, int source) const {
    return signal_channel::read(m_resources.memory.ready(m_resources.rank, slot, source));
  }
  std::uint32_t pending(transfer_slot slot, int peer) const {
    return signal_channel::read(m_resources.memory.pending(m_resources.rank, slot, peer));
  }

  const isthmus_backend_context& m_context;
  rank_resources& m_resources;
  const call_log& m_log;

  std::uint32_t m_mismatch_candidate = 0;  // call with a mismatch at the previous check
  std::uint32_t m_inspected_call = 0;      // call for which the awaited rank was published
  int m_published_rank = -1;
  std::optional<clock::time_point> m_release_since;
  bool m_has_warned = false;

  std::atomic<bool> m_is_abort_requested{false}, m_has_failed{false};
  mutable std::mutex m_mutex;  // guards m_reason
  mutable std::condition_variable m_changed;
  std::optional<call_failure> m_reason;
  bool m_is_reason_public = false;                       // reason() may return it
  std::optional<clock::time_point> m_notification_time;  // time at which the peers were notified
  bool m_may_be_in_call = false;                         // true if a call could be in progress at that time
  std::optional<watch> m_watch;                          // last member, because it uses the other members
};

}  // namespace isthmus::copy_engine
