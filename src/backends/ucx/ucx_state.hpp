// State of one rank of one communicator over UCX: the data path, waiting, and failure detection.
//
// Thread safety: one thread at a time; abort() may be called from any thread.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/ucx/worker.hpp"
#include "device/owned.hpp"
#include "device/stream_gate.hpp"
#include "failure/wait.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::ucx {

// Thrown after the failure has been reported to the runtime (context->fail).
struct reported_failure {
  isthmus_status status;
};

inline constexpr std::size_t max_window = 16;

// Access to the device of a rank: orders calls after the caller's stream, and copies within the device. UCX
// transfers the data between ranks.
//
// Errors: functions throw isthmus::error.
// Thread safety: one thread at a time.
class device_access {
 public:
  // Returns null on the host platform. Returns null and sets `reason` if the device driver is missing.
  static std::unique_ptr<device_access> make(const isthmus_backend_context& context, std::string& reason);
  device_access(const isthmus_backend_context& context, device_driver& driver);

  // UCX's number and name of this platform's device memory.
  int memory_type() const;
  const char* memory_name() const;
  // Returns the memory type of a pointer. Host memory, pinned or not, is host_memory.
  int memory_type_of(const void* pointer) const;

  void enter(isthmus_stream stream) { m_gate.enter(stream); }
  // Blocking. Source and destination may be host memory.
  void copy(void* destination, const void* source, std::uint64_t bytes);
  owned_memory allocate(std::uint64_t bytes) { return {m_driver, m_device.ordinal, bytes}; }
  // Runs `work` with the device current, because UCX uses the device context of the calling thread.
  void on_device(const std::function<void()>& work) { m_driver.run_on_device(m_device.ordinal, work); }

 private:
  isthmus_device m_device;
  device_driver& m_driver;
  stream_gate m_gate;
  owned_stream m_stream;
  owned_event m_copied;
};

// Bytes sent to or received from one peer, in chunks and in order.
//
// Ordering: among the flows of one kind and direction with the same peer, only the first unfinished
// one posts chunks.
struct peer_flow {
  int peer = 0;
  bool is_send = false;
  message_kind kind = message_kind::message;
  std::byte* buffer = nullptr;  // never written if is_send
  int memory_type = host_memory;
  std::uint64_t bytes = 0;
  std::uint64_t limit = ~std::uint64_t{0};  // upper bound for posted_bytes
  std::uint64_t ring_bytes =
      ~std::uint64_t{0};  // size of `buffer` if it is a ring; a multiple of the chunk size
  const std::byte* copy_source =
      nullptr;  // of a send: chunks are copied from here into the ring before they are sent

  std::uint64_t posted_bytes = 0, completed_bytes = 0;
  std::uint64_t posted_chunks = 0, completed_chunks = 0;
  std::array<ucx_transfer, max_window> chunks{};

  bool complete() const { return completed_bytes == bytes; }
};

// A message about failures: which ranks still respond, and which ranks have failed.
struct control_message {
  static constexpr int max_reported_ranks = 16;
  enum : std::int32_t { query, reply, failure };
  std::int32_t type = query;
  std::int32_t sender = 0;
  std::int32_t is_abort = 0;
  std::uint64_t query_id = 0;
  std::int32_t failed_count = 0;
  std::int32_t failed_ranks[max_reported_ranks] = {};
};

// Sends and receives control messages. It answers the queries of other ranks.
class control_channel {
 public:
  control_channel(worker& transport, int rank, int size)
      : m_worker(transport), m_rank(rank), m_last_reply(static_cast<std::size_t>(size), 0) {}

  // Receives all messages that have arrived. Returns the first failure that another rank reports.
  std::optional<control_message> poll();
  // Starts to send the message to a rank, unless its endpoint has failed.
  void notify(int peer, const control_message& message);
  void notify_all(const control_message& message);
  bool is_sent() const;
  // Asks all ranks to reply.
  void query_ranks();
  // Returns the ranks that have not replied to the latest query.
  std::vector<int> unresponsive_ranks() const;
  void cancel() { m_worker.cancel(m_incoming_transfer); }

 private:
  struct outgoing_message {
    control_message message;
    ucx_transfer transfer;
  };

  void receive_next();

  worker& m_worker;
  int m_rank;
  std::deque<outgoing_message> m_outgoing;
  control_message m_incoming;
  ucx_transfer m_incoming_transfer;
  bool m_is_receiving = false;
  std::uint64_t m_query_id = 0;             // of the latest query
  std::vector<std::uint64_t> m_last_reply;  // by rank: the latest query that it replied to
};

