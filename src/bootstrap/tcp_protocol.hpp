// What goes over the wire between a rank and the store. Little-endian, fixed headers.
//
// A connection opens with `greeting`; the server looks at nothing but the secret until that is right. It
// answers `welcome`. After that the client sends requests, each a `request_header`, a key and a value; `get`
// is answered by a `reply_header` and the value once the key is set, `try_get` at once.
#pragma once

#include <cstdint>

#include "bootstrap/unique_id.hpp"

namespace isthmus::tcp {

inline constexpr std::uint32_t protocol_magic = 0x49535450;  // "ISTP"
inline constexpr std::uint32_t protocol_version = 1;
inline constexpr std::uint32_t max_key_bytes = 512;
inline constexpr std::uint32_t max_value_bytes = 16u << 20;

struct greeting {
  store_secret secret;
  std::uint32_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
};

struct welcome {
  std::uint32_t accepted;
  char reason[252];
};

enum class request_kind : std::uint32_t { set = 1, get = 2, try_get = 3, cancel = 4, erase = 5 };

struct request_header {
  request_kind kind;
  std::uint32_t id;  // of the request that is asked or cancelled
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
};

enum class reply_kind : std::uint32_t { found = 1, absent = 2 };

struct reply_header {
  reply_kind kind;
  std::uint32_t id;
  std::uint32_t value_bytes;
  std::uint32_t reserved;
};

}  // namespace isthmus::tcp
