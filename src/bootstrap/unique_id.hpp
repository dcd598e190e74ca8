// Contents of an isthmus_unique_id: the address of the store and its secret.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace isthmus {

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

}  // namespace isthmus
