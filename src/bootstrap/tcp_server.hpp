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
  double handshake_s = 10;      // a connection that has not proved itself by then is dropped
  std::size_t strangers = 256;  // unproved connections at a time; one more evicts the oldest
  double unused_s = 3600;       // without any rank for so long, the store closes
};

class server {
 public:
  // Takes over a listening socket.
  server(descriptor listener, const store_secret& secret, const server_limits& limits);
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  // Appends what it wants polled; returns how many seconds from now it wants to be served at the latest.
  double add_entries(std::vector<pollfd>& entries) const;
  // Its entries, after the poll. Also does what time alone brings, so call it with or without events.
  void serve(std::span<const pollfd> entries);

  // All ranks have come and gone, or nobody came for too long: it may be destroyed.
  bool done() const;
  bool has_guests() const;

 private:
  enum class state { greeting, proving, guest, dead };
  struct connection {
    descriptor socket;
    state stage = state::greeting;
    bool has_joined = false;
    hello greeting{};
    nonce store_nonce{};
    clock::time_point deadline;  // to prove itself by
    std::vector<std::byte> in, out;
    std::map<std::uint32_t, std::string> waiting;  // request id -> key
  };
  static bool is_stranger(const connection& each) {
    return each.stage == state::greeting || each.stage == state::proving;
  }

  void accept_all();
  bool evict_oldest_stranger();
  void serve(connection& from, short events);
  void receive(connection& from);
  void flush(connection& to);
  void greet(connection& from);
  void examine(connection& from);
  std::string refusal(const hello& greeting) const;
  void parse(connection& from);
  void handle(connection& from, const request& asked);
  void publish(const std::string& key, std::span<const std::byte> value);
  static void reply(connection& to, reply_kind kind, std::uint32_t id, std::span<const std::byte> value);

  descriptor m_listener;
  store_secret m_secret;
  server_limits m_limits;
  int m_size = 0;  // ranks, as the first of them says
  std::set<int> m_joined;
  int m_turned_away = 0;
  bool m_said_full = false;
  clock::time_point m_accept_after{};  // no descriptors were left: not before
  clock::time_point m_last_guest = clock::now();
  std::vector<std::unique_ptr<connection>> m_connections;  // in the order of their arrival
  std::map<std::string, std::vector<std::byte>, std::less<>> m_values;
};

}  // namespace isthmus::tcp
