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
constexpr std::size_t receive_bytes = 65536;  // per recv call

template <typename Message>
std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

void append(std::vector<std::byte>& buffer, std::span<const std::byte> bytes) {
  buffer.insert(buffer.end(), bytes.begin(), bytes.end());
}

double seconds_until(clock::time_point time) {
  return std::chrono::duration<double>(time - clock::now()).count();
}

}  // namespace

server::server(file_descriptor listener, const store_secret& secret, const server_limits& limits)
    : m_listener(std::move(listener)), m_secret(secret), m_limits(limits) {}

bool server::has_connected_ranks() const {
  return std::ranges::any_of(m_connections,
                             [](const auto& each) { return each->state == connection_state::joined; });
}

bool server::is_done() const {
  if (has_connected_ranks()) return false;
  return have_all_joined() || -seconds_until(m_last_connected) > m_limits.idle_timeout_s;
}

bool server::is_abandoned() const {
  return !m_joined_ranks.empty() && !have_all_joined() && !has_connected_ranks();
}

std::vector<int> server::descriptors() const {
  std::vector<int> all{m_listener.get()};
  for (const auto& each : m_connections) all.push_back(each->socket.get());
  return all;
}

double server::add_entries(std::vector<pollfd>& entries) const {
  double timeout_s = has_connected_ranks()
                         ? 3600
                         : std::max(0.0, m_limits.idle_timeout_s + seconds_until(m_last_connected)) + 0.001;
  const double pause = seconds_until(m_accept_after);
  entries.push_back({pause > 0 ? -1 : m_listener.get(), POLLIN, 0});  // poll ignores negative descriptors
  if (pause > 0) timeout_s = std::min(timeout_s, pause);
  for (const auto& each : m_connections) {
    entries.push_back(
        {each->socket.get(), static_cast<short>(each->output.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (is_unauthenticated(*each)) timeout_s = std::min(timeout_s, seconds_until(each->deadline));
  }
  return timeout_s;
}

void server::serve(std::span<const pollfd> entries) {
  const bool had_ranks = has_connected_ranks();
  for (std::size_t i = 1; i < entries.size(); ++i) serve(*m_connections[i - 1], entries[i].revents);
  if (had_ranks) m_last_connected = clock::now();
  // Accept last: a connection that has sent its proof is then authenticated and cannot be evicted.
  if (entries[0].revents != 0) accept_all();
  for (const auto& each : m_connections)
    if (each->state == connection_state::closed && each->has_joined)
      m_values[fmt::format("{}{}", disconnected_prefix, each->greeting.rank)] = {};
  std::erase_if(m_connections, [](const auto& each) { return each->state == connection_state::closed; });
}

void server::accept_all() {
  while (true) {
    file_descriptor socket(accept4(m_listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      const int code = errno;
      if (code == EINTR || code == ECONNABORTED) continue;
      if (code == EAGAIN || code == EWOULDBLOCK) return;
      m_lacks_descriptors = code == EMFILE;
      // Out of descriptors or memory. The connection stays in the queue and the listener stays readable, so
      // polling again immediately would spin.
      if (evict_oldest_unauthenticated()) continue;
      log(std::exchange(m_has_logged_exhaustion, true) ? log_level::debug : log_level::warning,
          "store: cannot accept a connection: {}; raise the limit of open files (ulimit -n)",
          std::strerror(code));
      m_accept_after = deadline_after(no_descriptor_pause_s);
      return;
    }
    m_lacks_descriptors = false;
    const auto unauthenticated_count =
        std::ranges::count_if(m_connections, [](const auto& each) { return is_unauthenticated(*each); });
    if (static_cast<std::size_t>(unauthenticated_count) >= m_limits.max_unauthenticated)
      evict_oldest_unauthenticated();
    auto accepted = std::make_unique<connection>();
    accepted->socket = std::move(socket);
    accepted->deadline = deadline_after(m_limits.handshake_timeout_s);
    m_connections.push_back(std::move(accepted));
  }
}

// An evicted rank connects again, so idle connections cannot keep the ranks out.
bool server::evict_oldest_unauthenticated() {
  const auto connection_entry =
      std::ranges::find_if(m_connections, [](const auto& each) { return is_unauthenticated(*each); });
  if (connection_entry == m_connections.end()) return false;
  m_connections.erase(connection_entry);
  return true;
}

void server::serve(connection& client, short events) {
  if ((events & POLLIN) != 0)
    receive(client);
  else if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0)
    client.state = connection_state::closed;
  if (client.state != connection_state::closed && (events & POLLOUT) != 0) flush(client);
  if (is_unauthenticated(client) && clock::now() >= client.deadline) client.state = connection_state::closed;
}

void server::receive(connection& client) {
  std::byte chunk[receive_bytes];
  // Read at most one message from an unauthenticated connection.
  const std::size_t max_bytes =
      client.state == connection_state::awaiting_hello ? sizeof(hello) : sizeof(proof);
  const std::size_t room =
      client.state == connection_state::joined ? sizeof chunk : max_bytes - client.input.size();
  const ssize_t received_bytes = recv(client.socket.get(), chunk, room, 0);
  if (received_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (received_bytes <= 0) {
    client.state = connection_state::closed;
    return;
  }
  append(client.input, {chunk, static_cast<std::size_t>(received_bytes)});
  switch (client.state) {
    case connection_state::awaiting_hello: answer_hello(client); return;
    case connection_state::awaiting_proof: check_proof(client); return;
    case connection_state::joined: parse(client); return;
    case connection_state::closed: return;
  }
}

// Replies to a hello with the store's proof and the nonce for the rank's proof.
void server::answer_hello(connection& client) {
  const auto header = tcp::parse<protocol_header>(client.input);
  if (header && header->magic != protocol_magic) {
    client.state = connection_state::closed;
    return;
  }
  const auto greeting = tcp::parse<hello>(client.input);
  if (!greeting) return;
  client.input.clear();
  challenge message{{protocol_magic, protocol_version}, {}, {}};
  const bool is_known_version = greeting->header.version == protocol_version;
  if (is_known_version) {
    client.greeting = *greeting;
    client.store_nonce = message.store_nonce = make_secret();
    message.store_proof = proof_of_store(m_secret, *greeting, client.store_nonce);
  }
  append(client.output, bytes_of(message));
  client.state = connection_state::awaiting_proof;
  flush(client);
  if (!is_known_version)
    client.state = connection_state::closed;  // the peer reads the store's version in the reply
}

void server::check_proof(connection& client) {
  const auto client_proof = tcp::parse<proof>(client.input);
  if (!client_proof) return;
  client.input.clear();
  if (!equal_proofs(*client_proof, proof_of_rank(m_secret, client.greeting, client.store_nonce))) {
    // Warn only once: unauthenticated peers must not be able to fill the log.
    log(m_rejections++ == 0 ? log_level::warning : log_level::debug,
        "store: closed a connection without the right secret");
    client.state = connection_state::closed;
    return;
  }
  const std::string reason = refusal_reason(client.greeting);
  welcome message{};
  message.accepted = reason.empty() ? 1 : 0;
  copy_text(message.reason, sizeof message.reason, reason);
  append(client.output, bytes_of(message));
  flush(client);
  if (client.state == connection_state::closed) return;
  if (!reason.empty()) {
    client.state = connection_state::closed;
    return;
  }
  client.state = connection_state::joined;
  client.has_joined = true;
  m_size = client.greeting.size;
  m_joined_ranks.insert(client.greeting.rank);
  m_last_connected = clock::now();
}

std::string server::refusal_reason(const hello& greeting) const {
  if (m_size != 0 && greeting.size != m_size)
    return fmt::format("size = {} on this rank, but {} on the ranks that joined before", greeting.size, m_size);
  if (greeting.rank < 0 || greeting.rank >= greeting.size)
    return fmt::format("rank = {} must be in [0, {})", greeting.rank, greeting.size);
  if (m_joined_ranks.contains(greeting.rank))
    return fmt::format("rank {} has already joined: an id is for one communicator, and each rank joins once",
                       greeting.rank);
  return "";
}

void server::flush(connection& client) {
  while (!client.output.empty()) {
    const ssize_t sent_bytes =
        send(client.socket.get(), client.output.data(), client.output.size(), MSG_NOSIGNAL);
    if (sent_bytes > 0) {
      client.output.erase(client.output.begin(), client.output.begin() + sent_bytes);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EINTR) continue;
    client.state = connection_state::closed;
    return;
  }
}

void server::parse(connection& client) {
  std::span<const std::byte> remaining(client.input);
  request message;
  parse_result result = parse_request(remaining, message);
  while (result == parse_result::complete && client.state == connection_state::joined) {
    handle(client, message);
    remaining = remaining.subspan(message.bytes);
    result = parse_request(remaining, message);
  }
  if (result == parse_result::malformed) {
    log(log_level::warning, "store: closed the connection of rank {}: malformed request", client.greeting.rank);
    client.state = connection_state::closed;
  }
  client.input.erase(client.input.begin(), client.input.end() - static_cast<std::ptrdiff_t>(remaining.size()));
}

void server::handle(connection& client, const request& message) {
  std::string key(message.key);
  const std::uint32_t id = message.header.id;
  switch (message.header.kind) {
    case request_kind::set: publish(key, message.value); return;
    case request_kind::set_if_absent:
      if (!m_values.contains(key)) publish(key, message.value);
      return;
    case request_kind::erase: m_values.erase(key); return;
    case request_kind::release:
      if (const auto size = tcp::parse<std::uint32_t>(message.value)) release_scope(m_values, key, *size);
      return;
    case request_kind::cancel: client.pending_gets.erase(id); return;
    case request_kind::get:
    case request_kind::try_get: break;
  }
  const auto entry = m_values.find(key);
  if (entry != m_values.end())
    reply(client, reply_kind::present, id, entry->second);
  else if (message.header.kind == request_kind::try_get)
    reply(client, reply_kind::absent, id, {});
  else
    client.pending_gets[id] = std::move(key);
  flush(client);
}

void server::publish(const std::string& key, std::span<const std::byte> value) {
  m_values[key].assign(value.begin(), value.end());
  for (const auto& each : m_connections) {
    std::erase_if(each->pending_gets, [&](const auto& request_and_key) {
      if (request_and_key.second != key) return false;
      reply(*each, reply_kind::present, request_and_key.first, value);
      return true;
    });
    if (each->state == connection_state::joined) flush(*each);
  }
}

void server::reply(connection& client, reply_kind kind, std::uint32_t id, std::span<const std::byte> value) {
  append(client.output, bytes_of(reply_header{kind, id, static_cast<std::uint32_t>(value.size()), 0}));
  append(client.output, value);
}

}  // namespace isthmus::tcp
