// Typed and text forms of bootstrap::allgather for set-up. Collective like it; they throw what it throws.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

template <typename Value>
std::vector<Value> gather_values(bootstrap& ranks, const Value& mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(static_cast<std::size_t>(ranks.size()));
  ranks.allgather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// One text from each rank, of any length.
std::vector<std::string> gather_texts(bootstrap& ranks, const std::string& mine);

}  // namespace isthmus
