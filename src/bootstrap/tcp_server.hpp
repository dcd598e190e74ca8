// Server of one TCP store: listener, connections and values. No connection can block it. It has no thread of
// its own: store_service polls for all stores of the process.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/key_values.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/tcp_protocol.hpp"

namespace isthmus::tcp {

// Limits of a store.
struct server_limits {
  double handshake_timeout_s = 10;        // time to authenticate before the connection is closed
  std::size_t max_unauthenticated = 256;  // open connections; one more connection evicts the oldest
  double idle_timeout_s = 3600;           // a store without any rank closes after this time
};

class server {
 public:
  // Takes ownership of a listening socket.
  server(file_descriptor listener, const store_secret& secret, const server_limits& limits);
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  // Appends its descriptors to the poll list. Returns the seconds until serve() must be called at the latest.
  double add_entries(std::vector<pollfd>& entries) const;
  // Handles the events of its poll entries. Also handles timeouts, so it must be called even if there
  // are no events.
  void serve(std::span<const pollfd> entries);

  // Returns true if the store can be destroyed: all ranks have joined and left, or no rank has joined
  // for too long.
  bool is_done() const;
  // Returns true if ranks have joined and left, but not all ranks have joined: the creation failed. Ranks that join
  // later then get the reason from the store.
  bool is_abandoned() const;
  bool has_connected_ranks() const;
  // Returns true if the last connection was not accepted because this process has no free descriptor.
  bool lacks_descriptors() const { return m_lacks_descriptors; }
  std::vector<int> descriptors() const;

 private:
  bool have_all_joined() const {
    return m_size > 0 && m_joined_ranks.size() == static_cast<std::size_t>(m_size);
  }
  enum class connection_state { awaiting_hello, awaiting_proof, joined, closed };
  struct connection {
    file_descriptor socket;
    connection_state state = connection_state::awaiting_hello;
    bool has_joined = false;
    hello greeting{};
    nonce store_nonce{};
    clock::time_point deadline;  // for authentication
    std::vector<std::byte> input, output;
    std::map<std::uint32_t, std::string> pending_gets;  // request id -> key
  };
  static bool is_unauthenticated(const connection& each) {
    return each.state == connection_state::awaiting_hello || each.state == connection_state::awaiting_proof;
  }

  void accept_all();
  bool evict_oldest_unauthenticated();
  void serve(connection& client, short events);
  void receive(connection& client);
  void flush(connection& client);
  void answer_hello(connection& client);
  void check_proof(connection& client);
  std::string refusal_reason(const hello& greeting) const;
  void parse(connection& client);
  void handle(connection& client, const request& message);
  void publish(const std::string& key, std::span<const std::byte> value);
  static void reply(connection& client, reply_kind kind, std::uint32_t id, std::span<const std::byte> value);

  file_descriptor m_listener;
  store_secret m_secret;
  server_limits m_limits;
  int m_size = 0;  // number of ranks, as reported by the first rank that joined
  std::set<int> m_joined_ranks;
  int m_rejections = 0;
  bool m_has_logged_exhaustion = false, m_lacks_descriptors = false;
  clock::time_point m_accept_after{};  // out of descriptors: accept no connection before this time
  clock::time_point m_last_connected = clock::now();
  std::vector<std::unique_ptr<connection>> m_connections;  // oldest first
  key_values m_values;
};

// Adds a store to the service of this process: one thread for all TCP stores, including stores whose id no rank has
// used. It starts with the first store and ends with the last.
// Lifetime: at process exit, connected ranks have a few seconds to finish. A forked child serves no stores.
// Thread safety: any thread.
// Errors: SYSTEM.
void serve_store(std::unique_ptr<server> store);

}  // namespace isthmus::tcp
