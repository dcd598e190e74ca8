#include "pairs.hpp"

#include <algorithm>

#include "harness/patterns.hpp"

namespace gpu_bench {
namespace {

using isthmus::nccl::native_float32;
using isthmus::nccl::native_functions;
using isthmus::nccl::native_sum;

// Elements of one block, which is `count` of isthmus_operation.
std::uint64_t block_elements(const bench_case& test_case, int size) {
  const std::uint64_t elements = test_case.bytes / sizeof(float);
  return bench::has_block_per_rank(test_case.collective) ? elements / static_cast<std::uint64_t>(size)
                                                         : elements;
}

// Runs `body` inside a group of NCCL, as the manual of NCCL shows for exchanges of blocks.
template <typename Body>
int grouped(const native_functions& native, Body&& body) {
  if (const int code = native.group_start()) return code;
  const int code = body();
  const int end_code = native.group_end();
  return code != 0 ? code : end_code;
}

// Compositions of send and recv for collectives that NCCL, or an older version of it, has no function for.
class raw_exchange {
 public:
  raw_exchange(const rank_state& rank, std::uint64_t count) : m_rank(rank), m_count(count) {}

  int gather_to_root(bool is_root) const {
    return grouped(*m_rank.native, [&] {
      int code = send(m_rank.send, 0);
      for (int peer = 0; peer < m_rank.size && is_root && code == 0; ++peer)
        code = recv(block(m_rank.recv, peer), peer);
      return code;
    });
  }
  int scatter_from_root(bool is_root) const {
    return grouped(*m_rank.native, [&] {
      int code = recv(m_rank.recv, 0);
      for (int peer = 0; peer < m_rank.size && is_root && code == 0; ++peer)
        code = send(block(m_rank.send, peer), peer);
      return code;
    });
  }
  int exchange_blocks(bool sends_same_block) const {
    return grouped(*m_rank.native, [&] {
      int code = 0;
      for (int peer = 0; peer < m_rank.size && code == 0; ++peer) {
        code = send(sends_same_block ? m_rank.send : block(m_rank.send, peer), peer);
        if (code == 0) code = recv(block(m_rank.recv, peer), peer);
      }
      return code;
    });
  }
  int ring() const {
    return grouped(*m_rank.native, [&] {
      const int code = send(m_rank.send, (m_rank.rank + 1) % m_rank.size);
      return code != 0 ? code : recv(m_rank.recv, (m_rank.rank + m_rank.size - 1) % m_rank.size);
    });
  }

 private:
  std::byte* block(std::byte* base, int peer) const {
    return base + static_cast<std::uint64_t>(peer) * m_count * sizeof(float);
  }
  int send(const std::byte* from, int peer) const {
    return m_rank.native->send(from, m_count, native_float32, peer, m_rank.raw, m_rank.stream);
  }
  int recv(std::byte* to, int peer) const {
    return m_rank.native->recv(to, m_count, native_float32, peer, m_rank.raw, m_rank.stream);
  }

