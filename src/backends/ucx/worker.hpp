// The UCX library, and one rank's UCX objects: a context, a worker and an endpoint per peer.
//
// Thread safety: one thread at a time.
#pragma once

#include <isthmus/backend.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/ucx/ucp_api.hpp"

namespace isthmus::ucx {

// The UCX library, loaded at run time, once per process.
struct library {
  ucp_functions api;
  unsigned minor = 0;             // minor version
  std::string path, description;  // "1.13.1 from /usr/lib/.../libucp.so.0"

  // Returns the library, which the first successful call loads. Returns null and sets `reason` if there is
  // no suitable library.
  // Thread safety: any thread.
  static const library* get(const isthmus_backend_context& context, std::string& reason);
};

// One posted send or receive.
//
// Lifetime: must not move until it is done, because UCX's callback writes to it.
struct ucx_transfer {
  const ucp_functions* api = nullptr;
  void* request = nullptr;
  bool is_done = true;
  native_status status = native_status::ok;
  std::size_t bytes = 0;           // posted
  std::size_t received_bytes = 0;  // by a receive
  std::size_t* open = nullptr;
};

// The parts of a UCX tag: message kind, sender, and sequence number of the collective.
enum class message_kind : std::uint64_t { hello = 1, control, message, contribution, result };
inline constexpr std::size_t message_kind_count = 6;
inline constexpr int sender_shift = 40, kind_shift = 60;
inline constexpr std::uint64_t full_tag_mask = ~std::uint64_t{0}, kind_mask = full_tag_mask << kind_shift;
constexpr std::uint64_t make_tag(message_kind kind, int sender, std::uint64_t call) {
  return static_cast<std::uint64_t>(kind) << kind_shift | static_cast<std::uint64_t>(sender) << sender_shift |
         (call & ((std::uint64_t{1} << sender_shift) - 1));
}
inline constexpr int max_ranks = 1 << (kind_shift - sender_shift);

// Selection of transports and interfaces. If a list is empty, UCX chooses.
struct network_settings {
  std::string transports;  // as in UCX_TLS
  std::string interfaces;  // as in UCX_NET_DEVICES
  double timeout_s = 0;
  bool uses_device_memory = false;
};

class worker {
 public:
  worker(const library& ucx, int size);
  ~worker();
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;

  // Returns "" or the error text. `is_config_error`: the error is caused by the user's settings.
  std::string open(const network_settings& network, bool& is_config_error);
  std::string read_address(std::vector<std::byte>& address) const;
  std::string connect(int peer, const std::byte* address);

  // One bit for each UCX memory type that the context can transfer.
  std::uint64_t memory_types() const;

  // `memory_type`: the type of the memory that holds the data, as numbered in ucp_api.hpp.
  void send(ucx_transfer& transfer, int peer, std::uint64_t tag, const void* data, std::size_t bytes,
            int memory_type = host_memory);
  void receive(ucx_transfer& transfer, std::uint64_t tag, std::uint64_t mask, void* data, std::size_t bytes,
               int memory_type = host_memory);
  // Returns true if there was progress.
  bool progress() const { return m_api.worker_progress(m_worker) != 0; }
  void cancel(ucx_transfer& transfer) const;
  std::size_t open_transfers() const { return m_open_transfers; }
  // Starts to flush sent data. Returns false if a wait is not necessary.
  bool start_flush();
  bool is_flushed();

  // Returns the latest failure of the endpoint, or `ok`.
  native_status endpoint_status(int peer) const { return m_peers[static_cast<std::size_t>(peer)].failure; }
  std::size_t failed_endpoints() const { return m_failed_endpoints; }
  const char* status_text(native_status status) const { return m_api.status_string(status); }

  // Closes all endpoints within `seconds`. Uses the force mode, because a graceful close waits for peers that
  // have exited. Flushed data still arrives, and open transfers end.
  void close(double seconds);
  // Destroys the worker and the context.
  void destroy() noexcept;

 private:
  struct peer_endpoint {
    void* endpoint = nullptr;
    native_status failure = native_status::ok;
    std::size_t* failures = nullptr;
  };
  static void on_failure(void* argument, void* endpoint, native_status status);
  static void on_sent(void* request, native_status status, void* user_data);
  static void on_received(void* request, native_status status, const receive_info* info, void* user_data);
  static void finish(ucx_transfer& transfer, native_status status);
  std::string create_context(const network_settings& network, void*& context) const;
  std::string find_missing(const network_settings& network) const;
  void begin(ucx_transfer& transfer, std::size_t bytes);
  void handle_post_result(ucx_transfer& transfer, void* result);

  const ucp_functions& m_api;
  void* m_context = nullptr;
  void* m_worker = nullptr;
  void* m_flush = nullptr;
  std::vector<peer_endpoint> m_peers;
  std::size_t m_failed_endpoints = 0;
  std::size_t m_open_transfers = 0;
};

}  // namespace isthmus::ucx