struct ucx_settings {
  network_settings network;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t window = 0;  // chunks of a flow in flight
  std::uint64_t spin_limit = 0;
};

class ucx_state {
 public:
  // `device` is null on the host platform.
  ucx_state(const isthmus_backend_context& context, const library& ucx, ucx_settings settings,
            std::unique_ptr<device_access> device);
  ~ucx_state();
  ucx_state(const ucx_state&) = delete;
  ucx_state& operator=(const ucx_state&) = delete;

  // Both are collective. All addresses must be exchanged between the two calls. They return "" or
  // the error text.
  std::string open(std::vector<std::byte>& address, bool& is_config_error);
  std::string connect(const std::vector<std::byte>& addresses, std::size_t stride);
  // Exchanges one byte with every peer. Returns "" or a text that names the unreachable ranks.
  std::string verify_connections();

  isthmus_status enqueue(const isthmus_operation* operations, const int* algorithms, std::size_t n) noexcept;
  void abort() { m_abort.store(true, std::memory_order_release); }
  const char* version() const { return m_library.description.c_str(); }
  const ucx_settings& settings() const { return m_settings; }

  // ---- for the algorithms ----
  int rank() const { return m_context.rank; }
  int size() const { return m_context.size; }
  const cpu::kernel_table& kernels() const { return cpu::kernels(); }
  // The ranks, ordered such that a ring crosses node boundaries as rarely as possible.
  const std::vector<int>& ring() const { return m_ring; }
  bool has_shared_nodes() const { return m_has_shared_nodes; }
  // Adds a flow to the next run().
  peer_flow& add(bool is_send, int peer, message_kind kind, const void* buffer, std::uint64_t bytes);
  std::deque<peer_flow>& flows() { return m_flows; }
  // Runs the flows until all are complete, then clears them. `hook` is called repeatedly. It raises limits and
  // returns true if it has raised any.
  template <typename Hook>
  void run(Hook&& hook) {
    begin_wait();
    for (;;) {
      bool has_progress = advance(m_flows);
      has_progress |= advance(m_messages);
      has_progress |= hook();
      if (is_complete(m_flows)) break;
      if (has_progress)
        begin_wait();
      else if (!m_worker.progress())
        back_off();
    }
    m_flows.clear();
  }
  void run() {
    run([] { return false; });
  }
  // Returns memory that stays valid until the next collective, even if the current collective fails.
  std::byte* scratch(std::uint64_t bytes);
  // Copies within this rank. The ranges may overlap on the host platform only.
  void copy(void* destination, const void* source, std::uint64_t bytes);
  bool is_on_devices() const { return m_device != nullptr; }
  [[noreturn]] void fail(isthmus_status status, const std::string& message, const char* hint,
                         const char* location);

 private:
  using clock = std::chrono::steady_clock;

  // Runs `work` with the device current, if there is one.
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
  isthmus_status run_guarded(const isthmus_operation* operations, const int* algorithms, std::size_t n);
  void wait_for_streams(const isthmus_operation* operations, std::size_t n);
  void run_all(const isthmus_operation* operations, const int* algorithms, std::size_t n);
  void start_messages(const isthmus_operation* operations, std::size_t n);
  void finish_messages();
  bool advance(std::deque<peer_flow>& flows);
  bool advance(peer_flow& flow, bool can_post);
  void post_chunk(peer_flow& flow, std::uint64_t bytes);
  void check_chunk(const peer_flow& flow, const ucx_transfer& chunk);
  static bool is_complete(const std::deque<peer_flow>& flows);
  void flush();
  void shut_down() noexcept;

  // failure_handling.cpp
  void begin_wait();
  void back_off();
  void poll_failures();
  int awaited_peer() const;
  std::string unresponsive_node_text(int lost_peer);
  [[noreturn]] void fail_reported(const control_message& report);
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
  std::uint64_t m_sequence = 0;  // number of collectives so far, equal on all ranks
  std::vector<int> m_ring;
  bool m_has_shared_nodes = false;
  const char* m_activity = "";
  bool m_needs_flush = false;
  bool m_is_shut_down = false;  // set by the first failure: no data moves afterwards
  std::atomic<bool> m_abort{false};

  control_channel m_control;
  std::vector<int> m_failed_ranks;  // that caused this rank's failure
  bool m_was_aborted = false;
  backoff m_backoff{m_settings.spin_limit};
  bool m_has_queried = false;
  std::size_t m_known_failures = 0;
};

}  // namespace isthmus::ucx
