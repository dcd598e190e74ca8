// Reference implementation of the reduction kernel, from the definition of its arguments.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "arithmetic.hpp"
#include "backends/copy_engine/reduction_arguments.hpp"

namespace standin {

// Combines all contributions in rank order. The contributions of the other ranks are stored in rank order,
// without the own one.
inline void reduce(const isthmus::copy_engine::reduction_arguments& arguments, const std::string& datatype,
                   const std::string& op) {
  const std::size_t bytes = arguments.count * element_bytes(datatype);
  std::vector<char> rows(bytes * static_cast<std::size_t>(arguments.size));
  const char* next = static_cast<const char*>(arguments.peer_contributions);
  for (int rank = 0; rank < arguments.size; ++rank) {
    const bool own = rank == arguments.rank;
    if (bytes > 0)
      std::memcpy(rows.data() + bytes * static_cast<std::size_t>(rank),
                  own ? static_cast<const char*>(arguments.own) : next, bytes);
    if (!own) next += arguments.row_bytes;
  }
  combine(rows.data(), arguments.size, arguments.count, datatype, op, static_cast<char*>(arguments.result));
}

}  // namespace standin
