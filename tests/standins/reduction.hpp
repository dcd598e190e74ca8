// What a launch of the reduction kernel must do, from the meaning of its arguments.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "arithmetic.hpp"
#include "backends/copy_engine/reduction_arguments.hpp"

namespace standin {

// The own contribution and those of the others, which lie in rank order without it, combined in rank order.
inline void reduce(const isthmus::copy_engine::reduction_arguments& what, const std::string& datatype,
                   const std::string& op) {
  const std::size_t bytes = what.count * element_bytes(datatype);
  std::vector<char> rows(bytes * static_cast<std::size_t>(what.size));
  const char* next = static_cast<const char*>(what.others);
  for (int rank = 0; rank < what.size; ++rank) {
    const bool own = rank == what.rank;
    if (bytes > 0)
      std::memcpy(rows.data() + bytes * static_cast<std::size_t>(rank),
                  own ? static_cast<const char*>(what.own) : next, bytes);
    if (!own) next += what.row_bytes;
  }
  combine(rows.data(), what.size, what.count, datatype, op, static_cast<char*>(what.result));
}

}  // namespace standin
