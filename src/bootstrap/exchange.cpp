#include "bootstrap/exchange.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace isthmus {

std::vector<std::string> gather_texts(bootstrap& ranks, const std::string& mine) {
  const auto lengths = gather_values<std::uint64_t>(ranks, mine.size());
  const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  std::vector<std::byte> padded(longest), all(longest * lengths.size());
  std::memcpy(padded.data(), mine.data(), mine.size());
  ranks.allgather(padded, all);
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    texts[rank].assign(reinterpret_cast<const char*>(all.data() + rank * longest), lengths[rank]);
  return texts;
}

}  // namespace isthmus
