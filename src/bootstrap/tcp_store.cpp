#include "bootstrap/tcp_store.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "bootstrap/fallback_store.hpp"
#include "bootstrap/store_service.hpp"
#include "bootstrap/tcp_protocol.hpp"

namespace isthmus {
namespace {

using namespace tcp;

// A request that the store answers at once may still take this long on a busy machine; where less is waited for
// ranks, less for the store.
constexpr double min_reply_timeout_s = 1, max_reply_timeout_s = 5;
constexpr double reply_timeout_fraction = 0.25;
// For as long again after a request that was left unanswered, unless the store has said something since: many
// may be asked in a row, and who asks has its own timeout to keep.
constexpr double unresponsive_retry_s = 0.05;

error connection_lost() {
  return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "the connection to the store was lost",
                    "the process that made the id ended or crashed");
}

// Several threads may wait for different keys on the one connection: whoever finds nobody reading reads for
// all, the others sleep until their answer is there or the reader steps down.
class tcp_client final : public store {
 public:
  tcp_client(file_descriptor socket, const store_secret& secret, double timeout_s)
      : m_socket(std::move(socket)),
        m_fallback_secret(fallback_secret(secret)),
        m_timeout_s(timeout_s),
        m_reply_timeout_s(std::clamp(reply_timeout_fraction * timeout_s, min_reply_timeout_s, max_reply_timeout_s)) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    send(request_kind::set, 0, key, value);
  }

  void set_if_absent(const std::string& key, std::span<const std::byte> value) override {
    send(request_kind::set_if_absent, 0, key, value);
  }

  std::unique_ptr<fallback_store> make_fallback_store() override { return fallback_store::create(m_socket.get(), m_fallback_secret); }

  std::shared_ptr<store> connect_fallback_store(const fallback_address& address, int rank, int size,
                                         double timeout_s) override {
    return connect_tcp_store({address.host, address.port, m_fallback_secret}, rank, size, timeout_s);
  }

  void erase(const std::string& key) override { send(request_kind::erase, 0, key, {}); }

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
                       fmt::format("no value for {} within {} s", key, timeout_s), "",
                       is_immediate && !pending.has_arrived ? ETIMEDOUT : 0);
    if (pending.value.size() != value.size())
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format("{} holds {} bytes where {} were expected", key, pending.value.size(), value.size()));
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
                       fmt::format("a store entry has {} bytes under a key of {}, at most {} and {} fit",
                                   value.size(), key.size(), max_value_bytes, max_key_bytes),
                       "the store is for set-up, not for payload");
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
        m_changed.wait_until(lock, deadline);
        continue;
      }
      m_has_reader = true;
      lock.unlock();
      bool is_alive = true;
      try {
        is_alive = !wait_readable(m_socket.get(), deadline) || receive();
      } catch (...) {  // interrupted: another thread has to read now
        lock.lock();
        m_has_reader = false;
        m_changed.notify_all();
        throw;
      }
      lock.lock();
      m_has_reader = false;
      m_is_lost = m_is_lost || !is_alive;
      deliver();
      m_changed.notify_all();
    }
  }

  // Only the reading thread calls it. False when the connection is gone.
  bool receive() {
    std::byte chunk[65536];
    const ssize_t received = recv(m_socket.get(), chunk, sizeof chunk, 0);
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    if (received <= 0) return false;
    m_input.insert(m_input.end(), chunk, chunk + received);
    m_unresponsive_until = clock::time_point::min();
    return true;
  }

  // With the mutex held: hands out complete answers; those of requests that were given up are dropped.
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
    m_is_lost = m_is_lost || result == parse_result::malformed;  // not a store that we know
    m_input.erase(m_input.begin(), m_input.end() - static_cast<std::ptrdiff_t>(remaining.size()));
  }

  file_descriptor m_socket;
  const store_secret m_fallback_secret;
  const double m_timeout_s, m_reply_timeout_s;
  std::mutex m_send_mutex;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::atomic<clock::time_point> m_unresponsive_until{clock::time_point::min()};  // its process may have stopped
  bool m_has_reader = false;
  bool m_is_lost = false;
  std::uint32_t m_last_id = 0;
  std::map<std::uint32_t, pending_reply*> m_pending;
  std::vector<std::byte> m_input;
};

// The random part keeps ranks that were dropped together from coming back together.
void pause_before_retry(int attempt, clock::time_point deadline) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const double max_pause_s = std::min(0.2, 0.005 * (1 << std::min(attempt, 6)));
  const double pause = std::uniform_real_distribution<double>(max_pause_s / 2, max_pause_s)(random);
  throw_if_interrupted("the connection to the store");
  std::this_thread::sleep_until(std::min(deadline, deadline_after(pause)));
}

// One rank's way into the store.
class store_connector {
 public:
  store_connector(const store_address& address, int rank, int size, double timeout_s)
      : m_address(address),
        m_rank(rank),
        m_size(size),
        m_timeout_s(timeout_s),
        m_deadline(deadline_after(timeout_s)) {}

  // A store full of strangers drops its oldest, which may be we: dialled again until the deadline. A port where
  // nobody listens, a store that is not ours and a refusal are final.
  file_descriptor connect() const {
    for (int attempt = 0;; ++attempt) {
      file_descriptor socket = connect_to({m_address.host, m_address.port}, m_deadline);
      if (shake_hands(socket.get())) return socket;
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

  // False when the store hung up before it decided.
  bool shake_hands(int fd) const {
    const hello own_hello{{protocol_magic, protocol_version}, m_rank, m_size, make_nonce()};
    challenge store_challenge{};
    if (!send(fd, own_hello) || !receive(fd, store_challenge)) return false;
    check(own_hello, store_challenge);
    welcome reply_message{};
    if (!send(fd, proof_of_rank(m_address.secret, own_hello, store_challenge.store_nonce)) || !receive(fd, reply_message))
      return false;
    reply_message.reason[sizeof reply_message.reason - 1] = '\0';
    if (reply_message.accepted != 1)
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format("communicator_create: the store refused rank {}: {}", m_rank, reply_message.reason),
          "create one id for each communicator and give every rank its own number and the same size");
    return true;
  }

  // Before anything is proved to it, the store has to prove itself.
  void check(const hello& own_hello, const challenge& store_challenge) const {
    if (store_challenge.header.magic == protocol_magic && store_challenge.header.version != protocol_version)
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format(
              "communicator_create: rank {} speaks store protocol {}, the store at {} port {} speaks {}",
              m_rank, protocol_version, m_address.host, m_address.port, store_challenge.header.version),
          "use the same version of Isthmus on every rank");
    const proof expected_proof = proof_of_store(m_address.secret, own_hello, store_challenge.store_nonce);
    if (store_challenge.header.magic != protocol_magic || !equal_proofs(store_challenge.store_proof, expected_proof))
      throw make_error(
          ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
          fmt::format("communicator_create: what answers at {} port {} can't prove that it knows the secret of "
                      "rank {}'s id",
                      m_address.host, m_address.port, m_rank),
          "the id belongs to another store, or the process that made it has ended and another program has its "
          "port");
  }

  error timeout() const {
    return make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("communicator_create: the store at {} port {} did not let rank {} in within {} s",
                    m_address.host, m_address.port, m_rank, m_timeout_s),
        "the process that made the id is stopped or overloaded, or its port is flooded");
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
  return std::make_shared<tcp_client>(store_connector(address, rank, size, timeout_s).connect(), address.secret,
                                      timeout_s);
}

}  // namespace isthmus
