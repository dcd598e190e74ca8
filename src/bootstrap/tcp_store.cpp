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
#include "bootstrap/standby.hpp"
#include "bootstrap/store_service.hpp"
#include "bootstrap/tcp_protocol.hpp"

namespace isthmus {
namespace {

using namespace tcp;

// A request that the store answers at once may still take this long on a busy machine; where less is waited for
// ranks, less for the store.
constexpr double least_answer_s = 1, most_answer_s = 5;
constexpr double answer_share = 0.25;
// For as long again after a request that was left unanswered, unless the store has said something since: many
// may be asked in a row, and who asks has its own timeout to keep.
constexpr double silent_answer_s = 0.05;

error lost() {
  return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "the connection to the store was lost",
                    "the process that made the id ended or crashed");
}

// Several threads may wait for different keys on the one connection: whoever finds nobody reading reads for
// all, the others sleep until their answer is there or the reader steps down.
class tcp_client final : public store {
 public:
  tcp_client(descriptor socket, const store_secret& secret, double timeout_s)
      : m_socket(std::move(socket)),
        m_fallback_secret(fallback_secret(secret)),
        m_timeout_s(timeout_s),
        m_answer_s(std::clamp(answer_share * timeout_s, least_answer_s, most_answer_s)) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    send(request_kind::set, 0, key, value);
  }

  void set_if_absent(const std::string& key, std::span<const std::byte> value) override {
    send(request_kind::set_if_absent, 0, key, value);
  }

  std::unique_ptr<fallback_store> make_fallback_store() override { return fallback_store::create(m_socket.get(), m_fallback_secret); }

  std::shared_ptr<store> connect_fallback_store(const fallback_address& where, int rank, int size,
                                         double timeout_s) override {
    return connect_tcp_store({where.host, where.port, m_fallback_secret}, rank, size, timeout_s);
  }

  void erase(const std::string& key) override { send(request_kind::erase, 0, key, {}); }

  bool is_disconnected(int rank) override {
    try {
      get(fmt::format("{}{}", left_key, rank), {}, 0);
      return true;
    } catch (const error& failure) {
      if (failure.info().status != ISTHMUS_ERROR_TIMEOUT) throw;
      return false;
    }
  }

  void get(const std::string& key, std::span<std::byte> value, double timeout_s) override {
    const bool at_once = timeout_s <= 0;
    answer pending;
    const std::uint32_t id = enlist(pending);
    try {
      send(at_once ? request_kind::try_get : request_kind::get, id, key, {});
      if (at_once)
        wait_for_prompt(pending);
      else
        wait(pending, deadline_after(timeout_s));
    } catch (...) {
      dismiss(id);
      throw;
    }
    dismiss(id);
    if (!pending.arrived && !at_once) send(request_kind::cancel, id, "", {});
    if (!pending.arrived || pending.absent)
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("no value for {} within {} s", key, timeout_s), "",
                       at_once && !pending.arrived ? ETIMEDOUT : 0);
    if (pending.value.size() != value.size())
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format("{} holds {} bytes where {} were expected", key, pending.value.size(), value.size()));
    std::copy(pending.value.begin(), pending.value.end(), value.begin());
  }

 private:
  struct answer {
    bool arrived = false;
    bool absent = false;
    std::vector<std::byte> value;
  };

  std::uint32_t enlist(answer& pending) {
    const std::lock_guard lock(m_mutex);
    const std::uint32_t id = ++m_last_id;
    m_waiting[id] = &pending;
    return id;
  }

  void dismiss(std::uint32_t id) {
    const std::lock_guard lock(m_mutex);
    m_waiting.erase(id);
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
    if (!send_all(m_socket.get(), message, deadline_after(m_timeout_s))) throw lost();
  }

  void wait_for_prompt(answer& pending) {
    const auto patience =
        std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(m_answer_s));
    const auto deadline = clock::now() + patience;
    if (clock::now() < m_silent_until.load()) wait(pending, deadline_after(silent_answer_s));
    if (pending.arrived || clock::now() < m_silent_until.load()) return;
    wait(pending, deadline);
    if (!pending.arrived) m_silent_until = clock::now() + patience;
  }

  void wait(answer& pending, clock::time_point deadline) {
    std::unique_lock lock(m_mutex);
    while (!pending.arrived && clock::now() < deadline) {
      if (m_lost) throw lost();
      if (m_reading) {
        m_changed.wait_until(lock, deadline);
        continue;
      }
      m_reading = true;
      lock.unlock();
      bool alive = true;
      try {
        alive = !wait_readable(m_socket.get(), deadline) || receive();
      } catch (...) {  // interrupted: another thread has to read now
        lock.lock();
        m_reading = false;
        m_changed.notify_all();
        throw;
      }
      lock.lock();
      m_reading = false;
      m_lost = m_lost || !alive;
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
    m_in.insert(m_in.end(), chunk, chunk + received);
    m_silent_until = clock::time_point::min();
    return true;
  }

  // With the mutex held: hands out complete answers; those of requests that were given up are dropped.
  void deliver() {
    std::span<const std::byte> rest(m_in);
    tcp::reply answer;
    parsed result = parse_reply(rest, answer);
    for (; result == parsed::complete; result = parse_reply(rest, answer)) {
      if (const auto found = m_waiting.find(answer.header.id); found != m_waiting.end()) {
        found->second->arrived = true;
        found->second->absent = answer.header.kind == reply_kind::absent;
        found->second->value.assign(answer.value.begin(), answer.value.end());
      }
      rest = rest.subspan(answer.bytes);
    }
    m_lost = m_lost || result == parsed::malformed;  // not a store that we know
    m_in.erase(m_in.begin(), m_in.end() - static_cast<std::ptrdiff_t>(rest.size()));
  }

  descriptor m_socket;
  const store_secret m_fallback_secret;
  const double m_timeout_s, m_answer_s;
  std::mutex m_send_mutex;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::atomic<clock::time_point> m_silent_until{clock::time_point::min()};  // its process may have stopped
  bool m_reading = false;
  bool m_lost = false;
  std::uint32_t m_last_id = 0;
  std::map<std::uint32_t, answer*> m_waiting;
  std::vector<std::byte> m_in;
};

