#include "rank_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "oracle/check.hpp"
#include "oracle/number.hpp"

namespace conformance {
namespace {

constexpr std::size_t guard_bytes = 64;
constexpr std::byte poison{0xa5};

// Offset of the buffers from cache-line alignment, in elements.
std::size_t misalignment(const test_case& test) { return oracle::mix(test.seed, 55) % 4; }

// Bytes of the largest send and receive buffer of all ranks, with the misalignment, rounded up.
struct regions {
  std::size_t send;
  std::size_t recv;
};

regions regions_of(const test_case& test, const oracle::operation_shape& shape) {
  std::uint64_t send = 0;
  std::uint64_t recv = 0;
  for (int rank = 0; rank < shape.size; ++rank) {
    send = std::max(send, oracle::send_extent(shape, rank));
    recv = std::max(recv, oracle::recv_extent(shape, rank));
  }
  if (test.in_place) send = recv = std::max(send, recv);
  const std::size_t width = oracle::bytes_of(test.datatype);
  const auto rounded = [&](std::uint64_t elements) {
    return (((elements + misalignment(test)) * width + guard_bytes - 1) / guard_bytes + 1) * guard_bytes;
  };
  return {rounded(send), test.in_place ? 0 : rounded(recv)};
}

// Elements between the start of the send and of the receive buffer when they alias.
std::uint64_t alias_offset(const test_case& test, const oracle::operation_shape& shape, int rank,
                           bool in_recv) {
  const auto block = static_cast<std::uint64_t>(rank) * shape.count;
  switch (test.collective) {
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_GATHER: return in_recv ? block : 0;
    case ISTHMUS_ALLGATHERV:
    case ISTHMUS_GATHERV: return in_recv ? shape.recv_layouts[rank].displs[rank] : 0;
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_SCATTER: return in_recv ? 0 : block;
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_SCATTERV: return in_recv ? 0 : shape.send_layouts[rank].displs[rank];
    default: return 0;
  }
}

bool is_aliased(const test_case& test, const oracle::operation_shape& shape, int rank) {
  if (!test.in_place) return false;
  switch (test.collective) {
    case ISTHMUS_BROADCAST:
    case ISTHMUS_REDUCE:
    case ISTHMUS_GATHER:
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTER:
    case ISTHMUS_SCATTERV: return rank == shape.root;
    default: return true;
  }
}

bool sends(const oracle::operation_shape& shape, int rank) {
  switch (shape.collective) {
    case ISTHMUS_BROADCAST:
    case ISTHMUS_SCATTER:
    case ISTHMUS_SCATTERV: return rank == shape.root;
    case ISTHMUS_BARRIER: return false;
    default: return true;
  }
}

bool receives(const oracle::operation_shape& shape, int rank) {
  switch (shape.collective) {
    case ISTHMUS_REDUCE:
    case ISTHMUS_GATHER:
    case ISTHMUS_GATHERV: return rank == shape.root;
    case ISTHMUS_BARRIER: return false;
    default: return true;
  }
}

}  // namespace

std::size_t rank_buffers::required_bytes(const test_case& test, const oracle::operation_shape& shape) {
  const regions sizes = regions_of(test, shape);
  return sizes.send + sizes.recv + 3 * guard_bytes;
}

placement place(const test_case& test, const oracle::operation_shape& shape, int rank, std::byte* memory) {
  const regions sizes = regions_of(test, shape);
  const std::size_t width = oracle::bytes_of(test.datatype);
  std::byte* first = memory + guard_bytes + misalignment(test) * width;
  placement addresses{first, test.in_place ? first : first + sizes.send + guard_bytes};
  if (is_aliased(test, shape, rank)) {
    addresses.send = first + alias_offset(test, shape, rank, true) * width;
    addresses.recv = first + alias_offset(test, shape, rank, false) * width;
  }
  if (!sends(shape, rank)) addresses.send = nullptr;
  if (!receives(shape, rank)) addresses.recv = nullptr;
  return addresses;
}

rank_buffers::rank_buffers(const test_case& test, const oracle::operation_shape& shape, int rank,
                           std::span<std::byte> memory)
    : m_test(test),
      m_shape(shape),
      m_rank(rank),
      m_memory(memory.first(required_bytes(test, shape))),
      m_addresses(place(test, shape, rank, memory.data())),
      m_send_bytes(oracle::send_extent(shape, rank) * oracle::bytes_of(test.datatype)) {
  std::fill(m_memory.begin(), m_memory.end(), poison);
  write_inputs();
  m_before.assign(m_memory.begin(), m_memory.end());
}

void rank_buffers::write_inputs() {
  if (m_addresses.send == nullptr) return;
  const std::size_t width = oracle::bytes_of(m_test.datatype);
  const bool in_blocks = !m_shape.send_layouts.empty();
  if (!in_blocks) {
    oracle::fill(source_of(m_test), m_rank, 0, {m_addresses.send, m_send_bytes});
    return;
  }
  const oracle::block_layout& parts = m_shape.send_layouts[static_cast<std::size_t>(m_rank)];
  for (std::size_t r = 0; r < parts.counts.size(); ++r)
    oracle::fill(source_of(m_test), m_rank, parts.displs[r],
                 {m_addresses.send + parts.displs[r] * width, parts.counts[r] * width});
}

std::vector<std::pair<std::size_t, std::size_t>> rank_buffers::result_ranges() const {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  if (m_addresses.recv == nullptr) return ranges;
  const std::size_t width = oracle::bytes_of(m_test.datatype);
  const auto start = static_cast<std::size_t>(m_addresses.recv - m_memory.data());
  for (const oracle::expected_segment& segment : oracle::expected_segments(m_shape, m_rank))
    if (segment.count > 0)
      ranges.emplace_back(start + segment.recv_offset * width,
                          start + (segment.recv_offset + segment.count) * width);
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

std::optional<std::string> rank_buffers::find_error(bool results, bool values, bool steps_in_type) const {
  std::size_t offset = 0;
  auto ranges = results ? result_ranges() : std::vector<std::pair<std::size_t, std::size_t>>{};
  ranges.emplace_back(m_memory.size(), m_memory.size());
  for (const auto& [begin, end] : ranges) {
    if (std::memcmp(m_memory.data() + offset, m_before.data() + offset, begin - offset) != 0) {
      while (m_memory[offset] == m_before[offset]) ++offset;
      const auto from = [&](const std::byte* start) { return m_memory.data() + offset - start; };
      return fmt::format("byte {} was overwritten ({} from send_buf, {} from recv_buf)", offset,
                         m_addresses.send ? fmt::format("{:+}", from(m_addresses.send)) : "none",
                         m_addresses.recv ? fmt::format("{:+}", from(m_addresses.recv)) : "none");
    }
    offset = end;
  }
  if (!results || !values || m_addresses.recv == nullptr) return std::nullopt;
  return oracle::find_error({source_of(m_test), m_shape, m_rank, steps_in_type}, m_addresses.recv);
}

void rank_buffers::reuse_send_buffer() {
  if (m_addresses.send == nullptr || m_test.in_place) return;
  std::memset(m_addresses.send, 0x3c, m_send_bytes);
  std::memset(m_before.data() + (m_addresses.send - m_memory.data()), 0x3c, m_send_bytes);
}

std::uint64_t rank_buffers::hash() const {
  std::uint64_t value = 0;
  for (const auto& [begin, end] : result_ranges())
    for (std::size_t offset = begin; offset < end; offset += sizeof value) {
      std::uint64_t word = 0;
      std::memcpy(&word, m_memory.data() + offset, std::min(sizeof word, end - offset));
      value =
          (std::rotl(value, 5) ^ word) * 0x9e3779b97f4a7c15ull;  // any single different word changes the hash
    }
  return value;
}

}  // namespace conformance
