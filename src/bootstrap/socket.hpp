// TCP sockets as owned descriptors. Every wait has a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file_descriptor.hpp"
#include "failure/wait.hpp"

namespace isthmus::tcp {

using clock = std::chrono::steady_clock;

struct endpoint {
  std::string host;
  std::uint16_t port;
};

// Parses "host", "host:port", "[v6]" or "[v6]:port"; NULL is loopback. Throws error (INVALID_ARGUMENT).
endpoint parse_endpoint(const char* address);

// Opens a listening, non-blocking socket. Port 0 is replaced by the selected free port. Throws error.
file_descriptor listen_on(endpoint& target);

// Opens a connected, non-blocking socket. Throws error (TIMEOUT or REMOTE).
file_descriptor connect_to(const endpoint& target, clock::time_point deadline);

// Wait until the socket is readable or writable; false at the deadline. Throw error (ABORTED) if the calling
// thread is interrupted.
bool wait_readable(int fd, clock::time_point deadline);
bool wait_writable(int fd, clock::time_point deadline);

// Send or receive all bytes; false if the peer has disconnected or the deadline has passed.
bool send_all(int fd, std::span<const std::byte> bytes, clock::time_point deadline);
bool receive_all(int fd, std::span<std::byte> bytes, clock::time_point deadline);

}  // namespace isthmus::tcp
