#include "bootstrap/unique_id.hpp"

#include <sodium.h>

#include <cstring>

#include "base/error.hpp"

namespace isthmus {
namespace {

constexpr std::uint32_t id_magic = 0x49534944;  // "ISID"
constexpr std::uint16_t id_version = 2;

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
  std::uint32_t hash = 0x811c9dc5u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&layout);
  for (std::size_t i = 0; i < offsetof(id_layout, check); ++i) hash = (hash ^ bytes[i]) * 0x01000193u;
  return hash;
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
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, "unique_id_create: libsodium could not be initialized",
                     "make the kernel's random source available; the secret needs it");
  store_secret secret;
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

}  // namespace isthmus
