// Algorithm staged: sources copy to their staging slots, and readers fetch from there. User buffers
//   may be anywhere.
#include <utility>

#include "backends/copy_engine/chunked_call.hpp"

namespace isthmus::copy_engine {
namespace {

class staged_call : chunked_call {
 public:
  explicit staged_call(const call_request& request) : chunked_call(request, copy_algorithm::staged) {
    m_uses_one_stream = overwrites_unsent_data(request.operation);
  }

  void issue();

 private:
  void fill(command_batch& batch, std::uint64_t chunk);
  std::vector<block_transfer> list_fetches(std::uint64_t chunk) const;
  void fetch_independently(command_batch& stager, std::uint64_t chunks);
  void fetch_in_lockstep(command_batch& stager, std::uint64_t chunks);
};

void staged_call::fill(command_batch& batch, std::uint64_t chunk) {
  const int own = m_resources.rank;
  const transfer_slot slot = slot_for(own, chunk);
  wait_acknowledged(batch, slot);
  std::byte* to = m_resources.memory.staging(own, slot);
  for (int reader = 0; reader < m_resources.size; ++reader) {
    const std::uint64_t bytes = chunk_bytes_of(bytes_peer_copies(reader), chunk);
    if (bytes > 0)
      batch.copy_local(to, m_send + m_blocks.outgoing_block(reader).offset + start_of(chunk), bytes);
    if (bytes > 0 && m_blocks.sends_same_block()) break;
    if (reader != own && !m_blocks.sends_same_block()) to += m_chunk_bytes;
  }
  set_pending(batch, slot, start_of(chunk));
}

std::vector<block_transfer> staged_call::list_fetches(std::uint64_t chunk) const {
  std::vector<block_transfer> transfers;
  for (int step = 1; step < m_resources.size; ++step) {
    const int source = next_peer(step);
    const std::uint64_t bytes = chunk_bytes_of(bytes_to_copy(source), chunk);
    if (bytes == 0) continue;
    const transfer_slot slot = slot_for(source, chunk);
    const std::byte* from = m_blocks.sends_same_block() ? m_resources.memory.staging(source, slot)
                                                        : slot_row(source, slot, m_resources.rank);
    transfers.push_back(
        {slot, source, from, m_recv + m_blocks.incoming_block(source).offset + start_of(chunk), bytes});
  }
  return transfers;
}

// Fetches each chunk as soon as its source has filled a slot. Meanwhile, this rank stages its next chunk. The
// fetch is issued directly after the signal that starts the peers' fetches.
void staged_call::fetch_independently(command_batch& stager, std::uint64_t chunks) {
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    copy_all(list_fetches(chunk));
    for (side_stream& stream : m_resources.peer_streams) stream.commands.flush();
    m_resources.main.flush();
    if (chunk + 1 >= chunks_of(m_resources.rank)) continue;
    fill(stager, chunk + 1);
    signal_chunk(stager, chunk + 1);
    stager.flush();
  }
}

// A rank signals its next chunk after its own copies of the previous one have ended, so all ranks fetch the
// next chunk at the same time. Work that is not required between two fetches overlaps with the second one.
void staged_call::fetch_in_lockstep(command_batch& stager, std::uint64_t chunks) {
  command_batch& main = m_resources.main;
  std::vector<block_transfer> last_fetch;
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<block_transfer> transfers = list_fetches(chunk);
    wait_ready(main, transfers);
    main.record(m_resources.fetch_event);
    for (const block_transfer& transfer : transfers)
      main.copy(transfer.destination, transfer.source, transfer.bytes);
    main.flush();
    stager.wait(m_resources.fetch_event);
    for (const block_transfer& transfer : last_fetch) acknowledge(stager, transfer);
    if (chunk + 1 < chunks_of(m_resources.rank)) {
      fill(stager, chunk + 1);
      main.follow(stager, m_resources.slot_event);
      signal_chunk(main, chunk + 1);
    }
    stager.flush();
    last_fetch = std::move(transfers);
  }
  for (const block_transfer& transfer : last_fetch) acknowledge(main, transfer);
}

void staged_call::issue() {
  begin(0);
  std::uint64_t chunks = 0;
  for (int source = 0; source < m_resources.size; ++source) chunks = std::max(chunks, chunks_of(source));

  command_batch& main = m_resources.main;
  record_progress();
  const bool uses_local_stream = chunks > 1 && !m_uses_one_stream;
  command_batch& stager = uses_local_stream ? m_resources.local_copies.commands : main;
  if (uses_local_stream)
    stager.follow(main, m_resources.fork_event);
  else
    start_own_block();
  fork_streams();
  if (chunks_of(m_resources.rank) > 0) {
    fill(stager, 0);
    signal_chunk(stager, 0);
    stager.flush();
  }
  if (uses_local_stream && is_lockstep())
    fetch_in_lockstep(stager, chunks);
  else
    fetch_independently(stager, chunks);
  if (uses_local_stream) copy_own_block(stager);
  join_streams();
  if (uses_local_stream || m_has_local_copy) join_local();
  for (int source = 0; source < m_resources.size; ++source)
    m_resources.slot_uses[static_cast<std::size_t>(source)] += chunks_of(source);
}

}  // namespace

void issue_staged(const call_request& request) { staged_call(request).issue(); }

}  // namespace isthmus::copy_engine
