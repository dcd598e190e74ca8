// The serving side of the TCP store: one thread, one poll loop, nothing that a bad connection could block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/socket.hpp"
#include "bootstrap/tcp_protocol.hpp"

namespace isthmus::tcp {

class server {
 public:
  // Takes over a listening socket and starts the thread.
  server(descriptor listener, const store_secret& secret);
  // Gives ranks that are still connected a moment to finish, then ends the thread.
  ~server();
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  bool finished() const { return m_finished.load(std::memory_order_acquire); }

 private:
  struct connection {
    descriptor socket;
    bool welcome = false;  // has shown the secret
    int rank = -1;
    clock::time_point deadline;  // to show the secret by
    std::vector<std::byte> in, out;
    std::map<std::uint32_t, std::string> waiting;  // request id -> key
    bool dead = false;
  };

  void loop();
  void accept_all();
  void serve(connection& from, short events);
  void receive(connection& from);
  void flush(connection& to);
  void greet(connection& from);
  std::string refusal(const greeting& hello) const;
  void parse(connection& from);
  void handle(connection& from, const request_header& header, std::string key,
              std::span<const std::byte> value);
  void publish(const std::string& key, std::span<const std::byte> value);
  static void reply(connection& to, reply_kind kind, std::uint32_t id, std::span<const std::byte> value);
  bool done() const;
  void wake();
  void close_down();

  descriptor m_listener;
  std::mutex m_wake_mutex;
  descriptor m_wake;  // an eventfd; gone once the thread has finished
  store_secret m_secret;
  int m_size = 0;  // ranks, as the first of them says
  std::set<int> m_joined;
  int m_turned_away = 0;
  std::vector<std::unique_ptr<connection>> m_connections;
  std::map<std::string, std::vector<std::byte>, std::less<>> m_values;
  std::atomic<bool> m_stop{false};
  std::atomic<bool> m_finished{false};
  std::thread m_thread;  // last: it uses the others
};

}  // namespace isthmus::tcp
