#include "bootstrap/exchange.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace isthmus {

std::vector<std::string> gather_texts(bootstrap& ranks, const std::string& contribution) {
  const auto lengths = gather_values<std::uint64_t>(ranks, contribution.size());
  const std::uint64_t max_length = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (max_length == 0) return texts;
  std::vector<std::byte> padded_text(max_length), all(max_length * lengths.size());
  std::memcpy(padded_text.data(), contribution.data(), contribution.size());
  ranks.allgather(padded_text, all);
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    texts[rank].assign(reinterpret_cast<const char*>(all.data() + rank * max_length), lengths[rank]);
  return texts;
}

}  // namespace isthmus
