#include "bootstrap/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.hpp"
#include "base/interrupt.hpp"

namespace isthmus::tcp {
namespace {

using address_list = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

address_list resolve(const endpoint& target, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* results = nullptr;
  const int code = getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &results);
  if (code != 0)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("address: host \"{}\" cannot be resolved: {}", target.host, gai_strerror(code)),
        "use a numeric address or a name that this machine can resolve", code);
  return {results, &freeaddrinfo};
}

file_descriptor open_socket(const addrinfo& address) {
  return file_descriptor(
      socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

bool poll_until(int fd, short events, clock::time_point deadline) {
  while (true) {
    const auto remaining_ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count();
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<long long>(remaining_ms, 0, 100)));
    if (ready > 0) return true;
    throw_if_interrupted("the connection to the store");
    if (ready < 0 && errno != EINTR) return false;
    if (remaining_ms <= 0) return false;
  }
}

bool is_wildcard(const addrinfo& address) {
  if (address.ai_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
  if (address.ai_family == AF_INET6)
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
  return false;
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

// Completes a non-blocking connect and returns 0 or errno.
int await_connection(int fd, clock::time_point deadline) {
  if (!wait_writable(fd, deadline)) return ETIMEDOUT;
  int code = 0;
  socklen_t length = sizeof code;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length);
  return code;
}

}  // namespace

endpoint parse_endpoint(const char* address) {
  if (address == nullptr) return {"127.0.0.1", 0};
  const std::string_view text(address);
  const auto invalid_address = [&](const char* reason) {
    return make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                      fmt::format("unique_id_create: address = \"{}\": {}", address, reason),
                      "write \"host\", \"host:port\", \"[v6]\" or \"[v6]:port\"");
  };
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) throw invalid_address("the bracket is not closed");
    host = text.substr(1, end - 1);
    const auto rest = text.substr(end + 1);
    if (!rest.empty() && !rest.starts_with(':')) throw invalid_address("only a port may follow the bracket");
    if (!rest.empty()) port = rest.substr(1);
    if (!rest.empty() && port.empty()) throw invalid_address("the port is empty");
  } else if (const auto colon = text.find(':'); colon != std::string_view::npos) {
    if (text.find(':', colon + 1) != std::string_view::npos)
      throw invalid_address("an IPv6 address needs brackets");
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) throw invalid_address("the port is empty");
  }
  if (host.empty()) throw invalid_address("the host is empty");
  std::uint16_t number = 0;
  const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (!port.empty() && (code != std::errc() || end != port.data() + port.size()))
    throw invalid_address("the port is not a number in [0, 65535]");
  return {std::string(host), number};
}

file_descriptor listen_on(endpoint& target) {
  const auto addresses = resolve(target, AI_PASSIVE);
  if (is_wildcard(*addresses))
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("unique_id_create: address = \"{}\" is a wildcard; other ranks cannot connect to it",
                    target.host),
        "use the address at which the other ranks can reach this machine");
  file_descriptor listener = open_socket(*addresses);
  const int enabled = 1;
  if (listener.get() < 0 ||
      setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &enabled, sizeof enabled) != 0 ||
      bind(listener.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    const int code = errno;
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     fmt::format("unique_id_create: cannot listen on {} port {}: {}", target.host, target.port,
                                 std::strerror(code)),
                     "choose an address of this machine and a free port (0: any)", code);
  }
  target.port = bound_port(listener.get());
  return listener;
}

file_descriptor connect_to(const endpoint& target, clock::time_point deadline) {
  const auto addresses = resolve(target, 0);
  int code = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    file_descriptor connection = open_socket(*address);
    if (connection.get() < 0) {
      code = errno;
      continue;
    }
    code = connect(connection.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS) code = await_connection(connection.get(), deadline);
    if (code != 0) continue;
    const int enabled = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &enabled, sizeof enabled);
    return connection;
  }
  throw make_error(
      is_shortage(code)   ? ISTHMUS_ERROR_SYSTEM
      : code == ETIMEDOUT ? ISTHMUS_ERROR_TIMEOUT
                          : ISTHMUS_ERROR_REMOTE,
      ISTHMUS_HERE,
      fmt::format("communicator_create: cannot connect to the store at {} port {}: {}", target.host,
                  target.port, std::strerror(code)),
      is_shortage(code)
          ? shortage_hint
          : "check that the process that created the id still runs and that this machine can reach its address",
      code);
}

bool wait_readable(int fd, clock::time_point deadline) { return poll_until(fd, POLLIN, deadline); }
bool wait_writable(int fd, clock::time_point deadline) { return poll_until(fd, POLLOUT, deadline); }

bool send_all(int fd, std::span<const std::byte> bytes, clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent_bytes = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent_bytes > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent_bytes));
      continue;
    }
    const bool is_retryable = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (!is_retryable || !wait_writable(fd, deadline)) return false;
  }
  return true;
}

bool receive_all(int fd, std::span<std::byte> bytes, clock::time_point deadline) {
  while (!bytes.empty()) {
    if (!wait_readable(fd, deadline)) return false;
    const ssize_t received_bytes = recv(fd, bytes.data(), bytes.size(), 0);
    if (received_bytes > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(received_bytes));
      continue;
    }
    const bool is_retryable = received_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (!is_retryable) return false;
  }
  return true;
}

}  // namespace isthmus::tcp
