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

#include "backends/ucx/device_access.hpp"
#include "backends/ucx/worker.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::ucx {

// What a function of the backend ends with when it fails; context->fail has been told.
struct failure {
  isthmus_status status;
};

inline constexpr std::size_t max_window = 16;

// Bytes that go to, or come from, one peer, in pieces and in order. Of the flows of one kind to (from) one peer
// the first one moves.
struct peer_flow {
  int peer = 0;
  bool sends = false;
  message_kind kind = message_kind::message;
  std::byte* buffer = nullptr;  // const in truth where sends
  int memory = host_memory;     // that it is in
  std::uint64_t bytes = 0;
  std::uint64_t limit = ~std::uint64_t{0};  // what may have been begun
  std::uint64_t ring = ~std::uint64_t{0};   // `buffer` is a ring of so many bytes, a multiple of the piece
  const std::byte* origin = nullptr;        // of a send: pieces are copied from here into the ring first

  std::uint64_t posted_bytes = 0, completed_bytes = 0;  // bytes
  std::uint64_t posted_chunks = 0, completed_chunks = 0;    // pieces
  std::array<ucx_transfer, max_window> chunks{};

  bool complete() const { return completed_bytes == bytes; }
};

// What ranks tell each other beside the data.
struct control_message {
  enum : std::int32_t { question, answer, failed };
  std::int32_t what = question;
  std::int32_t from = 0;
  std::int32_t awaits = -1;  // of an answer
  std::int32_t is_abort = 0;
  std::uint64_t roll = 0;  // number of the question
  std::int32_t culprits = 0;
  std::int32_t culprit[16] = {};
};

struct ucx_settings {
  network_settings network;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t window = 0;  // pieces of a flow in flight
  std::uint64_t spin_limit = 0;
};

class ucx_state {
 public:
  // `lane`: of ranks on devices, else nullptr.
  ucx_state(const isthmus_backend_context& context, const library& ucx, ucx_settings settings,
          std::unique_ptr<device_access> device);
  ~ucx_state();
  ucx_state(const ucx_state&) = delete;
  ucx_state& operator=(const ucx_state&) = delete;

  // Both collective; the second one after all ranks have the addresses. "" or why not.
  std::string open(std::vector<std::byte>& address, bool& is_config_error);
  std::string connect(const std::vector<std::byte>& addresses, std::size_t stride);
  // A word with every peer: what does not answer is not there.
  std::string verify_connections();

  isthmus_status enqueue(const isthmus_operation* operations, const char* const* names, std::size_t n) noexcept;
  void abort() { m_abort.store(true, std::memory_order_release); }
  const char* version() const { return m_library.description.c_str(); }
  const ucx_settings& settings() const { return m_settings; }

  // ---- for the algorithms ----
  int rank() const { return m_context.rank; }
  int size() const { return m_context.size; }
  const cpu::kernel_table& kernels() const { return cpu::kernels(); }
  // The ranks in the order in which a ring crosses between machines the least.
  const std::vector<int>& ring() const { return m_ring; }
  bool has_shared_nodes() const { return m_has_shared_nodes; }
  // The flows of the step that is being prepared.
  peer_flow& add(bool sends, int peer, message_kind kind, const void* buffer, std::uint64_t bytes);
  std::deque<peer_flow>& flows() { return m_flows; }
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
        back_off();
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
  bool is_on_devices() const { return m_device != nullptr; }
  [[noreturn]] void fail(isthmus_status status, const std::string& message, const char* hint,
                         const char* location);

 private:
  using clock = std::chrono::steady_clock;

  // With the device current, where there is one.
  template <typename Work>
  auto on_device(Work&& work) {
    decltype(work()) result{};
    if (m_device)
      m_device->on_device([&] { result = work(); });
    else
      result = work();
    return result;
  }
  std::string check_memory_support() const;
  std::string exchange_hellos();
  isthmus_status run_guarded(const isthmus_operation* operations, const char* const* names, std::size_t n);
  void wait_for_streams(const isthmus_operation* operations, std::size_t n);
  void run_all(const isthmus_operation* operations, const char* const* names, std::size_t n);
  void start_messages(const isthmus_operation* operations, std::size_t n);
  void finish_messages();
  bool advance(std::deque<peer_flow>& flows);
  bool advance(peer_flow& flow, bool may_start);
  void post_chunk(peer_flow& flow, std::uint64_t bytes);
  void check_chunk(const peer_flow& flow, const ucx_transfer& chunk);
  static bool is_complete(const std::deque<peer_flow>& flows);
  void flush();
  void shut_down() noexcept;

  // failure_handling.cpp
  void begin_wait();
  void back_off();
  void poll_failures();
  void poll_control_messages();
  void heed(const control_message& heard);
  void tell(int peer, const control_message& told);
  void ask(std::uint64_t roll_of_node);
  int awaited_peer() const;
  std::vector<int> unresponsive_ranks(int node) const;
  [[noreturn]] void fail_lost_peer(int peer, native_status status);
  [[noreturn]] void fail_timeout();
  [[noreturn]] void fail_aborted();

  const isthmus_backend_context& m_context;
  const library& m_library;
  ucx_settings m_settings;
  std::unique_ptr<device_access> m_device;
  worker m_worker;
  std::deque<peer_flow> m_flows, m_messages;
  std::vector<char> m_busy;
  std::deque<std::vector<std::byte>> m_scratch;
  std::deque<owned_memory> m_device_scratch;
  std::size_t m_scratch_used = 0;
  std::uint64_t m_sequence = 0;  // collectives so far, counted alike on all ranks
  std::vector<int> m_ring;
  bool m_has_shared_nodes = false;
  const char* m_activity = "";
  bool m_needs_flush = false;
  bool m_is_shut_down = false;  // after a failure nothing moves any more
  std::atomic<bool> m_abort{false};

  struct sent_notice {
    control_message told;
    transfer flow;
  };
  std::deque<sent_notice> m_told;
  control_message m_incoming;
  transfer m_hearing;
  bool m_hears = false;
  std::uint64_t m_query_id = 0;               // of the last question
  std::vector<std::uint64_t> m_last_reply;  // by rank: the last question that it answered
  std::vector<int> m_culprits;            // of this rank's failure
  bool m_is_abort = false;
  std::uint64_t m_wait_rounds = 0;
  bool m_is_long_wait = false, m_has_queried = false;
  std::size_t m_seen_failures = 0;
  clock::time_point m_wait_begin;
};

}  // namespace isthmus::ucx
