#include "calls.hpp"

#include <algorithm>
#include <array>

namespace gpu_bench {
namespace {

using bench::nccl_functions;
namespace native = bench::nccl;

int native_datatype_of(isthmus_datatype datatype) {
  switch (datatype) {
    case ISTHMUS_UINT8: return native::native_uint8;
    case ISTHMUS_FLOAT16: return native::native_float16;
    case ISTHMUS_BFLOAT16: return native::native_bfloat16;
    case ISTHMUS_FLOAT32: return native::native_float32;
    default: throw std::runtime_error("no NCCL type for this datatype; add it to native_datatype_of");
  }
}

// Runs `body` inside a group of NCCL.
template <typename Body>
void grouped(const nccl_functions& nccl, Body&& body) {
  bench::check_nccl(nccl.group_start());
  body();
  bench::check_nccl(nccl.group_end());
}

// The calls of NCCL for a case on one rank.
class nccl_operation {
 public:
  nccl_operation(const bench_case& test_case, int rank, int size, const rank_buffers& buffers,
                 const nccl_functions& nccl, bench::nccl_comm communicator, cudaStream_t stream)
      : m_collective(test_case.collective),
        m_rank(rank),
        m_size(size),
        m_count(test_case.shape(size).count),
        m_element(oracle::bytes_of(test_case.datatype)),
        m_type(native_datatype_of(test_case.datatype)),
        m_nccl(nccl),
        m_communicator(communicator),
        m_stream(stream),
        m_send(!test_case.in_place                         ? buffers.send
               : test_case.collective == ISTHMUS_ALLGATHER ? block(buffers.recv, rank)
                                                           : buffers.recv),
        m_recv(buffers.recv),
        m_is_composed(!has_function()) {}

  void enqueue() const {
    m_is_composed ? grouped(m_nccl, [&] { compose(); }) : bench::check_nccl(call());
  }

