// FNV-1a, a hash that is the same on every rank and in every build (std::hash is not).
#pragma once

#include <cstdint>
#include <string_view>

namespace isthmus {

class fnv1a_hash {
 public:
  constexpr void add(std::uint64_t word) { m_value = (m_value ^ word) * 1099511628211u; }
  constexpr std::uint64_t value() const { return m_value; }

 private:
  std::uint64_t m_value = 14695981039346656037u;
};

// Hashes a text byte by byte.
constexpr std::uint64_t fnv1a(std::string_view text) {
  fnv1a_hash hash;
  for (const char c : text) hash.add(static_cast<unsigned char>(c));
  return hash.value();
}

}  // namespace isthmus
