// Bytes that the ranks of a TCP store exchange: the id that names the store, the handshake, and the requests.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace isthmus {

// ---- contents of an isthmus_unique_id: the address of the store and its secret ------------------------------

using store_secret = std::array<std::byte, 32>;

struct store_address {
  std::string host;  // numeric address or name, at most 80 characters
  std::uint16_t port = 0;
  store_secret secret{};
};

isthmus_unique_id make_unique_id(const store_address& address);
// Throws error (INVALID_ARGUMENT) if the bytes are not an id of this version.
store_address parse_unique_id(const isthmus_unique_id& id);

// Creates a secret of 256 random bits with libsodium, which uses the kernel's random source.
// Throws error (SYSTEM).
store_secret make_secret();

namespace tcp {

// ---- handshake ---------------------------------------------------------------------------------------------

// Mutual authentication of a rank and the store: each proves that it has the id's secret without sending it.
//
//   rank -> store   hello      rank, size and a nonce
//   store -> rank   challenge  a nonce, and the store's proof
//   rank -> store   proof      the rank's proof
//   store -> rank   welcome    accepted, or the reason for the refusal
//
// A proof is an HMAC-SHA256 (libsodium) keyed with the secret, over a label, the hello and the store's nonce.
// The two labels differ, so one side's proof is not valid as the other's. A process that only listens on the
// port obtains nothing that gives access to the store. A process that only connects learns that a store exists
// and which protocol version it uses.
//
// `hello` and `challenge` start with magic and version in every version of the protocol, so that a version
// mismatch can be reported. Traffic after the handshake is not encrypted: see docs/reference/security.md.

inline constexpr std::uint32_t protocol_magic = 0x49535450;  // "ISTP"
inline constexpr std::uint32_t protocol_version = 3;

using nonce = store_secret;  // of make_secret()
using proof = std::array<std::byte, 32>;

struct protocol_header {
  std::uint32_t magic;
  std::uint32_t version;
};

struct hello {
  protocol_header header;
  std::int32_t rank;
  std::int32_t size;
  nonce rank_nonce;
};

struct challenge {
  protocol_header header;
  nonce store_nonce;
  proof store_proof;
};

struct welcome {
  std::uint32_t accepted;
  char reason[252];
};

proof proof_of_store(const store_secret& secret, const hello& greeting, const nonce& store_nonce);
proof proof_of_rank(const store_secret& secret, const hello& greeting, const nonce& store_nonce);

// Derives the secret of the fallback stores (tcp_store.hpp) from the id's secret, so it is never sent.
store_secret fallback_secret(const store_secret& secret);

// Compares two proofs in constant time.
bool equal_proofs(const proof& a, const proof& b) noexcept;

// Decodes a fixed-size message without checking its contents. Returns nullopt if there are too few bytes.
template <typename Message>
std::optional<Message> parse(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Message)) return std::nullopt;
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

// ---- requests after the handshake --------------------------------------------------------------------------

// Little-endian, fixed headers.
//
// A request is a `request_header`, a key and a value. The store replies to `get` with a `reply_header` and the
// value once the key is set, and to `try_get` immediately. The other requests have no reply.

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
  set_if_absent = 6,
  release = 7  // the key is a scope, the value the number of ranks that release it (std::uint32_t)
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

}  // namespace tcp
}  // namespace isthmus
