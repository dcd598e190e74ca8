// Wire protocol between a rank and the store after the handshake (handshake.hpp): little-endian, fixed headers.
//
// A request is a `request_header`, a key and a value. The store replies to `get` with a `reply_header` and the
// value once the key is set, and to `try_get` immediately. The other requests have no reply.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "bootstrap/handshake.hpp"

namespace isthmus::tcp {

inline constexpr std::uint32_t max_key_bytes = 512;
inline constexpr std::uint32_t max_value_bytes = 16u << 20;

// Prefix of keys that the store itself sets, followed by a rank: that rank's connection has closed.
inline constexpr std::string_view disconnected_prefix = "!left/";

enum class request_kind : std::uint32_t {
  set = 1,
  get = 2,
  try_get = 3,
  cancel = 4,
  erase = 5,
  set_if_absent = 6
};

struct request_header {
  request_kind kind;
  std::uint32_t id;  // of this request, or of the request to cancel
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

// One decoded message at the start of the received bytes. Its views point into them.
struct request {
  request_header header;
  std::string_view key;
  std::span<const std::byte> value;
  std::size_t bytes;  // size of the whole message
};
struct reply {
  reply_header header;
  std::span<const std::byte> value;
  std::size_t bytes;
};

enum class parse_result { complete, incomplete, malformed };

// These functions fill `message` if it is complete. Safe for arbitrary input: never reads beyond `bytes`.
parse_result parse_request(std::span<const std::byte> bytes, request& message);
parse_result parse_reply(std::span<const std::byte> bytes, reply& message);

}  // namespace isthmus::tcp
