// The keys and values of a store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace isthmus {

using key_values = std::map<std::string, std::vector<std::byte>, std::less<>>;

// Counts a call of store::release in a key of the scope. Removes the keys of the scope after `size` calls.
inline void release_scope(key_values& values, const std::string& scope, std::uint32_t size) {
  const std::string prefix = scope + ":";
  std::vector<std::byte>& stored_count = values[prefix + "released"];
  std::uint32_t count = 0;
  stored_count.resize(sizeof count);
  std::memcpy(&count, stored_count.data(), sizeof count);
  ++count;
  std::memcpy(stored_count.data(), &count, sizeof count);
  if (count < size) return;
  const auto begin = values.lower_bound(prefix);
  auto end = begin;
  while (end != values.end() && end->first.starts_with(prefix)) ++end;
  values.erase(begin, end);
}

}  // namespace isthmus
