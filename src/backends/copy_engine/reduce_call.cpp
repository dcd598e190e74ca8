// Algorithm reduce (reduce_scatter): sources write to the staging slots of the readers, and a kernel
// combines the data.
#include "backends/copy_engine/chunked_call.hpp"
#include "base/tables.hpp"

namespace isthmus::copy_engine {
namespace {

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

void issue_reduce(const call_request& request, native_kernel kernel) { reduce_call(request, kernel).issue(); }

}  // namespace isthmus::copy_engine
