#include "bootstrap/tcp_server.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus::tcp {
namespace {

constexpr double no_descriptor_pause_s = 0.1;
constexpr std::size_t receive_bytes = 65536;  // at a time

template <typename Message>
std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

void append(std::vector<std::byte>& buffer, std::span<const std::byte> bytes) {
  buffer.insert(buffer.end(), bytes.begin(), bytes.end());
}

double seconds_until(clock::time_point when) {
  return std::chrono::duration<double>(when - clock::now()).count();
}

}  // namespace

server::server(descriptor listener, const store_secret& secret, const server_limits& limits)
    : m_listener(std::move(listener)), m_secret(secret), m_limits(limits) {}

bool server::has_guests() const {
  return std::ranges::any_of(m_connections, [](const auto& each) { return each->stage == state::guest; });
}

bool server::done() const {
  if (has_guests()) return false;
  const bool all_came = m_size > 0 && m_joined.size() == static_cast<std::size_t>(m_size);
  return all_came || -seconds_until(m_last_guest) > m_limits.unused_s;
}

double server::add_entries(std::vector<pollfd>& entries) const {
  double latest = has_guests() ? 3600 : std::max(0.0, m_limits.unused_s + seconds_until(m_last_guest)) + 0.001;
  const double pause = seconds_until(m_accept_after);
  entries.push_back({pause > 0 ? -1 : m_listener.get(), POLLIN, 0});  // poll skips negative descriptors
  if (pause > 0) latest = std::min(latest, pause);
  for (const auto& each : m_connections) {
    entries.push_back(
        {each->socket.get(), static_cast<short>(each->out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (is_stranger(*each)) latest = std::min(latest, seconds_until(each->deadline));
  }
  return latest;
}

void server::serve(std::span<const pollfd> entries) {
  const bool guests = has_guests();
  for (std::size_t i = 1; i < entries.size(); ++i) serve(*m_connections[i - 1], entries[i].revents);
  if (guests) m_last_guest = clock::now();
  // After the others: whoever has sent its proof is no stranger any more when a place is needed.
  if (entries[0].revents != 0) accept_all();
  for (const auto& each : m_connections)
    if (each->stage == state::dead && each->has_joined)
      m_values[fmt::format("{}{}", left_key, each->greeting.rank)] = {};
  std::erase_if(m_connections, [](const auto& each) { return each->stage == state::dead; });
}

void server::accept_all() {
  while (true) {
    descriptor socket(accept4(m_listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      const int code = errno;
      if (code == EINTR || code == ECONNABORTED) continue;
      if (code == EAGAIN || code == EWOULDBLOCK) return;
      // Out of descriptors or memory. The caller stays in the queue, so the listener stays readable: polling it
      // at once would spin.
      if (evict_oldest_stranger()) continue;
      log(std::exchange(m_said_full, true) ? log_level::debug : log_level::warning,
          "store: a connection can't be accepted now: {}; raise the limit of open files (ulimit -n)",
          std::strerror(code));
      m_accept_after = deadline_after(no_descriptor_pause_s);
      return;
    }
    const auto strangers =
        std::ranges::count_if(m_connections, [](const auto& each) { return is_stranger(*each); });
    if (static_cast<std::size_t>(strangers) >= m_limits.strangers) evict_oldest_stranger();
    auto fresh = std::make_unique<connection>();
    fresh->socket = std::move(socket);
    fresh->deadline = deadline_after(m_limits.handshake_s);
    m_connections.push_back(std::move(fresh));
  }
}

// A rank that is evicted dials again; so idle strangers can't keep the ranks out.
bool server::evict_oldest_stranger() {
  const auto oldest = std::ranges::find_if(m_connections, [](const auto& each) { return is_stranger(*each); });
  if (oldest == m_connections.end()) return false;
  m_connections.erase(oldest);
  return true;
}

void server::serve(connection& from, short events) {
  if ((events & POLLIN) != 0)
    receive(from);
  else if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0)
    from.stage = state::dead;
  if (from.stage != state::dead && (events & POLLOUT) != 0) flush(from);
  if (is_stranger(from) && clock::now() >= from.deadline) from.stage = state::dead;
}

void server::receive(connection& from) {
  std::byte chunk[receive_bytes];
  // A stranger's bytes are kept up to one message and not a byte more.
  const std::size_t message = from.stage == state::greeting ? sizeof(hello) : sizeof(proof);
  const std::size_t room = from.stage == state::guest ? sizeof chunk : message - from.in.size();
  const ssize_t received = recv(from.socket.get(), chunk, room, 0);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (received <= 0) {
    from.stage = state::dead;
    return;
  }
  append(from.in, {chunk, static_cast<std::size_t>(received)});
  switch (from.stage) {
    case state::greeting: greet(from); return;
    case state::proving: examine(from); return;
    case state::guest: parse(from); return;
    case state::dead: return;
  }
}

// Answers a hello with the store's proof and a nonce for the rank's.
void server::greet(connection& from) {
  const auto header = parse_header(from.in);
  if (header && header->magic != protocol_magic) {
    from.stage = state::dead;
    return;
  }
  const auto greeting = parse_hello(from.in);
  if (!greeting) return;
  from.in.clear();
  challenge answer{{protocol_magic, protocol_version}, {}, {}};
  const bool known_version = greeting->header.version == protocol_version;
  if (known_version) {
    from.greeting = *greeting;
    from.store_nonce = answer.store_nonce = make_nonce();
    answer.store_proof = proof_of_store(m_secret, *greeting, from.store_nonce);
  }
  append(from.out, bytes_of(answer));
  from.stage = state::proving;
  flush(from);
  if (!known_version) from.stage = state::dead;  // it reads our version in the answer
}

void server::examine(connection& from) {
  const auto shown = parse_proof(from.in);
  if (!shown) return;
  from.in.clear();
  if (!equal_proofs(*shown, proof_of_rank(m_secret, from.greeting, from.store_nonce))) {
    // Said once: strangers must not be able to fill the log.
    log(m_turned_away++ == 0 ? log_level::warning : log_level::debug,
        "store: a connection without the right secret was dropped");
    from.stage = state::dead;
    return;
  }
  const std::string reason = refusal(from.greeting);
  welcome answer{};
  answer.accepted = reason.empty() ? 1 : 0;
  copy_text(answer.reason, sizeof answer.reason, reason);
  append(from.out, bytes_of(answer));
  flush(from);
  if (from.stage == state::dead) return;
  if (!reason.empty()) {
    from.stage = state::dead;
    return;
  }
  from.stage = state::guest;
  from.has_joined = true;
  m_size = from.greeting.size;
  m_joined.insert(from.greeting.rank);
  m_last_guest = clock::now();
}

std::string server::refusal(const hello& greeting) const {
  if (m_size != 0 && greeting.size != m_size)
    return fmt::format("size = {} on this rank, but {} on the ranks that joined before", greeting.size, m_size);
  if (greeting.rank < 0 || greeting.rank >= greeting.size)
    return fmt::format("rank = {} is not in [0, {})", greeting.rank, greeting.size);
  if (m_joined.contains(greeting.rank))
    return fmt::format("rank {} has joined before: an id serves one communicator, and each rank joins once",
                       greeting.rank);
  return "";
}

void server::flush(connection& to) {
  while (!to.out.empty()) {
    const ssize_t sent = send(to.socket.get(), to.out.data(), to.out.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      to.out.erase(to.out.begin(), to.out.begin() + sent);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EINTR) continue;
    to.stage = state::dead;
    return;
  }
}

void server::parse(connection& from) {
  std::span<const std::byte> rest(from.in);
  request asked;
  parsed result = parse_request(rest, asked);
  while (result == parsed::complete && from.stage == state::guest) {
    handle(from, asked);
    rest = rest.subspan(asked.bytes);
    result = parse_request(rest, asked);
  }
  if (result == parsed::malformed) {
    log(log_level::warning, "store: rank {} sent a malformed request and was dropped", from.greeting.rank);
    from.stage = state::dead;
  }
  from.in.erase(from.in.begin(), from.in.end() - static_cast<std::ptrdiff_t>(rest.size()));
}

void server::handle(connection& from, const request& asked) {
  std::string key(asked.key);
  const std::uint32_t id = asked.header.id;
  switch (asked.header.kind) {
    case request_kind::set: publish(key, asked.value); return;
    case request_kind::set_if_absent:
      if (!m_values.contains(key)) publish(key, asked.value);
      return;
    case request_kind::erase: m_values.erase(key); return;
    case request_kind::cancel: from.waiting.erase(id); return;
    case request_kind::get:
    case request_kind::try_get: break;
  }
  const auto found = m_values.find(key);
  if (found != m_values.end())
    reply(from, reply_kind::found, id, found->second);
  else if (asked.header.kind == request_kind::try_get)
    reply(from, reply_kind::absent, id, {});
  else
    from.waiting[id] = std::move(key);
  flush(from);
}

void server::publish(const std::string& key, std::span<const std::byte> value) {
  m_values[key].assign(value.begin(), value.end());
  for (const auto& each : m_connections) {
    const auto wanted = [&](const auto& entry) { return entry.second == key; };
    for (auto entry = std::find_if(each->waiting.begin(), each->waiting.end(), wanted);
         entry != each->waiting.end();
         entry = std::find_if(each->waiting.begin(), each->waiting.end(), wanted)) {
      reply(*each, reply_kind::found, entry->first, value);
      each->waiting.erase(entry);
    }
    if (each->stage == state::guest) flush(*each);
  }
}

void server::reply(connection& to, reply_kind kind, std::uint32_t id, std::span<const std::byte> value) {
  append(to.out, bytes_of(reply_header{kind, id, static_cast<std::uint32_t>(value.size()), 0}));
  append(to.out, value);
}

}  // namespace isthmus::tcp