  const rank_state& m_rank;
  std::uint64_t m_count;
};

// The composition for a collective that this NCCL has no function for.
std::function<int()> composed_call(const bench_case& test_case, const rank_state& rank, std::uint64_t count) {
  const raw_exchange exchange(rank, count);
  const bool is_root = rank.rank == 0;
  switch (test_case.collective) {
    case ISTHMUS_GATHER:
    case ISTHMUS_GATHERV: return [=] { return exchange.gather_to_root(is_root); };
    case ISTHMUS_SCATTER:
    case ISTHMUS_SCATTERV: return [=] { return exchange.scatter_from_root(is_root); };
    case ISTHMUS_ALLTOALL:
    case ISTHMUS_ALLTOALLV: return [=] { return exchange.exchange_blocks(false); };
    case ISTHMUS_ALLGATHERV: return [=] { return exchange.exchange_blocks(true); };
    case ISTHMUS_SEND:
    case ISTHMUS_RECV: return [=] { return exchange.ring(); };
    default: return [] { return -1; };
  }
}

// Calls the native function of NCCL on the buffers of the rank.
int library_call(isthmus_collective collective, const rank_state& rank, std::uint64_t count) {
  const native_functions& native = *rank.native;
  const auto f32 = native_float32;
  const auto sum = native_sum;
  switch (collective) {
    case ISTHMUS_BROADCAST: return native.broadcast(rank.send, rank.recv, count, f32, 0, rank.raw, rank.stream);
    case ISTHMUS_REDUCE: return native.reduce(rank.send, rank.recv, count, f32, sum, 0, rank.raw, rank.stream);
    case ISTHMUS_ALLREDUCE:
      return native.all_reduce(rank.send, rank.recv, count, f32, sum, rank.raw, rank.stream);
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_REDUCE_SCATTERV:  // with equal blocks
      return native.reduce_scatter(rank.send, rank.recv, count, f32, sum, rank.raw, rank.stream);
    case ISTHMUS_ALLGATHER: return native.all_gather(rank.send, rank.recv, count, f32, rank.raw, rank.stream);
    case ISTHMUS_GATHER: return native.gather(rank.send, rank.recv, count, f32, 0, rank.raw, rank.stream);
    case ISTHMUS_SCATTER: return native.scatter(rank.send, rank.recv, count, f32, 0, rank.raw, rank.stream);
    case ISTHMUS_ALLTOALL: return native.all_to_all(rank.send, rank.recv, count, f32, rank.raw, rank.stream);
    case ISTHMUS_BARRIER:
      return native.all_reduce(rank.byte, rank.byte, 1, isthmus::nccl::native_uint8, isthmus::nccl::native_max,
                               rank.raw, rank.stream);
    default: return -1;
  }
}

bool has_native_function(isthmus_collective collective, const native_functions& native) {
  switch (collective) {
    case ISTHMUS_BROADCAST:
    case ISTHMUS_REDUCE:
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_BARRIER: return true;
    case ISTHMUS_GATHER: return native.gather != nullptr;
    case ISTHMUS_SCATTER: return native.scatter != nullptr;
    case ISTHMUS_ALLTOALL: return native.all_to_all != nullptr;
    default: return false;
  }
}

std::function<int()> raw_call(const bench_case& test_case, const rank_state& rank) {
  const std::uint64_t count = block_elements(test_case, rank.size);
  if (!has_native_function(test_case.collective, *rank.native)) return composed_call(test_case, rank, count);
  return [collective = test_case.collective, &rank, count] { return library_call(collective, rank, count); };
}

}  // namespace

std::vector<bench_case> cases(std::uint64_t bytes) {
  std::vector<bench_case> all{
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {ISTHMUS_##NAME, #name, bytes},
#include <isthmus/collectives.def>
  };
  std::erase_if(all, [](const bench_case& test_case) { return test_case.collective == ISTHMUS_RECV; });
  return all;
}

std::uint64_t output_bytes(const bench_case& test_case, const rank_state& rank) {
  const std::uint64_t block = block_elements(test_case, rank.size);
  oracle::block_layout equal;
  for (int peer = 0; peer < rank.size; ++peer) {
    equal.counts.push_back(block);
    equal.displs.push_back(block * static_cast<std::uint64_t>(peer));
  }
  const std::vector<oracle::block_layout> parts(static_cast<std::size_t>(rank.size), equal);
  const int root = test_case.collective == ISTHMUS_SEND ? 1 : 0;  // SEND: the distance in the ring
  return sizeof(float) *
         oracle::recv_extent({test_case.collective, rank.size, root, block, parts, parts}, rank.rank);
}

std::uint64_t largest_send(std::uint64_t bytes, int) { return bytes; }
std::uint64_t largest_recv(std::uint64_t bytes, int size) { return bytes * static_cast<std::uint64_t>(size); }

nccl_call_pair::nccl_call_pair(const bench_case& test_case, const rank_state& rank) {
  const std::uint64_t count = block_elements(test_case, rank.size);
  for (int peer = 0; peer < rank.size; ++peer) {
    m_counts.push_back(count);
    m_displs.push_back(count * static_cast<std::uint64_t>(peer));
  }
  m_operation.collective = test_case.collective;
  m_operation.datatype = ISTHMUS_FLOAT32;
  m_operation.op = ISTHMUS_SUM;
  m_operation.count =
      test_case.collective == ISTHMUS_ALLTOALLV || test_case.collective == ISTHMUS_BARRIER ? 0 : count;
  m_operation.send_buf = rank.send;
  m_operation.recv_buf = rank.recv;
  m_operation.stream = rank.stream;
  if (test_case.collective == ISTHMUS_SCATTERV || test_case.collective == ISTHMUS_ALLTOALLV ||
      test_case.collective == ISTHMUS_REDUCE_SCATTERV) {
    m_operation.send_counts = m_counts.data();
    m_operation.send_displs = m_displs.data();
  }
  if (test_case.collective == ISTHMUS_ALLGATHERV || test_case.collective == ISTHMUS_GATHERV ||
      test_case.collective == ISTHMUS_ALLTOALLV) {
    m_operation.recv_counts = m_counts.data();
    m_operation.recv_displs = m_displs.data();
  }
  if (test_case.collective == ISTHMUS_BARRIER) m_operation.send_buf = m_operation.recv_buf = nullptr;
  m_raw = raw_call(test_case, rank);
  if (test_case.collective != ISTHMUS_SEND) {
    m_isthmus = [this, &rank] { return static_cast<int>(isthmus_enqueue(rank.communicator, &m_operation)); };
    return;
  }
  m_isthmus = [this, &rank, count] {
    isthmus_group_start();
    const int send_status = isthmus_send(rank.send, count, ISTHMUS_FLOAT32, (rank.rank + 1) % rank.size,
                                         rank.communicator, rank.stream);
    const int recv_status =
        isthmus_recv(rank.recv, count, ISTHMUS_FLOAT32, (rank.rank + rank.size - 1) % rank.size,
                     rank.communicator, rank.stream);
    const int end_code = isthmus_group_end();
    return send_status != 0 ? send_status : recv_status != 0 ? recv_status : end_code;
  };
}

}  // namespace gpu_bench
