// The serving side of one TCP store: its listener, its connections and its values. Nothing that a bad
// connection could block. It has no thread: store_service polls for all stores of the process.
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

#include "bootstrap/socket.hpp"
#include "bootstrap/tcp_protocol.hpp"

namespace isthmus::tcp {

// How a store treats its callers.
struct server_limits {
  double handshake_timeout_s = 10;      // a connection that has not proved itself by then is dropped
  std::size_t max_unauthenticated = 256;  // unproved connections at a time; one more evicts the oldest
  double idle_timeout_s = 3600;       // without any rank for so long, the store closes
};

class server {
 public:
  // Takes over a listening socket.
  server(file_descriptor listener, const store_secret& secret, const server_limits& limits);
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  // Appends what it wants polled; returns how many seconds from now it wants to be served at the latest.
  double add_entries(std::vector<pollfd>& entries) const;
  // Its entries, after the poll. Also does what time alone brings, so call it with or without events.
  void serve(std::span<const pollfd> entries);

  // All ranks have come and gone, or nobody came for too long: it may be destroyed.
  bool is_done() const;
  bool has_connected_ranks() const;

 private:
  enum class connection_state { awaiting_hello, awaiting_proof, joined, closed };
  struct connection {
    file_descriptor socket;
    connection_state state = connection_state::awaiting_hello;
    bool has_joined = false;
    hello greeting{};
    nonce store_nonce{};
    clock::time_point deadline;  // to prove itself by
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
  int m_size = 0;  // ranks, as the first of them says
  std::set<int> m_joined;
  int m_rejections = 0;
  bool m_has_logged_exhaustion = false;
  clock::time_point m_accept_after{};  // no descriptors were left: not before
  clock::time_point m_last_connected = clock::now();
  std::vector<std::unique_ptr<connection>> m_connections;  // in the order of their arrival
  std::map<std::string, std::vector<std::byte>, std::less<>> m_values;
};

}  // namespace isthmus::tcp
