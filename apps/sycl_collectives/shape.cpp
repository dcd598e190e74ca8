#include "shape.hpp"

namespace sycl_collectives {

const std::vector<collective_case>& all_cases() {
  static const std::vector<collective_case> cases = {
      {"broadcast", ISTHMUS_BROADCAST}, {"reduce", ISTHMUS_REDUCE},
      {"allreduce", ISTHMUS_ALLREDUCE}, {"reduce_scatter", ISTHMUS_REDUCE_SCATTER},
      {"allgather", ISTHMUS_ALLGATHER}, {"allgatherv", ISTHMUS_ALLGATHERV},
      {"gather", ISTHMUS_GATHER},       {"gatherv", ISTHMUS_GATHERV},
      {"scatter", ISTHMUS_SCATTER},     {"scatterv", ISTHMUS_SCATTERV},
      {"alltoall", ISTHMUS_ALLTOALL},   {"alltoallv", ISTHMUS_ALLTOALLV},
      {"sendrecv", ISTHMUS_SEND},       {"barrier", ISTHMUS_BARRIER}};
  return cases;
}

namespace {

// Uneven blocks: block r of `total` elements is proportional to r + 1 and there is no gap between them.
struct blocks {
  std::vector<std::uint64_t> counts, displs;
  std::uint64_t total = 0;

  template <typename Weight>
  blocks(std::uint64_t elements, int size, Weight weight) {
    const auto n = static_cast<std::uint64_t>(size);
    for (int r = 0; r < size; ++r) {
      displs.push_back(total);
      counts.push_back(elements * weight(r) / (n * (n + 1) / 2));
      total += counts.back();
    }
  }
};

blocks rising_blocks(std::uint64_t elements, int size) {
  return {elements, size, [](int r) { return static_cast<std::uint64_t>(r) + 1; }};
}

// What rank `from` sends to each rank; symmetric, so it is also what rank `from` receives from each.
blocks exchange_blocks(std::uint64_t elements, int from, int size) {
  return {elements, size, [=](int r) { return static_cast<std::uint64_t>((from + r) % size) + 1; }};
}

std::vector<segment> blocks_from_all(const std::vector<std::uint64_t>& counts,
                                     const std::vector<std::uint64_t>& displs) {
  std::vector<segment> segments;
  for (std::size_t r = 0; r < counts.size(); ++r)
    segments.push_back({displs[r], static_cast<int>(r), 0, counts[r]});
  return segments;
}

// Equal blocks of `count` elements.
blocks equal_blocks(std::uint64_t count, int size) {
  blocks even(0, size, [](int) { return std::uint64_t{0}; });
  for (int r = 0; r < size; ++r) {
    even.counts[r] = count;
    even.displs[r] = count * static_cast<std::uint64_t>(r);
  }
  even.total = count * static_cast<std::uint64_t>(size);
  return even;
}

void send_blocks(shape& made, const blocks& all, bool vector_form) {
  made.send_elements = all.total;
  if (!vector_form) return;
  made.send_counts = all.counts;
  made.send_displs = all.displs;
}

void receive_blocks(shape& made, const blocks& all, bool vector_form) {
  made.recv_elements = all.total;
  if (!vector_form) return;
  made.recv_counts = all.counts;
  made.recv_displs = all.displs;
}

// allgather and gather, with equal or uneven blocks.
void gather_like(shape& made, const blocks& all, bool vector_form, bool receives) {
  made.count = made.send_elements = all.counts[made.rank];
  if (!receives) return;
  receive_blocks(made, all, vector_form);
  made.expected = blocks_from_all(all.counts, all.displs);
}

void scatter_like(shape& made, const blocks& all, bool vector_form) {
  made.count = made.recv_elements = all.counts[made.rank];
  made.expected = {{0, made.root, all.displs[made.rank], made.count}};
  if (made.rank == made.root) send_blocks(made, all, vector_form);
}

// `sent_by(r)`: what rank r sends, block by block.
template <typename SentBy>
void exchange_like(shape& made, SentBy sent_by, bool vector_form) {
  const blocks mine = sent_by(made.rank);
  send_blocks(made, mine, vector_form);
  receive_blocks(made, mine, vector_form);
  for (int r = 0; r < made.size; ++r) {
    const blocks theirs = sent_by(r);
    made.expected.push_back({mine.displs[r], r, theirs.displs[made.rank], theirs.counts[made.rank]});
  }
}

}  // namespace

shape make_shape(const collective_case& what, std::uint64_t bytes, int rank, int size) {
  shape made;
  made.what = what;
  made.rank = rank;
  made.size = size;
  made.bytes = bytes;
  const std::uint64_t elements = bytes / sizeof(float);
  const std::uint64_t block = elements / static_cast<std::uint64_t>(size);
  const bool root = rank == made.root;
  const double n = size;
  made.counted_bytes = static_cast<double>(bytes);
  made.bus_factor = (n - 1) / n;
  switch (what.collective) {
    case ISTHMUS_BROADCAST:
      made.count = made.recv_elements = elements;
      made.in_place = true;
      made.expected = {{0, made.root, 0, elements}};
      made.bus_factor = 1;
      break;
    case ISTHMUS_REDUCE:
      made.count = made.send_elements = elements;
      made.recv_elements = root ? elements : 0;
      if (root) made.expected = {{0, -1, 0, elements}};
      made.bus_factor = 1;
      break;
    case ISTHMUS_ALLREDUCE:
      made.count = made.send_elements = made.recv_elements = elements;
      made.expected = {{0, -1, 0, elements}};
      made.bus_factor = 2 * (n - 1) / n;
      break;
    case ISTHMUS_REDUCE_SCATTER:
      made.count = made.recv_elements = block;
      made.send_elements = block * static_cast<std::uint64_t>(size);
      made.expected = {{0, -1, block * static_cast<std::uint64_t>(rank), block}};
      break;
    case ISTHMUS_ALLGATHER:
      gather_like(made, equal_blocks(elements, size), false, true);
      made.counted_bytes *= n;
      break;
    case ISTHMUS_ALLGATHERV:
      gather_like(made, rising_blocks(elements * static_cast<std::uint64_t>(size), size), true, true);
      made.counted_bytes *= n;
      break;
    case ISTHMUS_GATHER: gather_like(made, equal_blocks(block, size), false, root); break;
    case ISTHMUS_GATHERV: gather_like(made, rising_blocks(elements, size), true, root); break;
    case ISTHMUS_SCATTER: scatter_like(made, equal_blocks(block, size), false); break;
    case ISTHMUS_SCATTERV: scatter_like(made, rising_blocks(elements, size), true); break;
    case ISTHMUS_ALLTOALL:
      made.count = block;
      exchange_like(made, [&](int) { return equal_blocks(block, size); }, false);
      break;
    case ISTHMUS_ALLTOALLV:
      exchange_like(made, [&](int from) { return exchange_blocks(elements, from, size); }, true);
      break;
    case ISTHMUS_SEND:
    case ISTHMUS_RECV:
      made.count = made.send_elements = made.recv_elements = elements;
      made.expected = {{0, made.previous(), 0, elements}};
      made.bus_factor = 1;
      break;
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT:
      made.counted_bytes = 0;
      made.bus_factor = 0;
      break;
  }
  return made;
}

}  // namespace sycl_collectives
