#include "pairs.hpp"

#include <algorithm>

namespace gpu_bench {
namespace {

using isthmus::xccl::native_float32;
using isthmus::xccl::native_functions;
using isthmus::xccl::native_sum;

// Elements of one block: `count` of isthmus_operation.
std::uint64_t block_elements(const bench_case& what, int size) {
  const std::uint64_t elements = what.bytes / sizeof(float);
  switch (what.collective) {
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_GATHER:
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTER:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALL:
    case ISTHMUS_ALLTOALLV: return elements / static_cast<std::uint64_t>(size);
    default: return elements;
  }
}

// Raw exchange of blocks in one group, as NCCL's manual shows it.
template <typename Body>
int grouped(const native_functions& native, Body&& body) {
  if (const int code = native.group_start()) return code;
  const int code = body();
  const int ended = native.group_end();
  return code != 0 ? code : ended;
}

// The raw forms that NCCL has no function for, or older versions have none for.
class raw_exchange {
 public:
  raw_exchange(const rank_state& rank, std::uint64_t count) : m_rank(rank), m_count(count) {}

  int everyone_to_root(bool here) const {
    return grouped(*m_rank.native, [&] {
      int code = send(m_rank.send, 0);
      for (int peer = 0; peer < m_rank.size && here && code == 0; ++peer)
        code = recv(block(m_rank.recv, peer), peer);
      return code;
    });
  }
  int root_to_everyone(bool here) const {
    return grouped(*m_rank.native, [&] {
      int code = recv(m_rank.recv, 0);
      for (int peer = 0; peer < m_rank.size && here && code == 0; ++peer)
        code = send(block(m_rank.send, peer), peer);
      return code;
    });
  }
  int everyone_to_everyone(bool same_block) const {
    return grouped(*m_rank.native, [&] {
      int code = 0;
      for (int peer = 0; peer < m_rank.size && code == 0; ++peer) {
        code = send(same_block ? m_rank.send : block(m_rank.send, peer), peer);
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

std::function<int()> raw_call(const bench_case& what, const rank_state& rank) {
  const native_functions& native = *rank.native;
  const std::uint64_t count = block_elements(what, rank.size);
  const raw_exchange exchange(rank, count);
  const bool root = rank.rank == 0;
  const auto f32 = native_float32;
  const auto sum = native_sum;
  switch (what.collective) {
    case ISTHMUS_BROADCAST:
      return [=, &native, &rank] {
        return native.broadcast(rank.send, rank.recv, count, f32, 0, rank.raw, rank.stream);
      };
    case ISTHMUS_REDUCE:
      return [=, &native, &rank] {
        return native.reduce(rank.send, rank.recv, count, f32, sum, 0, rank.raw, rank.stream);
      };
    case ISTHMUS_ALLREDUCE:
      return [=, &native, &rank] {
        return native.all_reduce(rank.send, rank.recv, count, f32, sum, rank.raw, rank.stream);
      };
    case ISTHMUS_REDUCE_SCATTER:
      return [=, &native, &rank] {
        return native.reduce_scatter(rank.send, rank.recv, count, f32, sum, rank.raw, rank.stream);
      };
    case ISTHMUS_ALLGATHER:
      return [=, &native, &rank] {
        return native.all_gather(rank.send, rank.recv, count, f32, rank.raw, rank.stream);
      };
    case ISTHMUS_GATHER:
      if (native.gather == nullptr) return [=] { return exchange.everyone_to_root(root); };
      return [=, &native, &rank] {
        return native.gather(rank.send, rank.recv, count, f32, 0, rank.raw, rank.stream);
      };
    case ISTHMUS_SCATTER:
      if (native.scatter == nullptr) return [=] { return exchange.root_to_everyone(root); };
      return [=, &native, &rank] {
        return native.scatter(rank.send, rank.recv, count, f32, 0, rank.raw, rank.stream);
      };
    case ISTHMUS_ALLTOALL:
      if (native.all_to_all == nullptr) return [=] { return exchange.everyone_to_everyone(false); };
      return [=, &native, &rank] {
        return native.all_to_all(rank.send, rank.recv, count, f32, rank.raw, rank.stream);
      };
    case ISTHMUS_ALLGATHERV: return [=] { return exchange.everyone_to_everyone(true); };
    case ISTHMUS_GATHERV: return [=] { return exchange.everyone_to_root(root); };
    case ISTHMUS_SCATTERV: return [=] { return exchange.root_to_everyone(root); };
    case ISTHMUS_ALLTOALLV: return [=] { return exchange.everyone_to_everyone(false); };
    case ISTHMUS_SEND:
    case ISTHMUS_RECV: return [=] { return exchange.ring(); };
    case ISTHMUS_BARRIER:
      return [=, &native, &rank] {
        return native.all_reduce(rank.byte, rank.byte, 1, isthmus::xccl::native_uint8,
                                 isthmus::xccl::native_max, rank.raw, rank.stream);
      };
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return [] { return -1; };
}

}  // namespace

double bus_factor(const bench_case& what, int size) {
  const double n = size;
  switch (what.collective) {
    case ISTHMUS_ALLREDUCE: return 2 * (n - 1) / n;
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_GATHER:
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTER:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALL:
    case ISTHMUS_ALLTOALLV: return (n - 1) / n;
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_ALLGATHERV: return n - 1;  // bytes are one rank's here
    default: return 1;
  }
}

std::vector<bench_case> cases(std::uint64_t bytes) {
  std::vector<bench_case> all{
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_at, send_extent, recv_at, recv_extent, in_place) \
  {ISTHMUS_##NAME, #name, bytes},
#include <isthmus/collectives.def>
  };
  std::erase_if(all, [](const bench_case& what) { return what.collective == ISTHMUS_RECV; });
  return all;
}

std::uint64_t output_bytes(const bench_case& what, const rank_state& rank) {
  const std::uint64_t block = block_elements(what, rank.size) * sizeof(float);
  const std::uint64_t all = block * static_cast<std::uint64_t>(rank.size);
  switch (what.collective) {
    case ISTHMUS_REDUCE: return rank.rank == 0 ? block : 0;
    case ISTHMUS_GATHER:
    case ISTHMUS_GATHERV: return rank.rank == 0 ? all : 0;
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_ALLGATHERV:
    case ISTHMUS_ALLTOALL:
    case ISTHMUS_ALLTOALLV: return all;
    case ISTHMUS_BARRIER: return 0;
    default: return block;
  }
}

std::uint64_t largest_send(std::uint64_t bytes, int) { return bytes; }
std::uint64_t largest_recv(std::uint64_t bytes, int size) { return bytes * static_cast<std::uint64_t>(size); }

pair_of_calls::pair_of_calls(const bench_case& what, const rank_state& rank) {
  const std::uint64_t count = block_elements(what, rank.size);
  for (int peer = 0; peer < rank.size; ++peer) {
    m_counts.push_back(count);
    m_displs.push_back(count * static_cast<std::uint64_t>(peer));
  }
  m_operation.collective = what.collective;
  m_operation.datatype = ISTHMUS_FLOAT32;
  m_operation.op = ISTHMUS_SUM;
  m_operation.count = what.collective == ISTHMUS_ALLTOALLV || what.collective == ISTHMUS_BARRIER ? 0 : count;
  m_operation.send_buf = rank.send;
  m_operation.recv_buf = rank.recv;
  m_operation.stream = rank.stream;
  if (what.collective == ISTHMUS_SCATTERV || what.collective == ISTHMUS_ALLTOALLV) {
    m_operation.send_counts = m_counts.data();
    m_operation.send_displs = m_displs.data();
  }
  if (what.collective == ISTHMUS_ALLGATHERV || what.collective == ISTHMUS_GATHERV ||
      what.collective == ISTHMUS_ALLTOALLV) {
    m_operation.recv_counts = m_counts.data();
    m_operation.recv_displs = m_displs.data();
  }
  if (what.collective == ISTHMUS_BARRIER) m_operation.send_buf = m_operation.recv_buf = nullptr;
  m_raw = raw_call(what, rank);
  if (what.collective != ISTHMUS_SEND) {
    m_isthmus = [this, &rank] { return static_cast<int>(isthmus_enqueue(rank.communicator, &m_operation)); };
    return;
  }
  m_isthmus = [this, &rank, count] {
    isthmus_group_start();
    const int sent = isthmus_send(rank.send, count, ISTHMUS_FLOAT32, (rank.rank + 1) % rank.size,
                                  rank.communicator, rank.stream);
    const int received = isthmus_recv(rank.recv, count, ISTHMUS_FLOAT32,
                                      (rank.rank + rank.size - 1) % rank.size, rank.communicator, rank.stream);
    const int ended = isthmus_group_end();
    return sent != 0 ? sent : received != 0 ? received : ended;
  };
}

}  // namespace gpu_bench
