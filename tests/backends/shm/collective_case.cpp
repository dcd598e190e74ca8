#include "collective_case.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstring>

#include "oracle/generator.hpp"
#include "reference.hpp"

namespace shm_test {
namespace {

using bytes = std::vector<std::byte>;

constexpr std::byte poison_byte{0xa5};

unsigned key_of(std::uint64_t seed, unsigned stream) {
  return oracle::mix_bits(static_cast<unsigned>(seed) +
                          oracle::mix_bits(static_cast<unsigned>(seed >> 32) + oracle::mix_bits(stream)));
}

bytes random_floats(std::uint64_t seed, int rank, std::uint64_t length) {
  const unsigned key = key_of(seed, static_cast<unsigned>(rank));
  bytes data(length);
  for (std::size_t i = 0; i < length / sizeof(float); ++i) {
    const auto bits = static_cast<std::int32_t>(oracle::random_bits(key, static_cast<unsigned>(i)));
    const float value = static_cast<float>(bits) * 0x1p-21f;
    std::memcpy(data.data() + i * sizeof(float), &value, sizeof(float));
  }
  return data;
}

// Number of elements that rank `from` sends to rank `to`.
std::uint64_t pair_count(const collective_case& p, int from, int to) {
  switch (p.collective) {
    case ISTHMUS_ALLGATHERV:
    case ISTHMUS_GATHERV:
      return oracle::random_bits(key_of(p.seed, 1), static_cast<unsigned>(from)) % (p.count + 1);
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_SCATTERV:
      return oracle::random_bits(key_of(p.seed, 2), static_cast<unsigned>(to)) % (p.count + 1);
    case ISTHMUS_ALLTOALLV: {  // symmetric, so that it also works in place
      const auto pair = static_cast<unsigned>(std::min(from, to) * 64 + std::max(from, to));
      return oracle::random_bits(key_of(p.seed, 3), pair) % (p.count + 1);
    }
    default: return p.count;
  }
}

bool is_v(isthmus_collective c) {
  return c == ISTHMUS_ALLGATHERV || c == ISTHMUS_GATHERV || c == ISTHMUS_SCATTERV || c == ISTHMUS_ALLTOALLV ||
         c == ISTHMUS_REDUCE_SCATTERV;
}
bool is_rooted_source(isthmus_collective c) {
  return c == ISTHMUS_BROADCAST || c == ISTHMUS_SCATTER || c == ISTHMUS_SCATTERV;
}
bool is_rooted_sink(isthmus_collective c) {
  return c == ISTHMUS_REDUCE || c == ISTHMUS_GATHER || c == ISTHMUS_GATHERV;
}
bool is_per_destination(isthmus_collective c) {
  return c == ISTHMUS_SCATTER || c == ISTHMUS_SCATTERV || c == ISTHMUS_ALLTOALL || c == ISTHMUS_ALLTOALLV ||
         c == ISTHMUS_REDUCE_SCATTER || c == ISTHMUS_REDUCE_SCATTERV;
}
bool is_reduction(isthmus_collective c) {
  return c == ISTHMUS_REDUCE || c == ISTHMUS_ALLREDUCE || c == ISTHMUS_REDUCE_SCATTER ||
         c == ISTHMUS_REDUCE_SCATTERV;
}
bool gathers(isthmus_collective c) {
  return c == ISTHMUS_ALLGATHER || c == ISTHMUS_ALLGATHERV || c == ISTHMUS_GATHER || c == ISTHMUS_GATHERV ||
         c == ISTHMUS_ALLTOALL || c == ISTHMUS_ALLTOALLV;
}

// A row of blocks. Collectives with displacements have a gap after each block.
struct blocks {
  std::vector<std::uint64_t> counts, displs;
  std::uint64_t elements = 0;
};

template <typename Count>
blocks lay_out(const collective_case& p, int ranks, Count&& count) {
  blocks row;
  for (int r = 0; r < ranks; ++r) {
    row.counts.push_back(count(r));
    row.displs.push_back(row.elements);
    row.elements += row.counts.back() + (is_v(p.collective) ? 3 : 0);
  }
  return row;
}

// Layout of a rank's send buffer.
blocks send_layout(const collective_case& p, int rank, int ranks) {
  if (is_rooted_source(p.collective) && rank != p.root) return {};
  if (is_per_destination(p.collective))
    return lay_out(p, ranks, [&](int to) { return pair_count(p, rank, to); });
  blocks row;
  row.elements = pair_count(p, rank, 0);
  return row;
}

blocks recv_layout(const collective_case& p, int rank, int ranks) {
  if (is_rooted_sink(p.collective) && rank != p.root) return {};
  if (gathers(p.collective)) return lay_out(p, ranks, [&](int from) { return pair_count(p, from, rank); });
  blocks row;
  row.elements = pair_count(p, p.root, rank);
  return row;
}

bytes input_of(const collective_case& p, int rank, int ranks) {
  const std::uint64_t length = send_layout(p, rank, ranks).elements * width(p.datatype);
  return p.datatype == ISTHMUS_FLOAT32 ? random_floats(p.seed, rank, length)  // ordinary values
                                       : random_bytes(p.seed, rank, length);
}

// The block that `from` sends to `to`.
bytes block_of(const collective_case& p, const std::vector<bytes>& inputs, int from, int to) {
  const std::uint64_t unit = width(p.datatype);
  const auto ranks = static_cast<int>(inputs.size());
  const bytes& send_data = inputs[static_cast<std::size_t>(from)];
  if (!is_per_destination(p.collective)) return send_data;
  const blocks row = send_layout(p, from, ranks);
  const auto begin =
      send_data.begin() + static_cast<std::ptrdiff_t>(row.displs[static_cast<std::size_t>(to)] * unit);
  return {begin, begin + static_cast<std::ptrdiff_t>(row.counts[static_cast<std::size_t>(to)] * unit)};
}

// Expected content of the receive buffer. Gaps keep their previous content.
bytes expected_result(const collective_case& p, const std::vector<bytes>& inputs, int rank, bytes previous) {
  const std::uint64_t unit = width(p.datatype);
  const auto ranks = static_cast<int>(inputs.size());
  if (is_rooted_sink(p.collective) && rank != p.root) return previous;
  if (is_reduction(p.collective)) {
    std::vector<bytes> contributions;
    for (int r = 0; r < ranks; ++r) contributions.push_back(block_of(p, inputs, r, rank));
    return reduce_reference(contributions, pair_count(p, rank, rank), p.datatype, p.op);
  }
  if (!gathers(p.collective)) return block_of(p, inputs, p.root, rank);
  const blocks row = recv_layout(p, rank, ranks);
  for (int from = 0; from < ranks; ++from) {
    const bytes block = block_of(p, inputs, from, rank);
    std::copy(
        block.begin(), block.end(),
        previous.begin() + static_cast<std::ptrdiff_t>(row.displs[static_cast<std::size_t>(from)] * unit));
  }
  return previous;
}

// The buffers of one rank. They are separate, or one aliases a part of the other.
struct buffers {
  bytes own_send, own_recv;
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
};

bool uses_heap(const collective_case& p, int rank) {
  return p.placement == memory::heap || (p.placement == memory::mixed && rank % 2 == 0);
}

void place_buffers(const collective_case& p, rank& self, const bytes& input, std::uint64_t recv_bytes,
                   buffers& b) {
  const int me = self.number();
  if (uses_heap(p, me)) {
    b.send = self.heap(0);
    b.recv = self.heap(1);
  } else {
    b.own_send.resize(input.size() + 1);
    b.own_recv.resize(recv_bytes + 1);
    b.send = b.own_send.data();
    b.recv = b.own_recv.data();
  }
  std::fill_n(b.recv, recv_bytes, poison_byte);
  if (p.in_place) {
    const std::uint64_t unit = width(p.datatype);
    const bool has_send = !is_rooted_source(p.collective) || me == p.root;
    const bool has_recv = !is_rooted_sink(p.collective) || me == p.root;
    const bool exchanges = p.collective == ISTHMUS_ALLTOALL || p.collective == ISTHMUS_ALLTOALLV;
    if (has_send && has_recv) {
      if (exchanges || (!gathers(p.collective) && !is_per_destination(p.collective)))
        b.recv = b.send;
      else if (gathers(p.collective))
        b.send = b.recv + recv_layout(p, me, self.size()).displs[static_cast<std::size_t>(me)] * unit;
      else
        b.recv = b.send + send_layout(p, me, self.size()).displs[static_cast<std::size_t>(me)] * unit;
    }
  }
  std::copy(input.begin(), input.end(), b.send);
}

isthmus_operation operation_of(const collective_case& p, int rank, const buffers& b, const blocks& send,
                               const blocks& recv) {
  isthmus_operation operation{};
  operation.collective = p.collective;
  operation.datatype = p.datatype;
  operation.op = p.op;
  operation.root = p.root;
  operation.count = p.count;
  if (p.collective == ISTHMUS_GATHERV || p.collective == ISTHMUS_ALLGATHERV)
    operation.count = pair_count(p, rank, p.root);
  if (p.collective == ISTHMUS_REDUCE_SCATTERV) operation.count = pair_count(p, rank, rank);
  if (p.collective == ISTHMUS_SCATTERV) operation.count = pair_count(p, p.root, rank);
  operation.send_buf = b.send;
  operation.recv_buf = b.recv;
  operation.send_counts = send.counts.data();
  operation.send_displs = send.displs.data();
  operation.recv_counts = recv.counts.data();
  operation.recv_displs = recv.displs.data();
  return operation;
}

}  // namespace

std::string collective_case::describe() const {
  return std::string(isthmus_collective_name(collective)) + " " + isthmus_datatype_name(datatype) + " " +
         isthmus_reduction_op_name(op) + " count " + std::to_string(count) + " root " + std::to_string(root) +
         (in_place ? " in place" : "") + " memory " + std::to_string(static_cast<int>(placement)) +
         " algorithm " + (algorithm == nullptr ? "NULL" : algorithm) + " seed " + std::to_string(seed);
}

std::vector<std::byte> random_bytes(std::uint64_t seed, int stream, std::uint64_t length) {
  const unsigned key = key_of(seed, static_cast<unsigned>(stream));
  bytes data(length);
  std::size_t i = 0;
  for (; i + 4 <= length; i += 4) {
    const unsigned word = oracle::random_bits(key, static_cast<unsigned>(i));
    std::memcpy(data.data() + i, &word, sizeof word);
  }
  for (; i < length; ++i)
    data[i] = static_cast<std::byte>(oracle::random_bits(key, static_cast<unsigned>(i)) >> 8);
  return data;
}

bool run_case(rank& self, const collective_case& p) {
  const int me = self.number(), ranks = self.size();
  std::vector<bytes> inputs;
  for (int r = 0; r < ranks; ++r) inputs.push_back(input_of(p, r, ranks));
  const blocks send = send_layout(p, me, ranks), recv = recv_layout(p, me, ranks);
  const std::uint64_t recv_bytes = recv.elements * width(p.datatype);
  buffers b;
  place_buffers(p, self, inputs[static_cast<std::size_t>(me)], recv_bytes, b);
  const bytes previous(b.recv, b.recv + recv_bytes);
  const isthmus_operation operation = operation_of(p, me, b, send, recv);
  if (self.unsupported_reason(operation, p.algorithm) != nullptr) return false;
  check(self.run(operation, p.algorithm) == ISTHMUS_SUCCESS, p.describe() + ": " + self.failure());
  const bytes expected_bytes = expected_result(p, inputs, me, previous);
  const std::uint64_t elements = recv.elements;
  check(expected_bytes.size() == recv_bytes, p.describe() + ": the test is wrong about the length");
  check(same_elements(expected_bytes.data(), b.recv, elements, p.datatype), p.describe() + ": wrong result");
  const bool send_may_change = p.in_place;
  if (!send_may_change && !inputs[static_cast<std::size_t>(me)].empty())
    check(std::memcmp(b.send, inputs[static_cast<std::size_t>(me)].data(),
                      inputs[static_cast<std::size_t>(me)].size()) == 0,
          p.describe() + ": the send buffer was written");
  return true;
}

}  // namespace shm_test
