#include "bootstrap/tcp_store.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "failure/wait.hpp"

namespace isthmus {
namespace {

using namespace tcp;

// Even an immediate reply may take this long on a busy machine. A shorter limit applies if the communicator
// timeout is short.
constexpr double min_reply_timeout_s = 1, max_reply_timeout_s = 5;
constexpr double reply_timeout_fraction = 0.25;
// Reply timeout for requests that follow an unanswered request while the store stays silent. It is short
// because a caller may send many requests in a row and must still meet its own timeout.
constexpr double unresponsive_retry_s = 0.05;

error connection_lost() {
  return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "the connection to the store was lost",
                    "check whether the process that created the id has exited or crashed");
}

std::string store_name(const store_address& address) {
  return fmt::format("the store at {} port {}", address.host, address.port);
}

std::string local_host(int connected_socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = "";
  if (getsockname(connected_socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, nullptr, 0,
                  NI_NUMERICHOST) != 0)
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     "communicator_create: the local address of the store connection is unknown");
  return host;
}

// Client of a TCP store. Several threads can wait for different keys on the same connection. A thread that
// finds no reader becomes the reader for all threads. The other threads sleep until their reply has arrived or
// the reader stops.
class tcp_client final : public store {
 public:
  tcp_client(file_descriptor socket, const store_address& address, double timeout_s)
      : m_socket(std::move(socket)),
        m_name(store_name(address)),
        m_fallback_secret(fallback_secret(address.secret)),
        m_timeout_s(timeout_s),
        m_reply_timeout_s(
            std::clamp(reply_timeout_fraction * timeout_s, min_reply_timeout_s, max_reply_timeout_s)) {}

  std::string name() const override { return m_name; }

  void set(const std::string& key, std::span<const std::byte> value) override {
    send(request_kind::set, 0, key, value);
  }

  void set_if_absent(const std::string& key, std::span<const std::byte> value) override {
    send(request_kind::set_if_absent, 0, key, value);
  }

  std::unique_ptr<fallback_store> make_fallback_store() override {
    return fallback_store::create(m_socket.get(), m_fallback_secret);
  }

  void disconnect() noexcept override { ::shutdown(m_socket.get(), SHUT_RDWR); }

  std::shared_ptr<store> connect_fallback_store(const fallback_address& address, int rank, int size,
                                                double timeout_s) override {
    return connect_tcp_store({address.host, address.port, m_fallback_secret}, rank, size, timeout_s);
  }

  void erase(const std::string& key) override { send(request_kind::erase, 0, key, {}); }

  void release(const std::string& scope, int size) override {
    const auto ranks = static_cast<std::uint32_t>(size);
    send(request_kind::release, 0, scope, std::as_bytes(std::span(&ranks, 1)));
  }

  bool is_disconnected(int rank) override {
    try {
      get(fmt::format("{}{}", disconnected_prefix, rank), {}, 0);
      return true;
    } catch (const error& failure) {
      if (failure.info().status != ISTHMUS_ERROR_TIMEOUT) throw;
      return false;
    }
  }

