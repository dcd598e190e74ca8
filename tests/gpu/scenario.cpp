#include "scenario.hpp"

#include <algorithm>
#include <string_view>

#include "oracle/number.hpp"

namespace gpu {
namespace {

bool has_counts(isthmus_collective collective) {
  return collective == ISTHMUS_ALLGATHERV || collective == ISTHMUS_GATHERV || collective == ISTHMUS_SCATTERV ||
         collective == ISTHMUS_ALLTOALLV || collective == ISTHMUS_REDUCE_SCATTERV;
}
// Collectives whose counts describe only the send buffer.
bool has_send_counts_only(isthmus_collective collective) {
  return collective == ISTHMUS_SCATTERV || collective == ISTHMUS_REDUCE_SCATTERV;
}

bool is_ring(isthmus_collective collective) { return collective == ISTHMUS_SEND || collective == ISTHMUS_RECV; }

std::uint64_t send_elements(const scenario& setup, int rank) {
  return is_ring(setup.shape.collective) ? setup.shape.count : oracle::send_extent(setup.shape, rank);
}
std::uint64_t recv_elements(const scenario& setup, int rank) {
  return is_ring(setup.shape.collective) ? setup.shape.count : oracle::recv_extent(setup.shape, rank);
}

}  // namespace

const std::vector<table_row>& table() {
  static const std::vector<table_row> rows = [] {
    std::vector<table_row> all{
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {ISTHMUS_##NAME, #name, std::string_view(#peer) != "NONE", reduces != 0,                              \
   std::string_view(#in_place) != "NEVER"},
#include <isthmus/collectives.def>
    };
    std::erase_if(all, [](const table_row& row) { return row.collective == ISTHMUS_BARRIER; });
    return all;
  }();
  return rows;
}

oracle::operation_shape make_shape(isthmus_collective collective, int size, int root, std::uint64_t count) {
  oracle::operation_shape shape{collective, size, root, count, {}, {}};
  if (!has_counts(collective)) return shape;
  shape.send_layouts.resize(static_cast<std::size_t>(size));
  shape.recv_layouts.resize(static_cast<std::size_t>(size));
  // Block sizes: count, a third of it, zero. The size from rank i to j depends on i + j, so both sides agree.
  const auto block_size = [count](int salt) { return salt % 3 == 0 ? count : salt % 3 == 1 ? count / 3 : 0; };
  for (int rank = 0; rank < size; ++rank) {
    oracle::block_layout layout;
    std::uint64_t offset = 0;
    for (int peer = 0; peer < size; ++peer) {
      layout.counts.push_back(block_size(collective == ISTHMUS_ALLTOALLV ? rank + peer : peer));
      layout.displs.push_back(offset);
      offset += layout.counts.back() + 5;
    }
    const auto me = static_cast<std::size_t>(rank);
    if (!has_send_counts_only(collective)) shape.recv_layouts[me] = layout;
    if (has_send_counts_only(collective) || collective == ISTHMUS_ALLTOALLV) shape.send_layouts[me] = layout;
  }
  return shape;
}

rank_call::rank_call(const scenario& setup, member& self)
    : m_setup(setup),
      m_self(self),
      m_element(oracle::bytes_of(setup.datatype)),
      m_send_elements(send_elements(setup, self.rank)),
      m_recv_elements(recv_elements(setup, self.rank)),
      m_memory(std::max(m_send_elements, m_recv_elements) * m_element),
      m_separate(setup.in_place ? 0 : m_recv_elements * m_element) {
  build();
  refill(setup.seed);
}

// Offset of the smaller in-place buffer in the larger one, in elements.
std::uint64_t rank_call::own_offset() const {
  const auto me = static_cast<std::size_t>(m_self.rank);
  switch (m_setup.shape.collective) {
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_REDUCE_SCATTER: return m_setup.shape.count * me;
    case ISTHMUS_GATHER:
    case ISTHMUS_SCATTER: return m_self.rank == m_setup.shape.root ? m_setup.shape.count * me : 0;
    case ISTHMUS_ALLGATHERV: return m_setup.shape.recv_layouts[me].displs[me];
    case ISTHMUS_GATHERV:
      return m_self.rank == m_setup.shape.root ? m_setup.shape.recv_layouts[me].displs[me] : 0;
    case ISTHMUS_SCATTERV:
      return m_self.rank == m_setup.shape.root ? m_setup.shape.send_layouts[me].displs[me] : 0;
    case ISTHMUS_REDUCE_SCATTERV: return m_setup.shape.send_layouts[me].displs[me];
    default: return 0;
  }
}

void rank_call::build() {
  const oracle::operation_shape& shape = m_setup.shape;
  const auto me = static_cast<std::size_t>(m_self.rank);
  isthmus_operation operation{};
  operation.collective = shape.collective;
  operation.datatype = m_setup.datatype;
  operation.op = m_setup.op;
  operation.root = shape.root;
  operation.count = shape.count;
  operation.stream = m_self.queue->native();
  if (m_setup.in_place) {
    const bool sends_more = m_send_elements >= m_recv_elements;
    std::byte* const block = m_memory.data() + own_offset() * m_element;
    operation.send_buf = sends_more ? m_memory.data() : block;
    operation.recv_buf = sends_more ? block : m_memory.data();
  } else {
    operation.send_buf = m_memory.data();
    operation.recv_buf = m_separate.data();
  }
  if (has_counts(shape.collective)) {
    const oracle::block_layout& own =
        has_send_counts_only(shape.collective) ? shape.send_layouts[me] : shape.recv_layouts[me];
    operation.count = shape.collective == ISTHMUS_ALLTOALLV ? 0 : own.counts[me];
    const bool has_send_blocks = !shape.send_layouts[me].counts.empty(),
               has_recv_blocks = !shape.recv_layouts[me].counts.empty();
    operation.send_counts = has_send_blocks ? m_setup.shape.send_layouts[me].counts.data() : nullptr;
    operation.send_displs = has_send_blocks ? m_setup.shape.send_layouts[me].displs.data() : nullptr;
    operation.recv_counts = has_recv_blocks ? m_setup.shape.recv_layouts[me].counts.data() : nullptr;
    operation.recv_displs = has_recv_blocks ? m_setup.shape.recv_layouts[me].displs.data() : nullptr;
  }
  m_operations = {operation};
  if (!is_ring(shape.collective)) return;
  m_operations = {operation, operation};
  m_operations[0].collective = ISTHMUS_SEND;
  m_operations[0].recv_buf = nullptr;
  m_operations[0].root = (m_self.rank + shape.root) % shape.size;
  m_operations[1].collective = ISTHMUS_RECV;
  m_operations[1].send_buf = nullptr;
  m_operations[1].root = (m_self.rank - shape.root + shape.size) % shape.size;
}

void rank_call::refill(std::uint64_t seed) {
  m_setup.seed = seed;
  const std::vector<std::byte> fill_pattern(std::max(m_memory.bytes(), m_separate.bytes()), std::byte{0xa5});
  m_memory.write({fill_pattern.data(), m_memory.bytes()}, *m_self.queue);
  m_separate.write({fill_pattern.data(), m_separate.bytes()}, *m_self.queue);
  std::vector<std::byte> inputs(m_send_elements * m_element);
  oracle::fill({m_setup.datatype, m_setup.op, oracle::input_class::ordinary, seed}, m_self.rank, 0, inputs);
  const auto* send = static_cast<const std::byte*>(m_operations[0].send_buf);
  m_memory.write(inputs, *m_self.queue, send != nullptr ? static_cast<std::size_t>(send - m_memory.data()) : 0);
}

isthmus_status rank_call::start() const {
  if (m_operations.size() == 1) return isthmus_enqueue(m_self.communicator, m_operations.data());
  if (const auto status = isthmus_group_start(); status != ISTHMUS_SUCCESS) return status;
  isthmus_status status = ISTHMUS_SUCCESS;
  for (const isthmus_operation& operation : m_operations)
    if (const auto call_status = isthmus_enqueue(m_self.communicator, &operation); status == ISTHMUS_SUCCESS)
      status = call_status;
  const auto end_status = isthmus_group_end();
  return status == ISTHMUS_SUCCESS ? end_status : status;
}

std::string rank_call::error() const {
  const buffer& result_buffer = m_setup.in_place ? m_memory : m_separate;
  const std::vector<std::byte> host = result_buffer.read(*m_self.queue);
  const auto* recv = static_cast<const std::byte*>(m_operations.back().recv_buf);
  const std::size_t offset = recv != nullptr ? static_cast<std::size_t>(recv - result_buffer.data()) : 0;
  oracle::check_request request{
      {m_setup.datatype, m_setup.op, oracle::input_class::ordinary, m_setup.seed}, m_setup.shape, m_self.rank};
  // Vendor libraries round 8-bit and 16-bit floats at every step: docs/internals/nccl.md, "Arithmetic".
  request.steps_in_type = true;
  return oracle::find_error(request, host.data() + offset).value_or("");
}

}  // namespace gpu
