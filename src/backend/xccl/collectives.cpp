#include "collectives.hpp"

#include <cstdint>

#include "native_map.hpp"

namespace isthmus::xccl {
namespace {

// One operation on its way to the native library. Blocks travel as bytes: no datatype is ever missing for
// pure data movement.
class enqueuer {
 public:
  enqueuer(const call_site& site, const isthmus_operation& operation)
      : m_site(site), m_native(site.native), m_op(operation), m_element(datatype_bytes(operation.datatype)) {}

  outcome run(scratch& kept);

 private:
  std::size_t bytes() const { return m_op.count * m_element; }
  const char* from(std::uint64_t element) const {
    return static_cast<const char*>(m_op.send_buf) + element * m_element;
  }
  char* to(std::uint64_t element) const { return static_cast<char*>(m_op.recv_buf) + element * m_element; }
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

  void reduction();
  void broadcast();
  void allgatherv();
  void gather();
  void scatter();
  void alltoall(scratch& kept);
  // The own block of a gather or scatter: nothing to do in place.
  void own_block(const void* source, void* target, std::size_t size) {
    if (source == target) return;
    send(source, size, m_site.rank);
    recv(target, size, m_site.rank);
  }
  const void* stable_source(std::size_t size, scratch& kept);

  const call_site& m_site;
  const native_functions& m_native;
  const isthmus_operation& m_op;
  std::size_t m_element;
  outcome m_outcome;
};

void enqueuer::reduction() {
  if (m_site.size == 1) return broadcast();  // NCCL refuses some types in its one-rank reduction
  const int datatype = *native_datatype_of(m_op.datatype), op = *native_op_of(m_op.op);
  if (m_op.collective == ISTHMUS_ALLREDUCE) {
    m_outcome.note(
        m_native.all_reduce(m_op.send_buf, m_op.recv_buf, m_op.count, datatype, op, m_site.comm, m_op.stream),
        "AllReduce");
  } else if (m_op.collective == ISTHMUS_REDUCE_SCATTER) {
    m_outcome.note(m_native.reduce_scatter(m_op.send_buf, m_op.recv_buf, m_op.count, datatype, op, m_site.comm,
                                           m_op.stream),
                   "ReduceScatter");
  } else {
    m_outcome.note(m_native.reduce(m_op.send_buf, m_op.recv_buf, m_op.count, datatype, op, m_op.root,
                                   m_site.comm, m_op.stream),
                   "Reduce");
  }
}

void enqueuer::broadcast() {
  // Only the root reads its send buffer; the others may have none, and the library wants a valid pointer.
  const void* source = is_root() ? m_op.send_buf : m_op.recv_buf;
  m_outcome.note(
      m_native.broadcast(source, m_op.recv_buf, bytes(), native_int8, m_op.root, m_site.comm, m_op.stream),
      "Broadcast");
}

void enqueuer::allgatherv() {
  grouped([&] {
    for (int peer = 0; peer < m_site.size; ++peer) {
      char* block = to(m_op.recv_displs[peer]);
      const std::size_t size = m_op.recv_counts[peer] * m_element;
      if (peer == m_site.rank) {
        own_block(m_op.send_buf, block, size);
      } else {
        send(m_op.send_buf, bytes(), peer);
        recv(block, size, peer);
      }
    }
  });
}

void enqueuer::gather() {
  const bool variable = m_op.collective == ISTHMUS_GATHERV;
  if (!variable && m_native.gather != nullptr) {
    m_outcome.note(m_native.gather(m_op.send_buf, m_op.recv_buf, bytes(), native_int8, m_op.root, m_site.comm,
                                   m_op.stream),
                   "Gather");
    return;
  }
  grouped([&] {
    if (!is_root()) return send(m_op.send_buf, bytes(), m_op.root);
    for (int peer = 0; peer < m_site.size; ++peer) {
      char* block = to(variable ? m_op.recv_displs[peer] : m_op.count * peer);
      if (peer == m_site.rank)
        own_block(m_op.send_buf, block, bytes());
      else
        recv(block, variable ? m_op.recv_counts[peer] * m_element : bytes(), peer);
    }
  });
}

void enqueuer::scatter() {
  const bool variable = m_op.collective == ISTHMUS_SCATTERV;
  if (!variable && m_native.scatter != nullptr) {
    m_outcome.note(m_native.scatter(m_op.send_buf, m_op.recv_buf, bytes(), native_int8, m_op.root, m_site.comm,
                                    m_op.stream),
                   "Scatter");
    return;
  }
  grouped([&] {
    if (!is_root()) return recv(m_op.recv_buf, bytes(), m_op.root);
    for (int peer = 0; peer < m_site.size; ++peer) {
      const char* block = from(variable ? m_op.send_displs[peer] : m_op.count * peer);
      if (peer == m_site.rank)
        own_block(block, m_op.recv_buf, bytes());
      else
        send(block, variable ? m_op.send_counts[peer] * m_element : bytes(), peer);
    }
  });
}

// In place, a block that arrives would overwrite one that has yet to leave, so the blocks leave from a
// copy. Stream-ordered memory keeps that free of host waits and valid inside a captured graph.
const void* enqueuer::stable_source(std::size_t size, scratch& kept) {
  if (m_op.send_buf != m_op.recv_buf || size == 0) return m_op.send_buf;
  if (m_site.runtime == nullptr) {
    m_outcome.note(native_invalid_usage, "AllToAll in place, which needs device memory for a copy");
    return nullptr;
  }
  const device_guard guard(*m_site.runtime, m_site.device);
  m_outcome.is_device_error = true;
  m_outcome.note(m_site.runtime->malloc_async(&kept.pointer, size, m_op.stream), "MallocAsync");
  if (!m_outcome.ok()) return nullptr;
  kept.stream = m_op.stream;
  m_outcome.note(m_site.runtime->memcpy_async(kept.pointer, m_op.send_buf, size, memcpy_default, m_op.stream),
                 "MemcpyAsync");
  if (m_outcome.ok()) m_outcome.is_device_error = false;
  return kept.pointer;
}

void enqueuer::alltoall(scratch& kept) {
  const bool variable = m_op.collective == ISTHMUS_ALLTOALLV;
  std::uint64_t elements = m_op.count * m_site.size;
  if (variable) {
    elements = 0;
    for (int peer = 0; peer < m_site.size; ++peer) {
      const std::uint64_t end = m_op.send_displs[peer] + m_op.send_counts[peer];
      if (m_op.send_counts[peer] != 0 && end > elements) elements = end;
    }
  }
  const char* source = static_cast<const char*>(stable_source(elements * m_element, kept));
  if (!m_outcome.ok()) return;
  if (!variable && m_native.all_to_all != nullptr) {
    m_outcome.note(m_native.all_to_all(source, m_op.recv_buf, bytes(), native_int8, m_site.comm, m_op.stream),
                   "AlltoAll");
    return;
  }
  grouped([&] {
    for (int peer = 0; peer < m_site.size; ++peer) {
      const std::uint64_t send_at = variable ? m_op.send_displs[peer] : m_op.count * peer;
      const std::uint64_t recv_at = variable ? m_op.recv_displs[peer] : m_op.count * peer;
      send(source + send_at * m_element, (variable ? m_op.send_counts[peer] : m_op.count) * m_element, peer);
      recv(to(recv_at), (variable ? m_op.recv_counts[peer] : m_op.count) * m_element, peer);
    }
  });
}

outcome enqueuer::run(scratch& kept) {
  switch (m_op.collective) {
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_REDUCE:
    case ISTHMUS_REDUCE_SCATTER:
      if (m_op.count != 0) reduction();
      break;
    case ISTHMUS_BROADCAST:
      if (m_op.count != 0) broadcast();
      break;
    case ISTHMUS_ALLGATHER:
      if (m_op.count != 0)
        m_outcome.note(
            m_native.all_gather(m_op.send_buf, m_op.recv_buf, bytes(), native_int8, m_site.comm, m_op.stream),
            "AllGather");
      break;
    case ISTHMUS_ALLGATHERV: allgatherv(); break;
    case ISTHMUS_GATHER:
      if (m_op.count != 0) gather();
      break;
    case ISTHMUS_GATHERV: gather(); break;
    case ISTHMUS_SCATTER:
      if (m_op.count != 0) scatter();
      break;
    case ISTHMUS_SCATTERV: scatter(); break;
    case ISTHMUS_ALLTOALL:
      if (m_op.count != 0) alltoall(kept);
      break;
    case ISTHMUS_ALLTOALLV: alltoall(kept); break;
    case ISTHMUS_SEND: send(m_op.send_buf, bytes(), m_op.root); break;
    case ISTHMUS_RECV: recv(m_op.recv_buf, bytes(), m_op.root); break;
    case ISTHMUS_BARRIER:
      m_outcome.note(m_native.all_reduce(m_site.barrier_byte, m_site.barrier_byte, 1, native_uint8, native_max,
                                         m_site.comm, m_op.stream),
                     "AllReduce");
      break;
    case ISTHMUS_COLLECTIVE_COUNT: m_outcome.note(native_invalid_argument, "enqueue"); break;
  }
  return m_outcome;
}

}  // namespace

outcome enqueue_collective(const call_site& site, const isthmus_operation& operation, scratch& kept) {
  return enqueuer(site, operation).run(kept);
}

}  // namespace isthmus::xccl
