#include "bootstrap/handshake.hpp"

#include <sodium.h>

#include <cstring>
#include <string_view>

#include "base/error.hpp"

namespace isthmus::tcp {
namespace {

static_assert(std::tuple_size_v<store_secret> == crypto_auth_hmacsha256_KEYBYTES);
static_assert(std::tuple_size_v<proof> == crypto_auth_hmacsha256_BYTES);
static_assert(sizeof(hello) == 48 && sizeof(challenge) == 72, "no padding: the bytes go over the wire");

const unsigned char* as_unsigned_chars(const void* bytes) { return static_cast<const unsigned char*>(bytes); }

proof prove(std::string_view label, const store_secret& secret, const hello& greeting,
            const nonce& store_nonce) {
  crypto_auth_hmacsha256_state state;
  proof result;
  crypto_auth_hmacsha256_init(&state, as_unsigned_chars(secret.data()), secret.size());
  crypto_auth_hmacsha256_update(&state, as_unsigned_chars(label.data()), label.size());
  crypto_auth_hmacsha256_update(&state, as_unsigned_chars(&greeting), sizeof greeting);
  crypto_auth_hmacsha256_update(&state, as_unsigned_chars(store_nonce.data()), store_nonce.size());
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(result.data()));
  return result;
}

template <typename Message>
std::optional<Message> parse(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Message)) return std::nullopt;
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

}  // namespace

nonce make_nonce() { return make_secret(); }

// All labels have the same length, and the fields after them have fixed lengths, so no two inputs yield the
// same byte sequence.
proof proof_of_store(const store_secret& secret, const hello& greeting, const nonce& store_nonce) {
  return prove("isthmus store 2: store", secret, greeting, store_nonce);
}

proof proof_of_rank(const store_secret& secret, const hello& greeting, const nonce& store_nonce) {
  return prove("isthmus store 2: rank ", secret, greeting, store_nonce);
}

store_secret fallback_secret(const store_secret& secret) {
  constexpr std::string_view label = "isthmus store: standby";
  store_secret derived_secret;
  crypto_auth_hmacsha256(reinterpret_cast<unsigned char*>(derived_secret.data()),
                         as_unsigned_chars(label.data()), label.size(), as_unsigned_chars(secret.data()));
  return derived_secret;
}

bool equal_proofs(const proof& a, const proof& b) noexcept {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<protocol_header> parse_header(std::span<const std::byte> bytes) {
  return parse<protocol_header>(bytes);
}
std::optional<hello> parse_hello(std::span<const std::byte> bytes) { return parse<hello>(bytes); }
std::optional<proof> parse_proof(std::span<const std::byte> bytes) { return parse<proof>(bytes); }

}  // namespace isthmus::tcp
