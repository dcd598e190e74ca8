// One rank of one communicator over UCX: what moves, how it is waited for, and how the ranks tell each other
// that something is wrong.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/ucx/device_lane.hpp"
#include "backends/ucx/worker.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::ucx {

// What a function of the backend ends with when it fails; context->fail has been told.
struct failure {
  isthmus_status status;
};

inline constexpr std::size_t most_in_flight = 16;

// Bytes that go to, or come from, one peer, in pieces and in order. Of the flows of one kind to (from) one peer
// the first one moves.
struct flow {
  int peer = 0;
  bool sends = false;
  kind what = kind::message;
  std::byte* buffer = nullptr;  // const in truth where sends
  int memory = host_memory;     // that it is in
  std::uint64_t bytes = 0;
  std::uint64_t limit = ~std::uint64_t{0};  // what may have been begun
  std::uint64_t ring = ~std::uint64_t{0};   // `buffer` is a ring of so many bytes, a multiple of the piece
  const std::byte* origin = nullptr;        // of a send: pieces are copied from here into the ring first

  std::uint64_t begun = 0, completed = 0;  // bytes
  std::uint64_t started = 0, ended = 0;    // pieces
  std::array<transfer, most_in_flight> pieces{};

  bool complete() const { return completed == bytes; }
};

// What ranks tell each other beside the data.
struct notice {
  enum : std::int32_t { question, answer, failed };
  std::int32_t what = question;
  std::int32_t from = 0;
  std::int32_t awaits = -1;  // of an answer
  std::int32_t is_abort = 0;
  std::uint64_t roll = 0;  // number of the question
  std::int32_t culprits = 0;
  std::int32_t culprit[16] = {};
};

struct tuning {
  selection_of_network network;
  std::uint64_t piece_bytes = 0;
  std::uint64_t window = 0;  // pieces of a flow in flight
  std::uint64_t spins = 0;
};

class session {
 public:
  // `lane`: of ranks on devices, else nullptr.
  session(const isthmus_backend_context& context, const library& ucx, tuning tuned,
          std::unique_ptr<device_lane> lane);
  ~session();
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  // Both collective; the second one after all ranks have the addresses. "" or why not.
  std::string open(std::vector<std::byte>& address, bool& is_asked_for);
  std::string connect(const std::vector<std::byte>& addresses, std::size_t stride);
  // A word with every peer: what does not answer is not there.
  std::string greet();

  isthmus_status enqueue(const isthmus_operation* operations, const char* const* names, std::size_t n) noexcept;
  void abort() { m_abort.store(true, std::memory_order_release); }
  const char* version() const { return m_library.text.c_str(); }
  const tuning& tuned() const { return m_tuned; }

  // ---- for the algorithms ----
  int rank() const { return m_context.rank; }
  int size() const { return m_context.size; }
  const cpu::kernel_table& kernels() const { return cpu::kernels(); }
  // The ranks in the order in which a ring crosses between machines the least.
  const std::vector<int>& ring() const { return m_ring; }
  bool shares_machines() const { return m_shares_machines; }
  // The flows of the step that is being prepared.
  flow& add(bool sends, int peer, kind what, const void* buffer, std::uint64_t bytes);
  std::deque<flow>& flows() { return m_flows; }
  // Runs them until all are complete, and forgets them. `hook` is called in between; it raises limits, and says
  // whether it did.
  template <typename Hook>
  void run(Hook&& hook) {
    begin_wait();
    for (;;) {
      bool moved = advance(m_flows);
      moved |= advance(m_messages);
      moved |= hook();
      if (is_complete(m_flows)) break;
      if (moved)
        begin_wait();
      else if (!m_worker.progress())
        pause();
    }
    m_flows.clear();
  }
  void run() {
    run([] { return false; });
  }
  // Memory that lasts for one collective, also where that fails.
  std::byte* scratch(std::uint64_t bytes);
  // Of what this rank has; both may overlap on the host alone.
  void copy(void* to, const void* from, std::uint64_t bytes);
  bool is_on_devices() const { return m_lane != nullptr; }
  [[noreturn]] void fail(isthmus_status status, const std::string& message, const char* hint,
                         const char* location);

 private:
  using clock = std::chrono::steady_clock;

  // With the device current, where there is one.
  template <typename Work>
  auto on_device(Work&& work) {
    decltype(work()) result{};
    if (m_lane)
      m_lane->on_device([&] { result = work(); });
    else
      result = work();
    return result;
  }
  std::string find_memory_lack() const;
  std::string exchange_words();
  isthmus_status run_guarded(const isthmus_operation* operations, const char* const* names, std::size_t n);
  void wait_for_streams(const isthmus_operation* operations, std::size_t n);
  void run_all(const isthmus_operation* operations, const char* const* names, std::size_t n);
  void start_messages(const isthmus_operation* operations, std::size_t n);
  void finish_messages();
  bool advance(std::deque<flow>& flows);
  bool advance(flow& moving, bool may_start);
  void start_piece(flow& moving, std::uint64_t bytes);
  void check_piece(const flow& moving, const transfer& piece);
  static bool is_complete(const std::deque<flow>& flows);
  void flush();
  void give_up() noexcept;

  // notices.cpp
  void begin_wait();
  void pause();
  void look();
  void hear();
  void heed(const notice& heard);
  void tell(int peer, const notice& told);
  void ask(std::uint64_t roll_of_node);
  int awaited() const;
  std::vector<int> silent_ranks(int node) const;
  [[noreturn]] void lose(int peer, native_status status);
  [[noreturn]] void time_out();
  [[noreturn]] void end_as_aborted();

  const isthmus_backend_context& m_context;
  const library& m_library;
  tuning m_tuned;
  std::unique_ptr<device_lane> m_lane;
  worker m_worker;
  std::deque<flow> m_flows, m_messages;
  std::vector<char> m_busy;
  std::deque<std::vector<std::byte>> m_scratch;
  std::deque<owned_memory> m_device_scratch;
  std::size_t m_scratch_used = 0;
  std::uint64_t m_call = 0;  // collectives so far, counted alike on all ranks
  std::vector<int> m_ring;
  bool m_shares_machines = false;
  const char* m_activity = "";
  bool m_sent = false;
  bool m_ended = false;  // after a failure nothing moves any more
  std::atomic<bool> m_abort{false};

  struct sent_notice {
    notice told;
    transfer moving;
  };
  std::deque<sent_notice> m_told;
  notice m_heard;
  transfer m_hearing;
  bool m_hears = false;
  std::uint64_t m_roll = 0;               // of the last question
  std::vector<std::uint64_t> m_answered;  // by rank: the last question that it answered
  std::vector<int> m_culprits;            // of this rank's failure
  bool m_is_abort = false;
  std::uint64_t m_rounds = 0;
  bool m_is_long = false, m_has_asked = false;
  std::size_t m_seen_failures = 0;
  clock::time_point m_begin;
};

}  // namespace isthmus::ucx
