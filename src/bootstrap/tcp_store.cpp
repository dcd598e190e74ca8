#include "bootstrap/tcp_store.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "bootstrap/tcp_protocol.hpp"
#include "bootstrap/tcp_server.hpp"
#include "runtime/error.hpp"

namespace isthmus {
namespace {

using namespace tcp;

// A request that the store answers at once may still take this long on a busy machine.
constexpr double answer_s = 5;

error lost() {
  return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE, "the connection to the store was lost",
                    "the process that made the id ended or crashed");
}

// Several threads may wait for different keys on the one connection: whoever finds nobody reading reads for
// all, the others sleep until their answer is there or the reader steps down.
class tcp_client final : public store {
 public:
  tcp_client(descriptor socket, double timeout_s) : m_socket(std::move(socket)), m_timeout_s(timeout_s) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    send(request_kind::set, 0, key, value);
  }

  void erase(const std::string& key) override { send(request_kind::erase, 0, key, {}); }

  void get(const std::string& key, std::span<std::byte> value, double timeout_s) override {
    const bool at_once = timeout_s <= 0;
    const auto deadline = deadline_after(at_once ? answer_s : timeout_s);
    answer slot;
    const std::uint32_t id = enlist(slot);
    try {
      send(at_once ? request_kind::try_get : request_kind::get, id, key, {});
      wait(slot, deadline);
    } catch (...) {
      dismiss(id);
      throw;
    }
    dismiss(id);
    if (!slot.arrived && !at_once) send(request_kind::cancel, id, "", {});
    if (!slot.arrived || slot.absent)
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("no value for {} within {} s", key, timeout_s));
    if (slot.value.size() != value.size())
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format("{} holds {} bytes where {} were expected", key, slot.value.size(), value.size()));
    std::copy(slot.value.begin(), slot.value.end(), value.begin());
  }

 private:
  struct answer {
    bool arrived = false;
    bool absent = false;
    std::vector<std::byte> value;
  };

  std::uint32_t enlist(answer& slot) {
    const std::lock_guard lock(m_mutex);
    const std::uint32_t id = ++m_last_id;
    m_waiting[id] = &slot;
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

  void wait(answer& slot, clock::time_point deadline) {
    std::unique_lock lock(m_mutex);
    while (!slot.arrived && clock::now() < deadline) {
      if (m_lost) throw lost();
      if (m_reading) {
        m_changed.wait_until(lock, deadline);
        continue;
      }
      m_reading = true;
      lock.unlock();
      const bool readable = wait_readable(m_socket.get(), deadline);
      const bool alive = !readable || receive();
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
    return true;
  }

  // With the mutex held: hands out complete answers; those of requests that were given up are dropped.
  void deliver() {
    std::span<const std::byte> rest(m_in);
    while (rest.size() >= sizeof(reply_header)) {
      reply_header header;
      std::memcpy(&header, rest.data(), sizeof header);
      if (header.value_bytes > max_value_bytes) {
        m_lost = true;  // not a store that we know
        return;
      }
      if (rest.size() < sizeof header + header.value_bytes) break;
      const auto value = rest.subspan(sizeof header, header.value_bytes);
      if (const auto found = m_waiting.find(header.id); found != m_waiting.end()) {
        found->second->arrived = true;
        found->second->absent = header.kind == reply_kind::absent;
        found->second->value.assign(value.begin(), value.end());
      }
      rest = rest.subspan(sizeof header + header.value_bytes);
    }
    m_in.erase(m_in.begin(), m_in.end() - static_cast<std::ptrdiff_t>(rest.size()));
  }

  descriptor m_socket;
  const double m_timeout_s;
  std::mutex m_send_mutex;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  bool m_reading = false;
  bool m_lost = false;
  std::uint32_t m_last_id = 0;
  std::map<std::uint32_t, answer*> m_waiting;
  std::vector<std::byte> m_in;
};

// Servers of this process. Those that are done are collected with the next one; the rest at its end.
class server_list {
 public:
  void add(std::unique_ptr<server> fresh) {
    const std::lock_guard lock(m_mutex);
    std::erase_if(m_servers, [](const auto& each) { return each->finished(); });
    m_servers.push_back(std::move(fresh));
  }

 private:
  std::mutex m_mutex;
  std::vector<std::unique_ptr<server>> m_servers;
};

}  // namespace

isthmus_unique_id start_tcp_store(const char* address) {
  static server_list servers;
  endpoint where = parse_endpoint(address);
  descriptor listener = listen_on(where);
  const store_secret secret = make_secret();
  const isthmus_unique_id id = make_unique_id({where.host, where.port, secret});
  servers.add(std::make_unique<server>(std::move(listener), secret));
  return id;
}

std::shared_ptr<store> connect_tcp_store(const store_address& address, int rank, int size, double timeout_s) {
  const auto deadline = deadline_after(timeout_s);
  descriptor socket = connect_to({address.host, address.port}, deadline);
  const greeting hello{address.secret, protocol_magic, protocol_version, rank, size};
  welcome answer{};
  if (!send_all(socket.get(), std::as_bytes(std::span(&hello, 1)), deadline) ||
      !receive_all(socket.get(), std::as_writable_bytes(std::span(&answer, 1)), deadline))
    throw make_error(clock::now() >= deadline ? ISTHMUS_ERROR_TIMEOUT : ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                     fmt::format("communicator_create: the store at {} port {} did not let rank {} in",
                                 address.host, address.port, rank),
                     "the id's secret is not the store's, or the process that made the id has ended");
  answer.reason[sizeof answer.reason - 1] = '\0';
  if (answer.accepted != 1)
    throw make_error(
        ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
        fmt::format("communicator_create: the store refused rank {}: {}", rank, answer.reason),
        "create one id for each communicator and give every rank its own number and the same size");
  return std::make_shared<tcp_client>(std::move(socket), timeout_s);
}

}  // namespace isthmus
