// What the ranks tell each other before a native communicator is made, so that all take the backend or
// none does, and so that nothing that would hang inside the library is started.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace isthmus::xccl {

// One rank's part. Plain data: it travels as bytes.
template <std::size_t IdBytes>
struct probe {
  std::int32_t usable = 0;
  std::int32_t version = 0;
  std::int32_t capability = 0;     // major compute capability; 0 where the platform has none
  std::int32_t has_part = 0;       // of a split: the native communicator is there already
  char device[32] = {};            // PCI bus id, unique on its machine
  char reason[320] = {};           // when not usable
  unsigned char id[IdBytes] = {};  // rank 0's
};

inline void put_text(char* to, std::size_t capacity, const std::string& text) {
  const std::size_t length = text.size() < capacity ? text.size() : capacity - 1;
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

// "" when every rank can take part, else why not. All ranks come to the same answer.
template <std::size_t IdBytes>
std::string disagreement(const std::vector<probe<IdBytes>>& all, const int* node_of) {
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].usable) return "rank " + std::to_string(rank) + ": " + all[rank].reason;
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].version != all[0].version)
      return "ranks 0 and " + std::to_string(rank) + " have loaded different versions of the library (codes " +
             std::to_string(all[0].version) + " and " + std::to_string(all[rank].version) + ")";
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b)
      if (node_of[a] == node_of[b] && all[a].device[0] != '\0' &&
          std::strcmp(all[a].device, all[b].device) == 0)
        return "ranks " + std::to_string(a) + " and " + std::to_string(b) + " are on the same device (" +
               all[a].device + "); give every rank a device of its own";
  return {};
}

}  // namespace isthmus::xccl
