#include "collectives.hpp"

#include <cstdint>

#include "base/block_map.hpp"

namespace isthmus::nccl_family {
namespace {

// Translates one operation into native calls. Data movement is expressed in bytes, so it
// works for every datatype.
class enqueuer {
 public:
  enqueuer(const enqueue_target& target, const isthmus_operation& operation)
      : m_target(target),
        m_functions(target.functions),
        m_operation(operation),
        m_blocks(operation, target.rank, target.size) {}

  enqueue_result run(scratch_memory& scratch);

 private:
  std::size_t bytes() const { return m_operation.count * m_blocks.element_bytes; }
  bool is_root() const { return m_target.rank == m_operation.root; }

  void send(const void* pointer, std::size_t size, int peer) {
    if (size != 0)
      m_result.record(m_functions.send(pointer, size, native_int8, peer, m_target.comm, m_operation.stream),
                      "Send");
  }
  void recv(void* pointer, std::size_t size, int peer) {
    if (size != 0)
      m_result.record(m_functions.recv(pointer, size, native_int8, peer, m_target.comm, m_operation.stream),
                      "Recv");
  }

  // Runs `body` inside a native group, which is closed even if `body` fails.
  template <typename Body>
  void in_native_group(Body&& body) {
    m_result.record(m_functions.group_start(), "GroupStart");
    if (!m_result.ok()) return;
    body();
    m_result.record(m_functions.group_end(), "GroupEnd");
  }

  // Copies data on the stream through the device runtime.
  void copy(void* to, const void* from, std::size_t size) {
    m_result.is_device_error = true;
    m_result.record(m_target.runtime->memcpy_async(to, from, size, gpu::memcpy_default, m_operation.stream),
                    "MemcpyAsync");
    if (m_result.ok()) m_result.is_device_error = false;
  }

  void reduction();
  void reduce_scatter_uneven(int datatype, int op);
  void broadcast(std::size_t from = 0);
  void send_or_receive();
  void barrier();
  void exchange_blocks(const void* source);
  void copy_own_block(const void* source);
  bool try_native_function(const void* source);
  const void* source_or_copy(std::size_t size, scratch_memory& scratch);

