// How a rank and the store show each other that both hold the id's secret, without sending it.
//
//   rank -> store   hello      who it is, and a nonce
//   store -> rank   challenge  a nonce, and the store's proof
//   rank -> store   proof      the rank's proof
//   store -> rank   welcome    or the reason of a refusal
//
// A proof is an HMAC-SHA256 (libsodium) under the secret of a label, the hello and the store's nonce; the two
// labels differ, so that neither side's proof serves as the other's. Whoever only holds the port learns nothing
// that opens the store; whoever only dials it learns that a store is there and its protocol version.
//
// `hello` and `challenge` begin with magic and version in every version of the protocol, so that two
// versions that meet can say so. What follows the handshake is not encrypted: docs/security.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "bootstrap/unique_id.hpp"

namespace isthmus::tcp {

inline constexpr std::uint32_t protocol_magic = 0x49535450;  // "ISTP"
inline constexpr std::uint32_t protocol_version = 3;

using nonce = std::array<std::byte, 32>;
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

// Random bytes of the kernel.
nonce make_nonce();

proof proof_of_store(const store_secret& secret, const hello& greeting, const nonce& store_nonce);
proof proof_of_rank(const store_secret& secret, const hello& greeting, const nonce& store_nonce);

// The secret of the stores that ranks of this one serve in its place (fallback_store.hpp): it need not be sent.
store_secret fallback_secret(const store_secret& secret);

// In a time that does not depend on where they differ.
bool equal_proofs(const proof& a, const proof& b) noexcept;

// The fixed-size messages from bytes; nothing when there are too few. Any bytes make some message.
std::optional<protocol_header> parse_header(std::span<const std::byte> bytes);
std::optional<hello> parse_hello(std::span<const std::byte> bytes);
std::optional<proof> parse_proof(std::span<const std::byte> bytes);

}  // namespace isthmus::tcp
