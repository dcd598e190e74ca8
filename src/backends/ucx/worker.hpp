// One rank's UCX: context, worker and an endpoint for each peer. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/ucx/library.hpp"

namespace isthmus::ucx {

// One send or receive that UCX has been given. Stays where it is until done.
struct transfer {
  const functions* call = nullptr;
  void* request = nullptr;
  bool done = true;
  native_status status = native_status::ok;
  std::size_t bytes = 0;    // asked for
  std::size_t arrived = 0;  // of a receive
  std::size_t* open = nullptr;
};

// What a tag says: what kind of message, from whom, of which call.
enum class kind : std::uint64_t { hello = 1, notice, message, contribution, result };
inline constexpr std::size_t kinds = 6;
inline constexpr int sender_shift = 40, kind_shift = 60;
inline constexpr std::uint64_t whole_tag = ~std::uint64_t{0}, kind_of_tag = whole_tag << kind_shift;
constexpr std::uint64_t make_tag(kind what, int sender, std::uint64_t call) {
  return static_cast<std::uint64_t>(what) << kind_shift | static_cast<std::uint64_t>(sender) << sender_shift |
         (call & ((std::uint64_t{1} << sender_shift) - 1));
}
inline constexpr int most_ranks = 1 << (kind_shift - sender_shift);

// Which of UCX's transports and interfaces; "": those that it chooses itself.
struct selection_of_network {
  std::string transports;  // as in UCX_TLS
  std::string interfaces;  // as in UCX_NET_DEVICES
  double timeout_s = 0;
  bool moves_device_memory = false;
};

class worker {
 public:
  worker(const library& ucx, int size);
  ~worker();
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;

  // "" or why not. `is_asked_for`: the fault is in what the user asked for.
  std::string open(const selection_of_network& network, bool& is_asked_for);
  std::string read_address(std::vector<std::byte>& address) const;
  std::string connect(int peer, const std::byte* address);

  // A bit for each of UCX's memory types that it moves.
  std::uint64_t memory_types() const;

  // `memory`: what the data is in, as ucp_api.hpp numbers it.
  void send(transfer& moving, int peer, std::uint64_t tag, const void* data, std::size_t bytes,
            int memory = host_memory);
  void receive(transfer& moving, std::uint64_t tag, std::uint64_t mask, void* data, std::size_t bytes,
               int memory = host_memory);
  // True when something happened.
  bool progress() const { return m_call.worker_progress(m_worker) != 0; }
  void cancel(transfer& moving) const;
  std::size_t open_transfers() const { return m_open; }
  // Starts to push out what was sent; false when there is nothing to wait for.
  bool start_flush();
  bool is_flushed();

  // An endpoint's failure is remembered; `ok` where there is none.
  native_status failure_of_peer(int peer) const { return m_peers[static_cast<std::size_t>(peer)].failure; }
  std::size_t failures() const { return m_failures; }
  const char* text_of(native_status status) const { return m_call.status_string(status); }

  // Closes all endpoints, by force: a peer that has left would be waited for. What was flushed is on its way,
  // and transfers end. Bounded by `seconds`.
  void close(double seconds);
  // After that nothing of UCX is left here.
  void destroy() noexcept;

 private:
  struct peer {
    void* endpoint = nullptr;
    native_status failure = native_status::ok;
    std::size_t* failures = nullptr;
  };
  static void on_failure(void* argument, void* endpoint, native_status status);
  static void on_sent(void* request, native_status status, void* user_data);
  static void on_received(void* request, native_status status, const receive_info* info, void* user_data);
  static void finish(transfer& moving, native_status status);
  std::string make_context(const selection_of_network& network, void*& context) const;
  std::string find_missing(const selection_of_network& network) const;
  void begin(transfer& moving, std::size_t bytes);
  void settle(transfer& moving, void* result);

  const functions& m_call;
  void* m_context = nullptr;
  void* m_worker = nullptr;
  void* m_flush = nullptr;
  std::vector<peer> m_peers;
  std::size_t m_failures = 0;
  std::size_t m_open = 0;
};

}  // namespace isthmus::ucx