// The random part keeps ranks that were dropped together from coming back together.
void pause_before_retry(int attempt, clock::time_point deadline) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const double longest = std::min(0.2, 0.005 * (1 << std::min(attempt, 6)));
  const double pause = std::uniform_real_distribution<double>(longest / 2, longest)(random);
  throw_if_interrupted("the connection to the store");
  std::this_thread::sleep_until(std::min(deadline, deadline_after(pause)));
}

// One rank's way into the store.
class entrance {
 public:
  entrance(const store_address& address, int rank, int size, double timeout_s)
      : m_address(address),
        m_rank(rank),
        m_size(size),
        m_timeout_s(timeout_s),
        m_deadline(deadline_after(timeout_s)) {}

  // A store full of strangers drops its oldest, which may be we: dialled again until the deadline. A port where
  // nobody listens, a store that is not ours and a refusal are final.
  descriptor enter() const {
    for (int attempt = 0;; ++attempt) {
      descriptor socket = connect_to({m_address.host, m_address.port}, m_deadline);
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
    const hello greeting{{protocol_magic, protocol_version}, m_rank, m_size, make_nonce()};
    challenge asked{};
    if (!send(fd, greeting) || !receive(fd, asked)) return false;
    check(greeting, asked);
    welcome answer{};
    if (!send(fd, proof_of_rank(m_address.secret, greeting, asked.store_nonce)) || !receive(fd, answer))
      return false;
    answer.reason[sizeof answer.reason - 1] = '\0';
    if (answer.accepted != 1)
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format("communicator_create: the store refused rank {}: {}", m_rank, answer.reason),
          "create one id for each communicator and give every rank its own number and the same size");
    return true;
  }

  // Before anything is proved to it, the store has to prove itself.
  void check(const hello& greeting, const challenge& asked) const {
    if (asked.header.magic == protocol_magic && asked.header.version != protocol_version)
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format(
              "communicator_create: rank {} speaks store protocol {}, the store at {} port {} speaks {}",
              m_rank, protocol_version, m_address.host, m_address.port, asked.header.version),
          "use the same version of Isthmus on every rank");
    const proof wanted = proof_of_store(m_address.secret, greeting, asked.store_nonce);
    if (asked.header.magic != protocol_magic || !equal_proofs(asked.store_proof, wanted))
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
  endpoint where = parse_endpoint(address);
  descriptor listener = listen_on(where);
  const store_secret secret = make_secret();
  const isthmus_unique_id id = make_unique_id({where.host, where.port, secret});
  host_store(std::make_unique<server>(std::move(listener), secret, limits));
  return id;
}

std::shared_ptr<store> connect_tcp_store(const store_address& address, int rank, int size, double timeout_s) {
  return std::make_shared<tcp_client>(entrance(address, rank, size, timeout_s).enter(), address.secret,
                                      timeout_s);
}

}  // namespace isthmus
