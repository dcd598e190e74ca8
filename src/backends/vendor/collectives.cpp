#include "collectives.hpp"

#include <cstdint>

#include "base/block_map.hpp"
#include "native_map.hpp"

namespace isthmus::xccl {
namespace {

// One operation on its way to the native library. Blocks travel as bytes: no datatype is ever missing for
// pure data movement.
class enqueuer {
 public:
  enqueuer(const call_site& site, const isthmus_operation& operation)
      : m_site(site), m_native(site.native), m_op(operation), m_blocks(operation, site.rank, site.size) {}

  outcome run(scratch& kept);

 private:
  std::size_t bytes() const { return m_op.count * m_blocks.element_bytes; }
  bool is_root() const { return m_site.rank == m_op.root; }

  void send(const void* pointer, std::size_t size, int peer) {
    if (size != 0)
      m_outcome.note(m_native.send(pointer, size, native_int8, peer, m_site.comm, m_op.stream), "Send");
  }
  void recv(void* pointer, std::size_t size, int peer) {
    if (size != 0)
      m_outcome.note(m_native.recv(pointer, size, native_int8, peer, m_site.comm, m_op.stream), "Recv");
  }

  // Runs `body` inside a native group, which is closed whatever happens.
  template <typename Body>
  void grouped(Body&& body) {
    m_outcome.note(m_native.group_start(), "GroupStart");
    if (!m_outcome.ok()) return;
    body();
    m_outcome.note(m_native.group_end(), "GroupEnd");
  }

  // On the stream, by the device's runtime.
  void copy(void* to, const void* from, std::size_t size) {
    m_outcome.is_device_error = true;
    m_outcome.note(m_site.runtime->memcpy_async(to, from, size, memcpy_default, m_op.stream), "MemcpyAsync");
    if (m_outcome.ok()) m_outcome.is_device_error = false;
  }

  void reduction();
  void reduce_uneven(int datatype, int op);
  void broadcast(std::size_t from = 0);
  void message();
  void barrier();
  void exchange(const void* source);
  void keep_own_block(const void* source);
  bool move_blocks(const void* source);
  const void* stable_source(std::size_t size, scratch& kept);

