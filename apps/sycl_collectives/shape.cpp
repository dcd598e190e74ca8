#include "shape.hpp"

#include "bench/harness/patterns.hpp"

namespace sycl_collectives {

const std::vector<collective_entry>& all_entries() {
  static const std::vector<collective_entry> cases = {{"broadcast", ISTHMUS_BROADCAST},
                                                      {"reduce", ISTHMUS_REDUCE},
                                                      {"allreduce", ISTHMUS_ALLREDUCE},
                                                      {"reduce_scatter", ISTHMUS_REDUCE_SCATTER},
                                                      {"allgather", ISTHMUS_ALLGATHER},
                                                      {"allgatherv", ISTHMUS_ALLGATHERV},
                                                      {"gather", ISTHMUS_GATHER},
                                                      {"gatherv", ISTHMUS_GATHERV},
                                                      {"scatter", ISTHMUS_SCATTER},
                                                      {"scatterv", ISTHMUS_SCATTERV},
                                                      {"alltoall", ISTHMUS_ALLTOALL},
                                                      {"alltoallv", ISTHMUS_ALLTOALLV},
                                                      {"sendrecv", ISTHMUS_SEND},
                                                      {"barrier", ISTHMUS_BARRIER},
                                                      {"reduce_scatterv", ISTHMUS_REDUCE_SCATTERV}};
  return cases;
}

namespace {

// Uneven blocks without gaps: that of rank r is proportional to (offset + r) % size + 1.
oracle::block_layout uneven_blocks(std::uint64_t elements, int offset, int size) {
  const auto n = static_cast<std::uint64_t>(size);
  oracle::block_layout result;
  for (int r = 0; r < size; ++r) {
    result.displs.push_back(result.extent());
    result.counts.push_back(elements * (static_cast<std::uint64_t>((offset + r) % size) + 1) /
                            (n * (n + 1) / 2));
  }
  return result;
}

// The blocks that each rank sends to (or receives from) the others. The blocks of alltoallv are symmetric, so
// the received blocks equal the sent ones.
std::vector<oracle::block_layout> layouts_of_ranks(isthmus_collective collective, std::uint64_t elements,
                                                   int size) {
  std::vector<oracle::block_layout> layouts;
  for (int r = 0; r < size; ++r)
    layouts.push_back(uneven_blocks(elements, collective == ISTHMUS_ALLTOALLV ? r : 0, size));
  return layouts;
}

oracle::operation_shape define(isthmus_collective collective, std::uint64_t elements, int size) {
  const bool block_each = bench::has_block_per_rank(collective);
  oracle::operation_shape result{
      collective, size, 0, block_each ? elements / static_cast<std::uint64_t>(size) : elements, {}, {}};
  switch (collective) {
    case ISTHMUS_SEND: result.root = 1; break;  // distance in the ring
    case ISTHMUS_BARRIER: result.count = 0; break;
    case ISTHMUS_ALLGATHERV:
      result.recv_layouts = layouts_of_ranks(collective, elements * static_cast<std::uint64_t>(size), size);
      break;
    case ISTHMUS_GATHERV: result.recv_layouts = layouts_of_ranks(collective, elements, size); break;
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_SCATTERV: result.send_layouts = layouts_of_ranks(collective, elements, size); break;
    case ISTHMUS_ALLTOALLV:
      result.send_layouts = result.recv_layouts = layouts_of_ranks(collective, elements, size);
      break;
    default: break;
  }
  return result;
}

}  // namespace

call_shape make_shape(const collective_entry& entry, std::uint64_t bytes, int rank, int size) {
  call_shape result;
  result.entry = entry;
  result.rank = rank;
  result.size = size;
  result.bytes = bytes;
  result.in_place = entry.collective == ISTHMUS_BROADCAST;
  result.definition = define(entry.collective, bytes / sizeof(float), size);
  result.send_elements = send_extent(result.definition, rank);
  result.recv_elements = recv_extent(result.definition, rank);
  result.count = result.definition.count;
  // For v-collectives `count` is the size of this rank's block, if it has one.
  if (entry.collective == ISTHMUS_ALLGATHERV || entry.collective == ISTHMUS_GATHERV)
    result.count = result.send_elements;
  if (entry.collective == ISTHMUS_SCATTERV || entry.collective == ISTHMUS_REDUCE_SCATTERV)
    result.count = result.recv_elements;
  if (entry.collective == ISTHMUS_ALLTOALLV) result.count = 0;
  const auto index = static_cast<std::size_t>(rank);
  const bool root = rank == result.root;
  if (const auto& layouts = result.definition.send_layouts;
      !layouts.empty() && (root || entry.collective != ISTHMUS_SCATTERV))
    result.send_counts = layouts[index].counts, result.send_displs = layouts[index].displs;
  if (const auto& layouts = result.definition.recv_layouts;
      !layouts.empty() && (root || entry.collective != ISTHMUS_GATHERV))
    result.recv_counts = layouts[index].counts, result.recv_displs = layouts[index].displs;
  return result;
}

}  // namespace sycl_collectives
