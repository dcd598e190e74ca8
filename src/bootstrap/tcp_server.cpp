#include "bootstrap/tcp_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace isthmus::tcp {
namespace {

constexpr double greeting_s = 10;             // a connection that shows no secret by then is dropped
constexpr std::size_t max_strangers = 256;    // connections without a secret at a time
constexpr double linger_s = 5;                // for ranks that still read when this process ends
constexpr std::size_t receive_bytes = 65536;  // at a time

template <typename Header>
std::span<const std::byte> bytes_of(const Header& header) {
  return std::as_bytes(std::span(&header, 1));
}

void append(std::vector<std::byte>& buffer, std::span<const std::byte> bytes) {
  buffer.insert(buffer.end(), bytes.begin(), bytes.end());
}

}  // namespace

server::server(descriptor listener, const store_secret& secret)
    : m_listener(std::move(listener)), m_wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), m_secret(secret) {
  if (m_wake.get() < 0)
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, fmt::format("eventfd: {}", std::strerror(errno)),
                     "raise the limit of open files", errno);
  m_thread = std::thread([this] { loop(); });
}

server::~server() {
  m_stop.store(true);
  wake();
  m_thread.join();
}

void server::wake() {
  const std::lock_guard lock(m_wake_mutex);
  const std::uint64_t one = 1;
  if (m_wake.get() < 0) return;
  [[maybe_unused]] const ssize_t ignored = write(m_wake.get(), &one, sizeof one);
}

// A server that is done leaves no descriptor behind, though its object is collected later.
void server::close_down() {
  m_connections.clear();
  m_listener = descriptor();
  const std::lock_guard lock(m_wake_mutex);
  m_wake = descriptor();
}

// All ranks have come and all have gone.
bool server::done() const {
  const auto guest = [](const auto& each) { return each->welcome; };
  return m_size > 0 && m_joined.size() == static_cast<std::size_t>(m_size) &&
         std::none_of(m_connections.begin(), m_connections.end(), guest);
}

