// Algorithms that move their data in chunks through the staging slots, so that user buffers may be anywhere.
#include <algorithm>
#include <utility>

#include "backends/copy_engine/collective_call.hpp"
#include "base/tables.hpp"

namespace isthmus::copy_engine {
namespace {

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

// ---- staged: sources copy to their staging slots, and readers fetch from there ------------------------------

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

// ---- reduce (reduce_scatter): sources write to the staging slots of the readers, and a kernel combines the data ----

class reduce_call : chunked_call {
 public:
  reduce_call(const call_request& request, native_kernel kernel)
      : chunked_call(request, copy_algorithm::reduce), m_kernel(kernel) {}

  void issue();

 private:
  void open_slot(command_batch& batch, std::uint64_t chunk);
  void write_chunk(std::uint64_t chunk);
  void combine(command_batch& batch, std::uint64_t chunk);

  native_kernel m_kernel;
};

// Makes a slot available for the peers' chunks.
void reduce_call::open_slot(command_batch& batch, std::uint64_t chunk) {
  const transfer_slot slot = slot_for(m_resources.rank, chunk);
  wait_acknowledged(batch, slot);
  set_pending(batch, slot, start_of(chunk));
}

void reduce_call::write_chunk(std::uint64_t chunk) {
  std::vector<block_transfer> transfers;
  for (int step = 1; step < m_resources.size; ++step) {
    const int reader = next_peer(step);
    const transfer_slot slot = slot_for(reader, chunk);
    const block outgoing = m_blocks.outgoing_block(reader);
    transfers.push_back({slot, reader, m_send + outgoing.offset + start_of(chunk),
                         slot_row(reader, slot, m_resources.rank), chunk_bytes_of(outgoing.bytes, chunk)});
  }
  copy_all(transfers);
}

void reduce_call::combine(command_batch& batch, std::uint64_t chunk) {
  const isthmus_datatype datatype = m_request.operation.datatype;
  const transfer_slot slot = slot_for(m_resources.rank, chunk);
  const block own = m_blocks.outgoing_block(m_resources.rank);
  wait_acknowledged(batch, slot);
  m_resources.kernels.launch(batch, m_kernel,
                             {.peer_contributions = m_resources.memory.staging(m_resources.rank, slot),
                              .row_bytes = m_chunk_bytes,
                              .own = m_send + own.offset + start_of(chunk),
                              .result = m_recv + start_of(chunk),
                              .count = chunk_bytes_of(own.bytes, chunk) / bytes_of(datatype),
                              .rank = m_resources.rank,
                              .size = m_resources.size},
                             datatype);
}

// Each rank opens a slot, writes a chunk to the slots of its peers, and opens its other slot. It then combines
// the chunks in the first slot. This cannot deadlock even if a rank executes everything sequentially: each step
// waits only for peer steps that are earlier in this order.
void reduce_call::issue() {
  const isthmus_operation& operation = m_request.operation;
  begin(static_cast<std::uint64_t>(operation.op) * ISTHMUS_DATATYPE_COUNT +
        static_cast<std::uint64_t>(operation.datatype));
  command_batch& main = m_resources.main;
  record_progress();
  if (m_resources.size == 1) return copy_own_block(main);
  const std::uint64_t chunks = chunks_of(m_resources.rank);
  const bool uses_combiner_stream = chunks > 1;
  command_batch& combiner = uses_combiner_stream ? m_resources.combiner.commands : main;
  if (uses_combiner_stream) combiner.follow(main, m_resources.fork_event);
  fork_streams();
  open_slot(combiner, 0);
  signal_chunk(combiner, 0);
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    if (uses_combiner_stream) combiner.flush();
    write_chunk(chunk);
    for (side_stream& stream : m_resources.peer_streams) stream.commands.flush();
    if (uses_combiner_stream) main.flush();
    if (chunk + 1 < chunks) {
      open_slot(combiner, chunk + 1);
      if (is_lockstep()) main.follow(combiner, m_resources.slot_event);
      signal_chunk(is_lockstep() ? main : combiner, chunk + 1);
    }
    combine(combiner, chunk);
  }
  join_streams();
  if (uses_combiner_stream) main.follow(combiner, m_resources.combiner.join_event);
  for (std::uint64_t& uses : m_resources.slot_uses) uses += chunks;
}

}  // namespace

void issue_staged(const call_request& request) { staged_call(request).issue(); }

void issue_reduce(const call_request& request, native_kernel kernel) { reduce_call(request, kernel).issue(); }

}  // namespace isthmus::copy_engine