  const enqueue_target& m_target;
  const native_functions& m_functions;
  const isthmus_operation& m_operation;
  block_map m_blocks;
  enqueue_result m_result;
};

void enqueuer::reduction() {
  if (m_target.size == 1)
    return broadcast(m_blocks.outgoing_block(0).offset);  // NCCL rejects some datatypes in one-rank reductions
  const int datatype = *native_datatype_of(m_operation.datatype), op = *native_op_of(m_operation.op);
  if (m_operation.collective == ISTHMUS_ALLREDUCE) {
    m_result.record(m_functions.all_reduce(m_operation.send_buf, m_operation.recv_buf, m_operation.count,
                                           datatype, op, m_target.comm, m_operation.stream),
                    "AllReduce");
  } else if (m_operation.collective == ISTHMUS_REDUCE_SCATTER) {
    m_result.record(m_functions.reduce_scatter(m_operation.send_buf, m_operation.recv_buf, m_operation.count,
                                               datatype, op, m_target.comm, m_operation.stream),
                    "ReduceScatter");
  } else if (m_blocks.send.shape == extent::counts) {
    reduce_scatter_uneven(datatype, op);
  } else {
    m_result.record(m_functions.reduce(m_operation.send_buf, m_operation.recv_buf, m_operation.count, datatype,
                                       op, m_operation.root, m_target.comm, m_operation.stream),
                    "Reduce");
  }
}

// Reduce-scatter with block lengths that all ranks know. Contiguous blocks of equal length need a
// single native call.
void enqueuer::reduce_scatter_uneven(int datatype, int op) {
  const auto* const send = static_cast<const char*>(m_operation.send_buf);
  bool is_even = true;
  for (int receiver = 0; receiver < m_target.size; ++receiver)
    is_even = is_even && m_blocks.send.length(receiver) == m_operation.count &&
              m_blocks.send.begin(receiver) ==
                  m_blocks.send.begin(0) + static_cast<std::uint64_t>(receiver) * m_operation.count;
  if (is_even) {
    if (m_operation.count != 0)
      m_result.record(
          m_functions.reduce_scatter(send + m_blocks.outgoing_block(0).offset, m_operation.recv_buf,
                                     m_operation.count, datatype, op, m_target.comm, m_operation.stream),
          "ReduceScatter");
    return;
  }
  in_native_group([&] {
    for (int receiver = 0; receiver < m_target.size; ++receiver)
      if (m_blocks.send.length(receiver) != 0)
        m_result.record(m_functions.reduce(send + m_blocks.outgoing_block(receiver).offset,
                                           receiver == m_target.rank ? m_operation.recv_buf : nullptr,
                                           m_blocks.send.length(receiver), datatype, op, receiver,
                                           m_target.comm, m_operation.stream),
                        "Reduce");
  });
}

void enqueuer::broadcast(std::size_t from) {
  // Only the root's send buffer is read. The other ranks may pass NULL, but the library needs a valid pointer.
  const void* source = is_root() ? static_cast<const char*>(m_operation.send_buf) + from : m_operation.recv_buf;
  m_result.record(m_functions.broadcast(source, m_operation.recv_buf, bytes(), native_int8, m_operation.root,
                                        m_target.comm, m_operation.stream),
                  "Broadcast");
}

void enqueuer::send_or_receive() {
  send(m_operation.send_buf, m_blocks.send_bytes(), m_operation.root);
  recv(m_operation.recv_buf, m_blocks.recv_bytes(), m_operation.root);
}

void enqueuer::barrier() {
  m_result.record(m_functions.all_reduce(m_target.barrier_byte, m_target.barrier_byte, 1, native_uint8,
                                         native_max, m_target.comm, m_operation.stream),
                  "AllReduce");
}

// Runs an operation on a communicator with a single rank.
void enqueuer::copy_own_block(const void* source) {
  const block out = m_blocks.outgoing_block(0), in = m_blocks.incoming_block(0);
  const char* const from = static_cast<const char*>(source) + out.offset;
  char* const to = static_cast<char*>(m_operation.recv_buf) + in.offset;
  if (from == to || in.bytes == 0) return;
  const scoped_device guard(*m_target.runtime, m_target.device);
  copy(to, from, in.bytes);
}

// Sends each block in its own message, including the rank's own block. An in-place block needs no message.
void enqueuer::exchange_blocks(const void* source) {
  if (m_target.size == 1 && m_target.runtime != nullptr) return copy_own_block(source);
  in_native_group([&] {
    for (int peer = 0; peer < m_target.size; ++peer) {
      const block out = m_blocks.outgoing_block(peer), in = m_blocks.incoming_block(peer);
      const char* from = static_cast<const char*>(source) + out.offset;
      char* to = static_cast<char*>(m_operation.recv_buf) + in.offset;
      if (peer == m_target.rank && from == to) continue;
      send(from, out.bytes, peer);
      recv(to, in.bytes, peer);
    }
  });
}

// Calls the native function for this collective. Returns false if the library has no such function.
bool enqueuer::try_native_function(const void* source) {
  const auto call_rooted = [&](auto* function, const char* name) {
    if (function == nullptr) return false;
    m_result.record(function(source, m_operation.recv_buf, bytes(), native_int8, m_operation.root,
                             m_target.comm, m_operation.stream),
                    name);
    return true;
  };
  const auto call_unrooted = [&](auto* function, const char* name) {
    if (function == nullptr) return false;
    m_result.record(
        function(source, m_operation.recv_buf, bytes(), native_int8, m_target.comm, m_operation.stream), name);
    return true;
  };
  switch (m_operation.collective) {
    case ISTHMUS_BROADCAST: return broadcast(), true;
    case ISTHMUS_ALLGATHER: return call_unrooted(m_functions.all_gather, "AllGather");
    case ISTHMUS_GATHER: return call_rooted(m_functions.gather, "Gather");
    case ISTHMUS_SCATTER: return call_rooted(m_functions.scatter, "Scatter");
    case ISTHMUS_ALLTOALL: return call_unrooted(m_functions.all_to_all, "AlltoAll");
    default: return false;
  }
}

// In place, an incoming block could overwrite an unsent block, so the blocks are sent from a copy. The copy
// uses stream-ordered memory, which needs no host synchronization and stays valid in a captured graph.
const void* enqueuer::source_or_copy(std::size_t size, scratch_memory& scratch) {
  if (!overwrites_unsent_data(m_operation) || size == 0) return m_operation.send_buf;
  if (m_target.runtime == nullptr) {
    m_result.record(native_invalid_usage, "AllToAll in place (it needs device memory for a copy)");
    return nullptr;
  }
  const scoped_device guard(*m_target.runtime, m_target.device);
  m_result.is_device_error = true;
  m_result.record(m_target.runtime->malloc_async(&scratch.pointer, size, m_operation.stream), "MallocAsync");
  if (!m_result.ok()) return nullptr;
  scratch.stream = m_operation.stream;
  copy(scratch.pointer, m_operation.send_buf, size);
  return scratch.pointer;
}

enqueue_result enqueuer::run(scratch_memory& scratch) {
  const collective_row& row = row_of(m_operation.collective);
  if (m_operation.count == 0 && has_equal_count(row)) return m_result;
  if (is_point_to_point(m_operation.collective)) {
    send_or_receive();
  } else if (row.send_ranks == buffer_ranks::none) {
    barrier();
  } else if (row.is_reduction) {
    reduction();
  } else {
    const void* source = source_or_copy(m_blocks.send_bytes(), scratch);
    if (m_result.ok() && !try_native_function(source)) exchange_blocks(source);
  }
  return m_result;
}

}  // namespace

enqueue_result enqueue_collective(const enqueue_target& target, const isthmus_operation& operation,
                                  scratch_memory& scratch) {
  return enqueuer(target, operation).run(scratch);
}

}  // namespace isthmus::nccl_family