void server::loop() {
  clock::time_point last_call = clock::time_point::max();
  while (!done()) {
    const auto now = clock::now();
    if (m_stop.load() && last_call == clock::time_point::max()) last_call = deadline_after(linger_s);
    const auto guest = [](const auto& each) { return each->welcome; };
    const bool guests = std::any_of(m_connections.begin(), m_connections.end(), guest);
    if (m_stop.load() && (!guests || now >= last_call)) break;

    std::vector<pollfd> entries{{m_listener.get(), POLLIN, 0}, {m_wake.get(), POLLIN, 0}};
    bool strangers = false;
    for (const auto& each : m_connections) {
      entries.push_back(
          {each->socket.get(), static_cast<short>(each->out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      strangers |= !each->welcome;
    }
    poll(entries.data(), entries.size(), strangers || m_stop.load() ? 200 : -1);
    if (entries[1].revents != 0) {
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t count = read(m_wake.get(), &ignored, sizeof ignored);
    }
    for (std::size_t i = 2; i < entries.size(); ++i) serve(*m_connections[i - 2], entries[i].revents);
    if (entries[0].revents != 0) accept_all();
    std::erase_if(m_connections, [](const auto& each) { return each->dead; });
  }
  close_down();
  m_finished.store(true, std::memory_order_release);
}

void server::accept_all() {
  while (true) {
    descriptor socket(accept4(m_listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) return;
    const auto stranger = [](const auto& each) { return !each->welcome; };
    const auto strangers = std::count_if(m_connections.begin(), m_connections.end(), stranger);
    if (static_cast<std::size_t>(strangers) >= max_strangers) continue;  // dropped: closes the socket
    auto fresh = std::make_unique<connection>();
    fresh->socket = std::move(socket);
    fresh->deadline = deadline_after(greeting_s);
    m_connections.push_back(std::move(fresh));
  }
}

void server::serve(connection& from, short events) {
  if ((events & POLLIN) != 0)
    receive(from);
  else if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0)
    from.dead = true;
  if (!from.dead && (events & POLLOUT) != 0) flush(from);
  if (!from.welcome && clock::now() >= from.deadline) from.dead = true;
}

void server::receive(connection& from) {
  std::byte chunk[receive_bytes];
  // A stranger's bytes are kept up to one greeting and not a byte more.
  const std::size_t room = from.welcome ? sizeof chunk : sizeof(greeting) - from.in.size();
  const ssize_t received = recv(from.socket.get(), chunk, room, 0);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (received <= 0) {
    from.dead = true;
    return;
  }
  append(from.in, {chunk, static_cast<std::size_t>(received)});
  if (from.welcome)
    parse(from);
  else
    greet(from);
}

void server::greet(connection& from) {
  if (from.in.size() < sizeof(greeting)) return;
  greeting hello;
  std::memcpy(&hello, from.in.data(), sizeof hello);
  from.in.clear();
  if (!equal_secrets(hello.secret, m_secret)) {
    // Said once: strangers must not be able to fill the log.
    log(m_turned_away++ == 0 ? log_level::warning : log_level::debug,
        "store: a connection without the right secret was dropped");
    from.dead = true;
    return;
  }
  const std::string reason = refusal(hello);
  welcome answer{};
  answer.accepted = reason.empty() ? 1 : 0;
  copy_text(answer.reason, sizeof answer.reason, reason);
  append(from.out, bytes_of(answer));
  flush(from);
  if (!reason.empty()) {
    from.dead = true;
    return;
  }
  from.welcome = true;
  from.rank = hello.rank;
  m_size = hello.size;
  m_joined.insert(hello.rank);
}

std::string server::refusal(const greeting& hello) const {
  if (hello.magic != protocol_magic || hello.version != protocol_version)
    return fmt::format(
        "this rank speaks store protocol {}, the store {}: use the same version of Isthmus everywhere",
        hello.version, protocol_version);
  if (m_size != 0 && hello.size != m_size)
    return fmt::format("size = {} on this rank, but {} on the ranks that joined before", hello.size, m_size);
  if (hello.rank < 0 || hello.rank >= hello.size)
    return fmt::format("rank = {} is not in [0, {})", hello.rank, hello.size);
  if (m_joined.contains(hello.rank))
    return fmt::format("rank {} has joined before: an id serves one communicator, and each rank joins once",
                       hello.rank);
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
    to.dead = true;
    return;
  }
}

void server::parse(connection& from) {
  std::span<const std::byte> rest(from.in);
  while (rest.size() >= sizeof(request_header)) {
    request_header header;
    std::memcpy(&header, rest.data(), sizeof header);
    if (header.key_bytes > max_key_bytes || header.value_bytes > max_value_bytes) {
      log(log_level::warning, "store: rank {} sent a malformed request and was dropped", from.rank);
      from.dead = true;
      return;
    }
    const std::size_t whole = sizeof header + header.key_bytes + header.value_bytes;
    if (rest.size() < whole) break;
    std::string key(reinterpret_cast<const char*>(rest.data() + sizeof header), header.key_bytes);
    handle(from, header, std::move(key), rest.subspan(sizeof header + header.key_bytes, header.value_bytes));
    rest = rest.subspan(whole);
  }
  from.in.erase(from.in.begin(), from.in.end() - static_cast<std::ptrdiff_t>(rest.size()));
}

void server::handle(connection& from, const request_header& header, std::string key,
                    std::span<const std::byte> value) {
  switch (header.kind) {
    case request_kind::set: publish(key, value); return;
    case request_kind::erase: m_values.erase(key); return;
    case request_kind::cancel: from.waiting.erase(header.id); return;
    case request_kind::get:
    case request_kind::try_get: {
      const auto found = m_values.find(key);
      if (found != m_values.end())
        reply(from, reply_kind::found, header.id, found->second);
      else if (header.kind == request_kind::try_get)
        reply(from, reply_kind::absent, header.id, {});
      else
        from.waiting[header.id] = std::move(key);
      flush(from);
      return;
    }
  }
  log(log_level::warning, "store: rank {} sent a request of unknown kind and was dropped", from.rank);
  from.dead = true;
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
    flush(*each);
  }
}

void server::reply(connection& to, reply_kind kind, std::uint32_t id, std::span<const std::byte> value) {
  append(to.out, bytes_of(reply_header{kind, id, static_cast<std::uint32_t>(value.size()), 0}));
  append(to.out, value);
}

}  // namespace isthmus::tcp
