#include "device/signal_channel.hpp"

namespace isthmus {

signal_channel::signal_channel(std::span<void* const> blocks, const layout& flag_layout)
    : m_layout(flag_layout) {
  for (void* block : blocks) m_blocks.push_back(static_cast<std::uint32_t*>(block));
}

std::optional<int> signal_channel::aborted_rank(int owner) const {
  const std::uint32_t word = read(abort_word(owner));
  return word == 0 ? std::nullopt : std::optional(static_cast<int>(word - 1));
}

void signal_channel::notify_abort(int rank) const {
  const int first = aborted_rank(rank).value_or(rank);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank && peer != first) write(abort_word(peer), static_cast<std::uint32_t>(first) + 1);
}

}  // namespace isthmus
