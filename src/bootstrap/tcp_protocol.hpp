// What goes over the wire between a rank and the store after the handshake (handshake.hpp). Little-endian,
// fixed headers.
//
// The client sends requests, each a `request_header`, a key and a value; `get` is answered by a `reply_header`
// and the value once the key is set, `try_get` at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "bootstrap/handshake.hpp"

namespace isthmus::tcp {

inline constexpr std::uint32_t max_key_bytes = 512;
inline constexpr std::uint32_t max_value_bytes = 16u << 20;

// Keys that begin so are the store's own: set when that rank's connection closes.
inline constexpr std::string_view disconnected_prefix = "!left/";

enum class request_kind : std::uint32_t { set = 1, get = 2, try_get = 3, cancel = 4, erase = 5, set_if_absent = 6 };

struct request_header {
  request_kind kind;
  std::uint32_t id;  // of the request that is asked or cancelled
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
};

enum class reply_kind : std::uint32_t { present = 1, absent = 2 };

struct reply_header {
  reply_kind kind;
  std::uint32_t id;
  std::uint32_t value_bytes;
  std::uint32_t reserved;
};

// One message at the head of what was received; the views point into it.
struct request {
  request_header header;
  std::string_view key;
  std::span<const std::byte> value;
  std::size_t bytes;  // of the whole message
};
struct reply {
  reply_header header;
  std::span<const std::byte> value;
  std::size_t bytes;
};

enum class parse_result { complete, incomplete, malformed };

// Fills `message` when it is complete. Whatever the bytes are, nothing beyond them is read.
parse_result parse_request(std::span<const std::byte> bytes, request& message);
parse_result parse_reply(std::span<const std::byte> bytes, reply& message);

}  // namespace isthmus::tcp
