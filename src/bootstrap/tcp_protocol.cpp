#include "bootstrap/tcp_protocol.hpp"

#include <sodium.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace isthmus {
namespace {

constexpr std::uint32_t id_magic = 0x49534944;  // "ISID"
constexpr std::uint16_t id_version = 3;

// Uses the byte order of the machine: all supported platforms are little-endian.
struct id_layout {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t port;
  store_secret secret;
  char host[84];
  std::uint32_t check;  // detects a damaged copy before any connection attempt
};
static_assert(sizeof(id_layout) == sizeof(isthmus_unique_id));

std::uint32_t checksum(const id_layout& layout) {
  return static_cast<std::uint32_t>(
      fnv1a({reinterpret_cast<const char*>(&layout), offsetof(id_layout, check)}));
}

}  // namespace

isthmus_unique_id make_unique_id(const store_address& address) {
  id_layout layout{};
  layout.magic = id_magic;
  layout.version = id_version;
  layout.port = address.port;
  layout.secret = address.secret;
  if (address.host.size() >= sizeof layout.host)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("unique_id_create: the host name has {} characters, must have at most {}",
                                 address.host.size(), sizeof layout.host - 1),
                     "use the numeric address");
  copy_text(layout.host, sizeof layout.host, address.host);
  layout.check = checksum(layout);
  isthmus_unique_id id;
  std::memcpy(&id, &layout, sizeof id);
  return id;
}

store_address parse_unique_id(const isthmus_unique_id& id) {
  id_layout layout;
  std::memcpy(&layout, &id, sizeof layout);
  std::string problem;
  if (layout.magic != id_magic)
    problem = "not an id of Isthmus";
  else if (layout.version != id_version)
    problem = fmt::format("it is from another version of Isthmus: its format is {}, this library uses {}",
                          layout.version, id_version);
  else if (layout.check != checksum(layout))
    problem = "it is damaged: the checksum does not match";
  if (!problem.empty())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("communicator_create: id: {}", problem),
                     "send all 128 bytes that isthmus_unique_id_create wrote, and use the same version of "
                     "Isthmus on every rank");
  layout.host[sizeof layout.host - 1] = '\0';
  return {layout.host, layout.port, layout.secret};
}

store_secret make_secret() {
  if (sodium_init() < 0)
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, "libsodium could not be initialized",
                     "make the kernel's random source available: secrets and tokens need it");
  store_secret secret;
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

namespace tcp {
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

}  // namespace

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

parse_result parse_request(std::span<const std::byte> bytes, request& message) {
  request_header& header = message.header;
  if (bytes.size() < sizeof header) return parse_result::incomplete;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.kind < request_kind::set || header.kind > request_kind::release) return parse_result::malformed;
  if (header.key_bytes > max_key_bytes || header.value_bytes > max_value_bytes) return parse_result::malformed;
  message.bytes = sizeof header + header.key_bytes + header.value_bytes;
  if (bytes.size() < message.bytes) return parse_result::incomplete;
  message.key = {reinterpret_cast<const char*>(bytes.data() + sizeof header), header.key_bytes};
  message.value = bytes.subspan(sizeof header + header.key_bytes, header.value_bytes);
  return parse_result::complete;
}

parse_result parse_reply(std::span<const std::byte> bytes, reply& message) {
  reply_header& header = message.header;
  if (bytes.size() < sizeof header) return parse_result::incomplete;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.value_bytes > max_value_bytes) return parse_result::malformed;
  message.bytes = sizeof header + header.value_bytes;
  if (bytes.size() < message.bytes) return parse_result::incomplete;
  message.value = bytes.subspan(sizeof header, header.value_bytes);
  return parse_result::complete;
}

}  // namespace tcp
}  // namespace isthmus