  void get(const std::string& key, std::span<std::byte> value, double timeout_s) override {
    const bool is_immediate = timeout_s <= 0;
    pending_reply pending;
    const std::uint32_t id = register_request(pending);
    try {
      send(is_immediate ? request_kind::try_get : request_kind::get, id, key, {});
      if (is_immediate)
        wait_for_immediate_reply(pending);
      else
        wait(pending, deadline_after(timeout_s));
    } catch (...) {
      unregister_request(id);
      throw;
    }
    unregister_request(id);
    if (!pending.has_arrived && !is_immediate) send(request_kind::cancel, id, "", {});
    if (!pending.has_arrived || pending.is_absent)
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("store key {} was not set within {} s", key, timeout_s), "",
                       is_immediate && !pending.has_arrived ? ETIMEDOUT : 0);
    if (pending.value.size() != value.size())
      throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                       fmt::format("store key {} holds {} bytes, {} were expected", key, pending.value.size(),
                                   value.size()));
    std::copy(pending.value.begin(), pending.value.end(), value.begin());
  }

 private:
  struct pending_reply {
    bool has_arrived = false;
    bool is_absent = false;
    std::vector<std::byte> value;
  };

  std::uint32_t register_request(pending_reply& pending) {
    const std::lock_guard lock(m_mutex);
    const std::uint32_t id = ++m_last_id;
    m_pending[id] = &pending;
    return id;
  }

  void unregister_request(std::uint32_t id) {
    const std::lock_guard lock(m_mutex);
    m_pending.erase(id);
  }

  void send(request_kind kind, std::uint32_t id, const std::string& key, std::span<const std::byte> value) {
    if (key.size() > max_key_bytes || value.size() > max_value_bytes)
      throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                       fmt::format("store: the value has {} bytes and the key {}, must have at most {} and {}",
                                   value.size(), key.size(), max_value_bytes, max_key_bytes),
                       "use the store for set-up only, not for payload");
    const request_header header{kind, id, static_cast<std::uint32_t>(key.size()),
                                static_cast<std::uint32_t>(value.size())};
    std::vector<std::byte> message(sizeof header + key.size() + value.size());
    std::memcpy(message.data(), &header, sizeof header);
    std::memcpy(message.data() + sizeof header, key.data(), key.size());
    if (!value.empty()) std::memcpy(message.data() + sizeof header + key.size(), value.data(), value.size());
    const std::lock_guard lock(m_send_mutex);
    if (!send_all(m_socket.get(), message, deadline_after(m_timeout_s))) throw connection_lost();
  }

  void wait_for_immediate_reply(pending_reply& pending) {
    const auto reply_timeout =
        std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(m_reply_timeout_s));
    const auto deadline = clock::now() + reply_timeout;
    if (clock::now() < m_unresponsive_until.load()) wait(pending, deadline_after(unresponsive_retry_s));
    if (pending.has_arrived || clock::now() < m_unresponsive_until.load()) return;
    wait(pending, deadline);
    if (!pending.has_arrived) m_unresponsive_until = clock::now() + reply_timeout;
  }

  void wait(pending_reply& pending, clock::time_point deadline) {
    std::unique_lock lock(m_mutex);
    while (!pending.has_arrived && clock::now() < deadline) {
      if (m_is_lost) throw connection_lost();
      if (m_has_reader) {
        m_condition.wait_until(lock, deadline);
        continue;
      }
      m_has_reader = true;
      lock.unlock();
      bool is_alive = true;
      try {
        is_alive = !wait_readable(m_socket.get(), deadline) || receive();
      } catch (...) {  // interrupted: another thread must become the reader
        lock.lock();
        m_has_reader = false;
        m_condition.notify_all();
        throw;
      }
      lock.lock();
      m_has_reader = false;
      m_is_lost = m_is_lost || !is_alive;
      deliver();
      m_condition.notify_all();
    }
  }

  // Only the reading thread calls this. Returns false if the connection is lost.
  bool receive() {
    std::byte chunk[65536];
    const ssize_t received_bytes = recv(m_socket.get(), chunk, sizeof chunk, 0);
    if (received_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    if (received_bytes <= 0) return false;
    m_input.insert(m_input.end(), chunk, chunk + received_bytes);
    m_unresponsive_until = clock::time_point::min();
    return true;
  }

  // Delivers complete replies and drops replies to abandoned requests. The caller holds the mutex.
  void deliver() {
    std::span<const std::byte> remaining(m_input);
    tcp::reply reply_message;
    parse_result result = parse_reply(remaining, reply_message);
    for (; result == parse_result::complete; result = parse_reply(remaining, reply_message)) {
      if (const auto waiter = m_pending.find(reply_message.header.id); waiter != m_pending.end()) {
        waiter->second->has_arrived = true;
        waiter->second->is_absent = reply_message.header.kind == reply_kind::absent;
        waiter->second->value.assign(reply_message.value.begin(), reply_message.value.end());
      }
      remaining = remaining.subspan(reply_message.bytes);
    }
    m_is_lost = m_is_lost || result == parse_result::malformed;  // not a store of this protocol
    m_input.erase(m_input.begin(), m_input.end() - static_cast<std::ptrdiff_t>(remaining.size()));
  }

  file_descriptor m_socket;
  const std::string m_name;
  const store_secret m_fallback_secret;
  const double m_timeout_s, m_reply_timeout_s;
  std::mutex m_send_mutex;
  std::mutex m_mutex;
  std::condition_variable m_condition;
  std::atomic<clock::time_point> m_unresponsive_until{clock::time_point::min()};  // its process may be stopped
  bool m_has_reader = false;
  bool m_is_lost = false;
  std::uint32_t m_last_id = 0;
  std::map<std::uint32_t, pending_reply*> m_pending;
  std::vector<std::byte> m_input;
};

// The random part spreads the retries of ranks that were evicted at the same time.
void pause_before_retry(int attempt, clock::time_point deadline) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const double max_pause_s = std::min(0.2, 0.005 * (1 << std::min(attempt, 6)));
  const double pause = std::uniform_real_distribution<double>(max_pause_s / 2, max_pause_s)(random);
  throw_if_interrupted("the connection to the store");
  sleep_until(std::min(deadline, deadline_after(pause)));
}

// Connects one rank to the store and authenticates both sides.
class store_connector {
 public:
  store_connector(const store_address& address, int rank, int size, double timeout_s)
      : m_address(address),
        m_rank(rank),
        m_size(size),
        m_timeout_s(timeout_s),
        m_deadline(deadline_after(timeout_s)) {}