  const call_site& m_site;
  const native_functions& m_native;
  const isthmus_operation& m_op;
  block_map m_blocks;
  outcome m_outcome;
};

void enqueuer::reduction() {
  if (m_site.size == 1)
    return broadcast(m_blocks.outgoing_block(0).offset);  // NCCL refuses some types in its one-rank reduction
  const int datatype = *native_datatype_of(m_op.datatype), op = *native_op_of(m_op.op);
  if (m_op.collective == ISTHMUS_ALLREDUCE) {
    m_outcome.note(
        m_native.all_reduce(m_op.send_buf, m_op.recv_buf, m_op.count, datatype, op, m_site.comm, m_op.stream),
        "AllReduce");
  } else if (m_op.collective == ISTHMUS_REDUCE_SCATTER) {
    m_outcome.note(m_native.reduce_scatter(m_op.send_buf, m_op.recv_buf, m_op.count, datatype, op, m_site.comm,
                                           m_op.stream),
                   "ReduceScatter");
  } else if (m_blocks.send.shape == extent::counts) {
    reduce_uneven(datatype, op);
  } else {
    m_outcome.note(m_native.reduce(m_op.send_buf, m_op.recv_buf, m_op.count, datatype, op, m_op.root,
                                   m_site.comm, m_op.stream),
                   "Reduce");
  }
}

// A block for each rank, whose lengths all ranks know: in one call where they are equal and side by side.
void enqueuer::reduce_uneven(int datatype, int op) {
  const auto* const send = static_cast<const char*>(m_op.send_buf);
  bool equal = true;
  for (int reader = 0; reader < m_site.size; ++reader)
    equal =
        equal && m_blocks.send.length(reader) == m_op.count &&
        m_blocks.send.begin(reader) == m_blocks.send.begin(0) + static_cast<std::uint64_t>(reader) * m_op.count;
  if (equal) {
    if (m_op.count != 0)
      m_outcome.note(m_native.reduce_scatter(send + m_blocks.outgoing_block(0).offset, m_op.recv_buf, m_op.count,
                                             datatype, op, m_site.comm, m_op.stream),
                     "ReduceScatter");
    return;
  }
  grouped([&] {
    for (int reader = 0; reader < m_site.size; ++reader)
      if (m_blocks.send.length(reader) != 0)
        m_outcome.note(m_native.reduce(
                           send + m_blocks.outgoing_block(reader).offset, reader == m_site.rank ? m_op.recv_buf : nullptr,
                           m_blocks.send.length(reader), datatype, op, reader, m_site.comm, m_op.stream),
                       "Reduce");
  });
}

void enqueuer::broadcast(std::size_t from) {
  // Only the root reads its send buffer; the others may have none, and the library wants a valid pointer.
  const void* source = is_root() ? static_cast<const char*>(m_op.send_buf) + from : m_op.recv_buf;
  m_outcome.note(
      m_native.broadcast(source, m_op.recv_buf, bytes(), native_int8, m_op.root, m_site.comm, m_op.stream),
      "Broadcast");
}

void enqueuer::message() {
  send(m_op.send_buf, m_blocks.send_bytes(), m_op.root);
  recv(m_op.recv_buf, m_blocks.recv_bytes(), m_op.root);
}

void enqueuer::barrier() {
  m_outcome.note(m_native.all_reduce(m_site.barrier_byte, m_site.barrier_byte, 1, native_uint8, native_max,
                                     m_site.comm, m_op.stream),
                 "AllReduce");
}

// Of the only rank.
void enqueuer::keep_own_block(const void* source) {
  const block out = m_blocks.outgoing_block(0), in = m_blocks.incoming_block(0);
  const char* const from = static_cast<const char*>(source) + out.offset;
  char* const to = static_cast<char*>(m_op.recv_buf) + in.offset;
  if (from == to || in.bytes == 0) return;
  const scoped_device guard(*m_site.runtime, m_site.device);
  copy(to, from, in.bytes);
}

// Every block by a message, the own one too: in place there is nothing to do for it.
void enqueuer::exchange(const void* source) {
  if (m_site.size == 1 && m_site.runtime != nullptr) return keep_own_block(source);
  grouped([&] {
    for (int peer = 0; peer < m_site.size; ++peer) {
      const block out = m_blocks.outgoing_block(peer), in = m_blocks.incoming_block(peer);
      const char* from = static_cast<const char*>(source) + out.offset;
      char* to = static_cast<char*>(m_op.recv_buf) + in.offset;
      if (peer == m_site.rank && from == to) continue;
      send(from, out.bytes, peer);
      recv(to, in.bytes, peer);
    }
  });
}

// By a function of the library's own; false: it has none.
bool enqueuer::move_blocks(const void* source) {
  const auto rooted = [&](auto* function, const char* name) {
    if (function == nullptr) return false;
    m_outcome.note(function(source, m_op.recv_buf, bytes(), native_int8, m_op.root, m_site.comm, m_op.stream),
                   name);
    return true;
  };
  const auto unrooted = [&](auto* function, const char* name) {
    if (function == nullptr) return false;
    m_outcome.note(function(source, m_op.recv_buf, bytes(), native_int8, m_site.comm, m_op.stream), name);
    return true;
  };
  switch (m_op.collective) {
    case ISTHMUS_BROADCAST: return broadcast(), true;
    case ISTHMUS_ALLGATHER: return unrooted(m_native.all_gather, "AllGather");
    case ISTHMUS_GATHER: return rooted(m_native.gather, "Gather");
    case ISTHMUS_SCATTER: return rooted(m_native.scatter, "Scatter");
    case ISTHMUS_ALLTOALL: return unrooted(m_native.all_to_all, "AlltoAll");
    default: return false;
  }
}

// In place, a block that arrives would overwrite one that has yet to leave, so the blocks leave from a
// copy. Stream-ordered memory keeps that free of host waits and valid inside a captured graph.
const void* enqueuer::stable_source(std::size_t size, scratch& kept) {
  if (!overwrites_unsent_data(m_op) || size == 0) return m_op.send_buf;
  if (m_site.runtime == nullptr) {
    m_outcome.note(native_invalid_usage, "AllToAll in place, which needs device memory for a copy");
    return nullptr;
  }
  const scoped_device guard(*m_site.runtime, m_site.device);
  m_outcome.is_device_error = true;
  m_outcome.note(m_site.runtime->malloc_async(&kept.pointer, size, m_op.stream), "MallocAsync");
  if (!m_outcome.ok()) return nullptr;
  kept.stream = m_op.stream;
  copy(kept.pointer, m_op.send_buf, size);
  return kept.pointer;
}

outcome enqueuer::run(scratch& kept) {
  const collective_row& row = row_of(m_op.collective);
  if (m_op.count == 0 && has_equal_count(row)) return m_outcome;
  if (is_point_to_point(m_op.collective)) {
    message();
  } else if (row.send_ranks == buffer_ranks::none) {
    barrier();
  } else if (row.is_reduction) {
    reduction();
  } else {
    const void* source = stable_source(m_blocks.send_bytes(), kept);
    if (m_outcome.ok() && !move_blocks(source)) exchange(source);
  }
  return m_outcome;
}

}  // namespace

outcome enqueue_collective(const call_site& site, const isthmus_operation& operation, scratch& kept) {
  return enqueuer(site, operation).run(kept);
}

}  // namespace isthmus::xccl
