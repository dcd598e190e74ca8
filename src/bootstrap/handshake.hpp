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

// Returns random bytes from the kernel.
nonce make_nonce();

proof proof_of_store(const store_secret& secret, const hello& greeting, const nonce& store_nonce);
proof proof_of_rank(const store_secret& secret, const hello& greeting, const nonce& store_nonce);

// Derives the secret of the fallback stores (fallback_store.hpp) from the id's secret, so it is never sent.
store_secret fallback_secret(const store_secret& secret);

// Compares two proofs in constant time.
bool equal_proofs(const proof& a, const proof& b) noexcept;

// Decode the fixed-size messages without checking their contents. They return nullopt if there are
// too few bytes.
std::optional<protocol_header> parse_header(std::span<const std::byte> bytes);
std::optional<hello> parse_hello(std::span<const std::byte> bytes);
std::optional<proof> parse_proof(std::span<const std::byte> bytes);

}  // namespace isthmus::tcp