  // The store may evict this connection before it is authenticated, so this function retries until the
  // deadline. A closed port, a foreign store and a refusal are final.
  file_descriptor connect() const {
    for (int attempt = 0;; ++attempt) {
      file_descriptor socket = connect_to({m_address.host, m_address.port}, m_deadline);
      if (authenticate(socket.get())) return socket;
      if (clock::now() >= m_deadline) throw timeout();
      pause_before_retry(attempt, m_deadline);
    }
  }

 private:
  template <typename Message>
  bool send(int fd, const Message& message) const {
    return send_all(fd, std::as_bytes(std::span(&message, 1)), m_deadline);
  }
  template <typename Message>
  bool receive(int fd, Message& message) const {
    return receive_all(fd, std::as_writable_bytes(std::span(&message, 1)), m_deadline);
  }

  // Returns false if the store closed the connection before it accepted or refused the rank.
  bool authenticate(int fd) const {
    const hello own_hello{{protocol_magic, protocol_version}, m_rank, m_size, make_secret()};
    challenge store_challenge{};
    if (!send(fd, own_hello) || !receive(fd, store_challenge)) return false;
    check(own_hello, store_challenge);
    welcome reply_message{};
    if (!send(fd, proof_of_rank(m_address.secret, own_hello, store_challenge.store_nonce)) ||
        !receive(fd, reply_message))
      return false;
    reply_message.reason[sizeof reply_message.reason - 1] = '\0';
    if (reply_message.accepted != 1)
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format("communicator_create: the store refused rank {}: {}", m_rank, reply_message.reason),
          "create one id per communicator, and use a unique rank and the same size on every rank");
    return true;
  }

  // The store must prove that it has the secret before this rank sends its own proof.
  void check(const hello& own_hello, const challenge& store_challenge) const {
    if (store_challenge.header.magic == protocol_magic && store_challenge.header.version != protocol_version)
      throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                       fmt::format("communicator_create: rank {} uses store protocol {}, {} uses {}", m_rank,
                                   protocol_version, store_name(m_address), store_challenge.header.version),
                       "use the same version of Isthmus on every rank");
    const proof expected_proof = proof_of_store(m_address.secret, own_hello, store_challenge.store_nonce);
    if (store_challenge.header.magic != protocol_magic ||
        !equal_proofs(store_challenge.store_proof, expected_proof))
      throw make_error(
          ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
          fmt::format("communicator_create: the server at {} port {} cannot prove that it has the secret of "
                      "rank {}'s id",
                      m_address.host, m_address.port, m_rank),
          "check that the id is current: the process that created it may have exited, and another program may "
          "use its port");
  }

  error timeout() const {
    return make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                      fmt::format("communicator_create: {} did not accept rank {} within {} s",
                                  store_name(m_address), m_rank, m_timeout_s),
                      "check whether the process that created the id is stopped, overloaded or out of "
                      "descriptors, or its port is "
                      "flooded");
  }

  const store_address& m_address;
  const int m_rank, m_size;
  const double m_timeout_s;
  const clock::time_point m_deadline;
};

}  // namespace

isthmus_unique_id start_tcp_store(const char* address, const server_limits& limits) {
  endpoint target = parse_endpoint(address);
  file_descriptor listener = listen_on(target);
  const store_secret secret = make_secret();
  const isthmus_unique_id id = make_unique_id({target.host, target.port, secret});
  serve_store(std::make_unique<server>(std::move(listener), secret, limits));
  return id;
}

std::shared_ptr<store> connect_tcp_store(const store_address& address, int rank, int size, double timeout_s) {
  return std::make_shared<tcp_client>(store_connector(address, rank, size, timeout_s).connect(), address,
                                      timeout_s);
}

fallback_store::fallback_store(file_descriptor listener, const tcp::endpoint& address,
                               const store_secret& secret)
    : m_listener(std::move(listener)), m_secret(secret) {
  copy_text(m_address.host, sizeof m_address.host, address.host);
  m_address.port = address.port;
}

std::unique_ptr<fallback_store> fallback_store::create(int connected_socket, const store_secret& secret) {
  try {
    tcp::endpoint address{local_host(connected_socket), 0};
    file_descriptor listener = tcp::listen_on(address);
    return std::unique_ptr<fallback_store>(new fallback_store(std::move(listener), address, secret));
  } catch (const error& failure) {
    log(log_level::warning, "this rank cannot serve a fallback store if the store is lost: {}", failure.what());
    return nullptr;
  }
}

std::unique_ptr<fallback_store> store::make_fallback_store() { return nullptr; }

std::shared_ptr<store> store::connect_fallback_store(const fallback_address&, int, int, double) {
  return nullptr;
}

void fallback_store::serve(double idle_timeout_s) {
  tcp::server_limits limits;
  limits.idle_timeout_s = idle_timeout_s;
  tcp::serve_store(std::make_unique<tcp::server>(std::move(m_listener), m_secret, limits));
}

}  // namespace isthmus
