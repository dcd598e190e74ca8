// Sockets as owned descriptors; every wait has a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file_descriptor.hpp"

namespace isthmus::tcp {

using clock = std::chrono::steady_clock;

inline clock::time_point deadline_after(double seconds) {
  return clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
}

struct endpoint {
  std::string host;
  std::uint16_t port;
};

// "host", "host:port", "[v6]", "[v6]:port"; NULL is loopback. Throws error (INVALID_ARGUMENT).
endpoint parse_endpoint(const char* address);

// A listening, non-blocking socket; `where.port` 0 is replaced by the port that was taken. Throws error.
file_descriptor listen_on(endpoint& target);

// A connected, non-blocking socket. Throws error (TIMEOUT or REMOTE).
file_descriptor connect_to(const endpoint& target, clock::time_point deadline);

// Waits until the socket can be read or written; false at the deadline. Throws error (ABORTED) when the calling
// thread is interrupted.
bool wait_readable(int fd, clock::time_point deadline);
bool wait_writable(int fd, clock::time_point deadline);

// Sends or receives everything; false when the peer is gone or the deadline has passed.
bool send_all(int fd, std::span<const std::byte> bytes, clock::time_point deadline);
bool receive_all(int fd, std::span<std::byte> bytes, clock::time_point deadline);

}  // namespace isthmus::tcp
