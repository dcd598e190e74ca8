// Base class of calls that move their data in chunks through the staging slots.
#pragma once

#include <algorithm>

#include "backends/copy_engine/collective_call.hpp"

namespace isthmus::copy_engine {

class chunked_call : protected collective_call {
 protected:
  // A slot holds either one chunk for all peers, or one chunk per peer in rank order, with none for the owner.
  chunked_call(const call_request& request, copy_algorithm algorithm) : collective_call(request, algorithm) {
    const auto rows =
        static_cast<std::uint64_t>(m_blocks.sends_same_block() ? 1 : std::max(m_resources.size - 1, 1));
    m_chunk_bytes = m_resources.memory.slot_bytes() / rows / alignment * alignment;
  }

  std::uint64_t chunks_of(int source) const {
    const std::uint64_t bytes = m_blocks.max_incoming_bytes(source);
    return bytes == 0 ? 0 : (bytes - 1) / m_chunk_bytes + 1;
  }
  // Returns the offset of a chunk in its block, and the number of bytes of the chunk in a block of `bytes`.
  std::uint64_t start_of(std::uint64_t chunk) const { return chunk * m_chunk_bytes; }
  std::uint64_t chunk_bytes_of(std::uint64_t bytes, std::uint64_t chunk) const {
    const std::uint64_t start = start_of(chunk);
    return start >= bytes ? 0 : std::min(bytes - start, m_chunk_bytes);
  }
  transfer_slot slot_for(int owner, std::uint64_t chunk) const {
    return staging_slot(m_resources.slot_uses[static_cast<std::size_t>(owner)] + chunk);
  }
  // Returns a peer's row in a slot that holds one chunk per peer.
  std::byte* slot_row(int owner, transfer_slot slot, int peer) const {
    const int row = peer < owner ? peer : peer - 1;
    return m_resources.memory.staging(owner, slot) + static_cast<std::uint64_t>(row) * m_chunk_bytes;
  }
  void signal_chunk(command_batch& batch, std::uint64_t chunk) {
    signal_ready(batch, slot_for(m_resources.rank, chunk), start_of(chunk));
  }
  // If ranks copied each chunk as soon as its source is ready, they would get out of step and share ports.
  // In allgatherv, some ranks may run in lockstep and others not, because each has a different number of
  // bytes to fetch.
  bool is_lockstep() const { return m_waits_for_all && m_resources.size > 2; }

  std::uint64_t m_chunk_bytes;
};

}  // namespace isthmus::copy_engine
