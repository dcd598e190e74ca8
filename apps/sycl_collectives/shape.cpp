#include "shape.hpp"

#include "bench/harness/patterns.hpp"

namespace sycl_collectives {

const std::vector<collective_case>& all_cases() {
  static const std::vector<collective_case> cases = {{"broadcast", ISTHMUS_BROADCAST},
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

// Uneven blocks without gaps: that of rank r is proportional to (from + r) % size + 1.
oracle::block_layout uneven_blocks(std::uint64_t elements, int from, int size) {
  const auto n = static_cast<std::uint64_t>(size);
  oracle::block_layout made;
  for (int r = 0; r < size; ++r) {
    made.displs.push_back(made.extent());
    made.counts.push_back(elements * (static_cast<std::uint64_t>((from + r) % size) + 1) / (n * (n + 1) / 2));
  }
  return made;
}

// What each rank sends to (or receives from) the others. What an alltoallv sends is symmetric, so it is also
// what arrives.
std::vector<oracle::block_layout> parts_of_ranks(isthmus_collective collective, std::uint64_t elements, int size) {
  std::vector<oracle::block_layout> parts;
  for (int r = 0; r < size; ++r)
    parts.push_back(uneven_blocks(elements, collective == ISTHMUS_ALLTOALLV ? r : 0, size));
  return parts;
}

oracle::operation_shape define(isthmus_collective collective, std::uint64_t elements, int size) {
  const bool block_each = bench::has_block_per_rank(collective);
  oracle::operation_shape made{collective, size, 0, block_each ? elements / static_cast<std::uint64_t>(size) : elements,
                     {},         {}};
  switch (collective) {
    case ISTHMUS_SEND: made.root = 1; break;  // the distance in the ring
    case ISTHMUS_BARRIER: made.count = 0; break;
    case ISTHMUS_ALLGATHERV:
      made.recv_layouts = parts_of_ranks(collective, elements * static_cast<std::uint64_t>(size), size);
      break;
    case ISTHMUS_GATHERV: made.recv_layouts = parts_of_ranks(collective, elements, size); break;
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_SCATTERV: made.send_layouts = parts_of_ranks(collective, elements, size); break;
    case ISTHMUS_ALLTOALLV:
      made.send_layouts = made.recv_layouts = parts_of_ranks(collective, elements, size);
      break;
    default: break;
  }
  return made;
}

}  // namespace

shape make_shape(const collective_case& what, std::uint64_t bytes, int rank, int size) {
  shape made;
  made.what = what;
  made.rank = rank;
  made.size = size;
  made.bytes = bytes;
  made.in_place = what.collective == ISTHMUS_BROADCAST;
  made.definition = define(what.collective, bytes / sizeof(float), size);
  made.send_elements = send_extent(made.definition, rank);
  made.recv_elements = recv_extent(made.definition, rank);
  made.count = made.definition.count;
  // With blocks of any size `count` is this rank's own block, where there is one.
  if (what.collective == ISTHMUS_ALLGATHERV || what.collective == ISTHMUS_GATHERV)
    made.count = made.send_elements;
  if (what.collective == ISTHMUS_SCATTERV || what.collective == ISTHMUS_REDUCE_SCATTERV)
    made.count = made.recv_elements;
  if (what.collective == ISTHMUS_ALLTOALLV) made.count = 0;
  const auto own = static_cast<std::size_t>(rank);
  const bool root = rank == made.root;
  if (const auto& parts = made.definition.send_layouts;
      !parts.empty() && (root || what.collective != ISTHMUS_SCATTERV))
    made.send_counts = parts[own].counts, made.send_displs = parts[own].displs;
  if (const auto& parts = made.definition.recv_layouts;
      !parts.empty() && (root || what.collective != ISTHMUS_GATHERV))
    made.recv_counts = parts[own].counts, made.recv_displs = parts[own].displs;
  return made;
}

}  // namespace sycl_collectives