 private:
  bool has_function() const {
    switch (m_collective) {
      case ISTHMUS_BROADCAST:
      case ISTHMUS_REDUCE:
      case ISTHMUS_ALLREDUCE:
      case ISTHMUS_REDUCE_SCATTER:
      case ISTHMUS_REDUCE_SCATTERV:
      case ISTHMUS_ALLGATHER:
      case ISTHMUS_BARRIER: return true;
      case ISTHMUS_GATHER: return m_nccl.gather != nullptr;
      case ISTHMUS_SCATTER: return m_nccl.scatter != nullptr;
      case ISTHMUS_ALLTOALL: return m_nccl.all_to_all != nullptr;
      default: return false;
    }
  }
  // Calls the function of NCCL.
  int call() const {
    constexpr int sum = native::native_sum;
    switch (m_collective) {
      case ISTHMUS_BROADCAST:
        return m_nccl.broadcast(m_send, m_recv, m_count, m_type, 0, m_communicator, m_stream);
      case ISTHMUS_REDUCE:
        return m_nccl.reduce(m_send, m_recv, m_count, m_type, sum, 0, m_communicator, m_stream);
      case ISTHMUS_ALLREDUCE:
        return m_nccl.all_reduce(m_send, m_recv, m_count, m_type, sum, m_communicator, m_stream);
      case ISTHMUS_REDUCE_SCATTER:
      case ISTHMUS_REDUCE_SCATTERV:  // with equal blocks
        return m_nccl.reduce_scatter(m_send, m_recv, m_count, m_type, sum, m_communicator, m_stream);
      case ISTHMUS_ALLGATHER:
        return m_nccl.all_gather(m_send, m_recv, m_count, m_type, m_communicator, m_stream);
      case ISTHMUS_GATHER: return m_nccl.gather(m_send, m_recv, m_count, m_type, 0, m_communicator, m_stream);
      case ISTHMUS_SCATTER: return m_nccl.scatter(m_send, m_recv, m_count, m_type, 0, m_communicator, m_stream);
      case ISTHMUS_ALLTOALL:
        return m_nccl.all_to_all(m_send, m_recv, m_count, m_type, m_communicator, m_stream);
      default:  // barrier: an allreduce of one byte
        return m_nccl.all_reduce(m_recv, m_recv, 1, native::native_uint8, native::native_max, m_communicator,
                                 m_stream);
    }
  }
  // Sends and receives for a collective that NCCL, or an older version of it, has no function for, as the manual
  // of NCCL shows.
  void compose() const {
    const bool is_root = m_rank == 0;
    switch (m_collective) {
      case ISTHMUS_GATHER:
      case ISTHMUS_GATHERV:
        send(m_send, 0);
        for (int peer = 0; peer < m_size && is_root; ++peer) recv(block(m_recv, peer), peer);
        return;
      case ISTHMUS_SCATTER:
      case ISTHMUS_SCATTERV:
        recv(m_recv, 0);
        for (int peer = 0; peer < m_size && is_root; ++peer) send(block(m_send, peer), peer);
        return;
      case ISTHMUS_ALLTOALL:
      case ISTHMUS_ALLTOALLV:
      case ISTHMUS_ALLGATHERV:
        for (int peer = 0; peer < m_size; ++peer) {
          send(m_collective == ISTHMUS_ALLGATHERV ? m_send : block(m_send, peer), peer);
          recv(block(m_recv, peer), peer);
        }
        return;
      default:  // a ring
        send(m_send, (m_rank + 1) % m_size);
        recv(m_recv, (m_rank + m_size - 1) % m_size);
    }
  }
  std::byte* block(std::byte* base, int peer) const {
    return base + static_cast<std::uint64_t>(peer) * m_count * m_element;
  }
  void send(const std::byte* from, int peer) const {
    bench::check_nccl(m_nccl.send(from, m_count, m_type, peer, m_communicator, m_stream));
  }
  void recv(std::byte* to, int peer) const {
    bench::check_nccl(m_nccl.recv(to, m_count, m_type, peer, m_communicator, m_stream));
  }

  isthmus_collective m_collective;
  int m_rank, m_size;
  std::uint64_t m_count, m_element;
  int m_type;
  const nccl_functions& m_nccl;
  bench::nccl_comm m_communicator;
  cudaStream_t m_stream;
  std::byte *m_send, *m_recv;
  bool m_is_composed;
};

}  // namespace

oracle::operation_shape bench_case::shape(int size) const {
  // A block is a multiple of 4 bytes, also of a type that is smaller.
  const auto n = static_cast<std::uint64_t>(size);
  const std::uint64_t words = bytes / 4 / (bench::has_block_per_rank(collective) ? n : 1);
  const std::uint64_t count = collective == ISTHMUS_BARRIER ? 0 : words * 4 / oracle::bytes_of(datatype);
  oracle::block_layout equal;
  for (std::uint64_t peer = 0; peer < n; ++peer) {
    equal.counts.push_back(count);
    equal.displs.push_back(count * peer);
  }
  const std::vector<oracle::block_layout> layouts(n, equal);
  return {collective, size, collective == ISTHMUS_SEND ? 1 : 0, count, layouts, layouts};
}

std::uint64_t bench_case::output_bytes(int rank, int size) const {
  return oracle::recv_extent(shape(size), rank) * oracle::bytes_of(datatype);
}

std::vector<bench_case> cases(std::uint64_t bytes) {
  std::vector<bench_case> all;
  for (int collective = 0; collective < ISTHMUS_COLLECTIVE_COUNT; ++collective)
    if (collective != ISTHMUS_RECV) all.push_back({static_cast<isthmus_collective>(collective), bytes});
  return all;
}

prepared_operation::prepared_operation(const bench_case& test_case, int rank, int size,
                                       const rank_buffers& buffers, cudaStream_t stream)
    : m_rank(rank), m_size(size) {
  const oracle::operation_shape shape = test_case.shape(size);
  m_counts = shape.send_layouts.front().counts;
  m_displs = shape.send_layouts.front().displs;
  m_operation.collective = test_case.collective;
  m_operation.datatype = test_case.datatype;
  m_operation.op = ISTHMUS_SUM;
  m_operation.count = test_case.collective == ISTHMUS_ALLTOALLV ? 0 : shape.count;
  m_operation.stream = stream;
  if (test_case.collective == ISTHMUS_BARRIER) return;
  const std::uint64_t own_offset =
      test_case.collective == ISTHMUS_ALLGATHER
          ? m_displs[static_cast<std::size_t>(rank)] * oracle::bytes_of(test_case.datatype)
          : 0;
  m_operation.send_buf = test_case.in_place ? buffers.recv + own_offset : buffers.send;
  m_operation.recv_buf = buffers.recv;
  switch (test_case.collective) {
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALLV:
    case ISTHMUS_REDUCE_SCATTERV:
      m_operation.send_counts = m_counts.data();
      m_operation.send_displs = m_displs.data();
      if (test_case.collective != ISTHMUS_ALLTOALLV) return;
      [[fallthrough]];
    case ISTHMUS_ALLGATHERV:
    case ISTHMUS_GATHERV:
      m_operation.recv_counts = m_counts.data();
      m_operation.recv_displs = m_displs.data();
      return;
    default: return;
  }
}

void prepared_operation::enqueue(isthmus_communicator communicator) const {
  if (m_operation.collective != ISTHMUS_SEND) return check(isthmus_enqueue(communicator, &m_operation));
  const auto& [count, type] = std::pair(m_operation.count, m_operation.datatype);
  check(isthmus_group_start());
  check(
      isthmus_send(m_operation.send_buf, count, type, (m_rank + 1) % m_size, communicator, m_operation.stream));
  check(isthmus_recv(m_operation.recv_buf, count, type, (m_rank + m_size - 1) % m_size, communicator,
                     m_operation.stream));
  check(isthmus_group_end());
}

device_call make_nccl_call(const device_thread& thread, const bench_case& test_case,
                           std::vector<rank_buffers> buffers, const bench::nccl_library& nccl,
                           std::vector<bench::nccl_comm> communicators) {
  std::vector<nccl_operation> operations;
  thread.each([&](const device_lane& lane, std::size_t i) {
    operations.emplace_back(test_case, lane.rank, thread.size(), buffers[i], nccl.functions(), communicators[i],
                            lane.stream);
  });
  device_call result{{"nccl", "", "", {}}, test_case, std::move(buffers)};
  if (operations.size() == 1)
    result.run = [operation = operations.front()] { operation.enqueue(); };
  else
    result.run = [&nccl, operations] {
      grouped(nccl.functions(), [&] {
        for (const nccl_operation& operation : operations) operation.enqueue();
      });
    };
  return result;
}

device_call make_isthmus_call(const device_thread& thread, const bench_case& test_case,
                              std::vector<rank_buffers> buffers,
                              std::vector<isthmus_communicator> communicators) {
  std::vector<std::shared_ptr<prepared_operation>> operations;
  thread.each([&](const device_lane& lane, std::size_t i) {
    operations.push_back(
        std::make_shared<prepared_operation>(test_case, lane.rank, thread.size(), buffers[i], lane.stream));
  });
  device_call result{{"isthmus", "", "", {}}, test_case, std::move(buffers)};
  if (operations.size() == 1)
    result.run = [operation = operations.front(), communicator = communicators.front()] {
      operation->enqueue(communicator);
    };
  else
    result.run = [operations, communicators] {
      check(isthmus_group_start());
      for (std::size_t i = 0; i < operations.size(); ++i) operations[i]->enqueue(communicators[i]);
      check(isthmus_group_end());
    };
  return result;
}

}  // namespace gpu_bench
