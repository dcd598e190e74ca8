// Packet algorithms: sources publish lines that contain their own flags, and receivers copy or
// reduce the payload.
#include <algorithm>
#include <cstring>

#include "backends/shm/algorithms.hpp"

namespace isthmus::shm {

namespace {

void write_packet(const node_group& group, packet_line* lines, const std::byte* from, std::uint64_t bytes,
                  std::uint64_t sequence) {
  constexpr std::uint64_t full = packet_line::capacity;
  const std::uint64_t ready = group.flag_value(sequence);
  for (; bytes >= full; ++lines, from += full, bytes -= full) {
    std::memcpy(lines->payload, from, full);
    lines->ready.store(ready, std::memory_order_release);
    if (bytes == full) return;
  }
  if (bytes > 0) std::memcpy(lines->payload, from, bytes);
  lines->ready.store(ready, std::memory_order_release);
}

// A reader that polls every line disturbs the writer. On an EPYC, 2 KiB took 1.20 us with one line per poll,
// 1.14 us with 8 and 0.97 us with 16.
constexpr std::uint64_t lines_per_wait = 16;

void read_packet(node_group& group, int peer, const packet_line* lines, std::byte* to, std::uint64_t bytes,
                 std::uint64_t sequence) {
  constexpr std::uint64_t full = packet_line::capacity, batch = lines_per_wait * full;
  for (; bytes > batch; bytes -= batch) {
    group.wait_for(peer, lines[lines_per_wait - 1].ready, sequence);  // the lines before it were stored earlier
    for (std::uint64_t i = 0; i < lines_per_wait; ++i, ++lines, to += full)
      std::memcpy(to, lines->payload, full);
  }
  const std::uint64_t full_lines = bytes == 0 ? 0 : (bytes - 1) / full;
  group.wait_for(peer, lines[full_lines].ready, sequence);
  for (std::uint64_t i = 0; i < full_lines; ++i, ++lines, to += full) std::memcpy(to, lines->payload, full);
  if (bytes > 0) std::memcpy(to, lines->payload, bytes - full_lines * full);
}

// Packets that `peer` publishes for all ranks.
packet_line* shared_packets(const node_group& group, const collective_shape& shape, int peer,
                            std::uint64_t sequence) {
  return shape.source == all_ranks ? group.packets(peer, sequence) : group.root_packets(peer, sequence);
}

// Speeds up back-to-back calls with one source or one receiver: a source acquires its next line before it writes it, and
// readers prefetch the next line of a broadcast. With two ranks and one receiver, it gained nothing.
void prefetch_next_packet(const node_group& group, const collective_shape& shape, std::uint64_t sequence) {
  const bool has_one_source = shape.source != all_ranks;
  if (!shape.sends_same_block() || (!has_one_source && (shape.receiver == all_ranks || group.size() == 2)))
    return;
  const int source = has_one_source ? shape.source : group.rank();
  const packet_line* const next = shared_packets(group, shape, source, sequence + 1);
  if (source == group.rank())
    prefetch_to_write(next);
  else
    __builtin_prefetch(next);
}

// Prefetches the first line of each peer from `peer(1)` to `peer(count)`. Waits for the first peer before: a prefetch of
// a line that its owner has not written yet takes the line away from the owner. Once one peer has published, the others
// usually have also.
template <typename Peer, typename Packets>
void prefetch_packets(node_group& group, int count, Peer&& peer, Packets&& packets_of, std::uint64_t sequence) {
  if (count < 2) return;
  group.wait_for(peer(1), packets_of(peer(1))->ready, sequence);
  for (int i = 2; i <= count; ++i) __builtin_prefetch(packets_of(peer(i)));
}

void publish_packets(node_group& group, const collective_shape& shape, std::uint64_t sequence) {
  group.reserve_slot(sequence);
  const int own_rank = group.rank();
  if (shape.sends_same_block())
    return write_packet(group, shared_packets(group, shape, own_rank, sequence), shape.send_buf,
                        shape.send_elements(own_rank) * shape.element_bytes, sequence);
  for (int i = 1; i < group.size(); ++i) {
    const int peer = (own_rank + i) % group.size();
    if (shape.is_receiver(peer))
      write_packet(group, group.packets_for(peer, own_rank, sequence), shape.send_buf + shape.send_offset(peer),
                   shape.send_elements(peer) * shape.element_bytes, sequence);
  }
}

// Calls receive(peer) for every other source. Each rank starts at a different peer.
template <typename Take>
void for_other_contributors(const node_group& group, const collective_shape& shape, Take&& receive) {
  if (shape.source != all_ranks) {
    if (shape.source != group.rank()) receive(shape.source);
    return;
  }
  for (int i = 1; i < group.size(); ++i) receive((group.rank() + i) % group.size());
}

void receive_packets(node_group& group, workspace& work, const collective_shape& shape,
                     std::uint64_t sequence) {
  const int own_rank = group.rank();
  const auto source_packets = [&](int peer) {
    return !shape.sends_same_block() ? group.packets_for(own_rank, peer, sequence)
                                     : shared_packets(group, shape, peer, sequence);
  };
  // A call with one receiver is limited by that receiver.
  if (shape.receiver != all_ranks)
    prefetch_packets(
        group, group.size() - 1, [&](int i) { return (own_rank + i) % group.size(); }, source_packets,
        sequence);
  const std::byte* own = shape.send_buf + shape.send_offset(own_rank);
  if (shape.reduce == nullptr) {
    for_other_contributors(group, shape, [&](int peer) {
      read_packet(group, peer, source_packets(peer), shape.recv_buf + shape.recv_offset(peer),
                  shape.recv_elements(peer) * shape.element_bytes, sequence);
    });
    if (shape.is_source(own_rank))
      copy(shape.recv_buf + shape.recv_offset(own_rank), own,
           shape.recv_elements(own_rank) * shape.element_bytes, store_mode::cached);
    return;
  }
  const std::uint64_t elements = shape.recv_elements(own_rank), bytes = elements * shape.element_bytes;
  const std::uint64_t stride = round_up(bytes, line_bytes);
  if (work.bytes.size() < stride * static_cast<std::uint64_t>(group.size()))
    work.bytes.resize(stride * static_cast<std::uint64_t>(group.size()));
  for_other_contributors(group, shape, [&](int peer) {
    std::byte* to = work.bytes.data() + stride * static_cast<std::uint64_t>(peer);
    read_packet(group, peer, source_packets(peer), to, bytes, sequence);
    work.sources[static_cast<std::size_t>(peer)] = to;
  });
  work.sources[static_cast<std::size_t>(own_rank)] = own;
  shape.reduce(shape.recv_buf, work.sources.data(), group.size(), elements);
}

// Slices of a vector, one per rank. Slices consist of whole lines, so that no line holds elements
// of two slices.
struct packet_slices {
  std::uint64_t count, slice;

  packet_slices(const collective_shape& shape, int size) : count(shape.count) {
    const std::uint64_t elements_per_line = packet_line::capacity / shape.element_bytes;
    const std::uint64_t lines = (count + elements_per_line - 1) / elements_per_line,
                        ranks = static_cast<std::uint64_t>(size);
    slice = (lines + ranks - 1) / ranks * elements_per_line;
  }
  std::uint64_t begin(int rank) const { return std::min(count, slice * static_cast<std::uint64_t>(rank)); }
  std::uint64_t length(int rank) const { return begin(rank + 1) - begin(rank); }
};

// Reduces all contributions to this rank's slice and publishes the result under the next sequence number.
void reduce_packet_slice(node_group& group, workspace& work, const collective_shape& shape,
                         const packet_slices& slices, std::uint64_t contribution_sequence) {
  const int own_rank = group.rank();
  const std::uint64_t bytes = slices.length(own_rank) * shape.element_bytes,
                      offset = slices.begin(own_rank) * shape.element_bytes;
  const std::uint64_t stride = round_up(bytes, line_bytes),
                      required_bytes = stride * static_cast<std::uint64_t>(group.size());
  if (work.bytes.size() < required_bytes) work.bytes.resize(required_bytes);
  std::byte* to = work.bytes.data();
  for (int i = 1; i < group.size(); ++i, to += stride) {
    const int peer = (own_rank + i) % group.size();
    read_packet(group, peer, group.packets_for(own_rank, peer, contribution_sequence), to, bytes,
                contribution_sequence);
    work.sources[static_cast<std::size_t>(peer)] = to;
  }
  work.sources[static_cast<std::size_t>(own_rank)] = shape.send_buf + offset;
  std::byte* result =
      shape.is_receiver(own_rank) ? shape.recv_buf + offset : to;  // the last part of the workspace is free
  shape.reduce(result, work.sources.data(), group.size(), slices.length(own_rank));
  group.reserve_slot(contribution_sequence + 1);
  write_packet(group, group.packets(own_rank, contribution_sequence + 1), result, bytes,
               contribution_sequence + 1);
}

// Divides the ranks into rows of consecutive ranks, with about as many rows as ranks in a row.
class rank_grid {
 public:
  explicit rank_grid(int size) : m_size(size) {
    while (m_rows * m_rows < size) ++m_rows;
  }
  int rows() const { return m_rows; }
  int row_of(int rank) const { return ((rank + 1) * m_rows - 1) / m_size; }
  int begin(int row) const { return row * m_size / m_rows; }
  int length(int row) const { return begin(row + 1) - begin(row); }
  int max_length() const { return (m_size + m_rows - 1) / m_rows; }
  // Returns the rank of `row` that forwards the contributions of that row to `reader`. It is in the same column.
  int forwarder(int row, int reader) const {
    return begin(row) + (reader - begin(row_of(reader))) % length(row);
  }

 private:
  int m_size, m_rows = 1;
};

// Reads the contributions of the own row except the own one. `contributions` holds one block per rank.
void read_row(node_group& group, const rank_grid& grid, std::byte* contributions, std::uint64_t bytes,
              std::uint64_t sequence) {
  const int own_rank = group.rank(), begin = grid.begin(grid.row_of(own_rank)),
            length = grid.length(grid.row_of(own_rank));
  const auto peer = [&](int i) { return begin + (own_rank - begin + i) % length; };
  prefetch_packets(
      group, length - 1, peer, [&](int source) { return group.packets(source, sequence); }, sequence);
  for (int i = 1; i < length; ++i)
    read_packet(group, peer(i), group.packets(peer(i), sequence),
                contributions + static_cast<std::uint64_t>(peer(i)) * bytes, bytes, sequence);
}

// Reads the contributions of all other rows, each from one rank that has packed them.
void read_other_rows(node_group& group, const rank_grid& grid, std::byte* contributions, std::uint64_t bytes,
                     std::uint64_t sequence) {
  const int own_rank = group.rank(), own_row = grid.row_of(own_rank);
  const auto row = [&](int i) { return (own_row + i) % grid.rows(); };
  const auto peer = [&](int i) { return grid.forwarder(row(i), own_rank); };
  prefetch_packets(
      group, grid.rows() - 1, peer, [&](int source) { return group.packets(source, sequence); }, sequence);
  for (int i = 1; i < grid.rows(); ++i)
    read_packet(group, peer(i), group.packets(peer(i), sequence),
                contributions + static_cast<std::uint64_t>(grid.begin(row(i))) * bytes,
                static_cast<std::uint64_t>(grid.length(row(i))) * bytes, sequence);
}

}  // namespace

std::uint64_t packet_block_bytes(const geometry& sizes, int size, bool is_per_destination) {
  return (is_per_destination ? sizes.packet_block_lines(size) : sizes.packet_lines) * packet_line::capacity;
}

void run_packet(node_group& group, workspace& work, const collective_shape& shape) {
  const std::uint64_t sequence = group.allocate_sequence_numbers(1, shape.receiver);
  if (shape.has_receivers()) publish_packets(group, shape, sequence);
  prefetch_next_packet(group, shape, sequence);
  if (shape.is_receiver(group.rank())) receive_packets(group, work, shape, sequence);
  group.complete(sequence);
  group.refresh_completed(sequence);
}

void run_two_shot_packet(node_group& group, workspace& work, const collective_shape& shape) {
  const std::uint64_t contribution_sequence = group.allocate_sequence_numbers(2),
                      result_sequence = contribution_sequence + 1;
  const packet_slices slices(shape, group.size());
  const int own_rank = group.rank();
  group.reserve_slot(contribution_sequence);
  for (int i = 1; i < group.size(); ++i) {
    const int peer = (own_rank + i) % group.size();
    if (slices.length(peer) > 0)
      write_packet(group, group.packets_for(peer, own_rank, contribution_sequence),
                   shape.send_buf + slices.begin(peer) * shape.element_bytes,
                   slices.length(peer) * shape.element_bytes, contribution_sequence);
  }
  if (slices.length(own_rank) > 0) reduce_packet_slice(group, work, shape, slices, contribution_sequence);
  for (int i = 1; i < group.size() && shape.is_receiver(own_rank); ++i) {
    const int peer = (own_rank + i) % group.size();
    if (slices.length(peer) > 0)
      read_packet(group, peer, group.packets(peer, result_sequence),
                  shape.recv_buf + slices.begin(peer) * shape.element_bytes,
                  slices.length(peer) * shape.element_bytes, result_sequence);
  }
  group.complete(result_sequence);
}

std::uint64_t grid_packet_block_bytes(const geometry& sizes, int size) {
  return packet_block_bytes(sizes, size, false) / static_cast<std::uint64_t>(rank_grid(size).max_length());
}

void run_grid_packet(node_group& group, workspace& work, const collective_shape& shape) {
  const rank_grid grid(group.size());
  const int own_rank = group.rank(), own_row = grid.row_of(own_rank);
  // The only receiver has completed a call after the forwarders have read their rows.
  const std::uint64_t row_sequence = group.allocate_sequence_numbers(2, shape.receiver),
                      column_sequence = row_sequence + 1;
  const std::uint64_t bytes = shape.count * shape.element_bytes;
  const bool has_one_receiver = shape.receiver != all_ranks, is_receiver = shape.is_receiver(own_rank);
  const bool is_forwarder = !has_one_receiver || grid.forwarder(own_row, shape.receiver) == own_rank;
  if (!has_one_receiver || !is_forwarder) {
    group.reserve_slot(row_sequence);
    write_packet(group, group.packets(own_rank, row_sequence), shape.send_buf, bytes, row_sequence);
  }
  if (is_forwarder) {
    const std::uint64_t all_bytes = bytes * static_cast<std::uint64_t>(group.size()),
                        row_bytes = bytes * static_cast<std::uint64_t>(grid.length(own_row));
    if (work.bytes.size() < all_bytes) work.bytes.resize(all_bytes);
    std::byte* const contributions =
        shape.reduce == nullptr && is_receiver ? shape.recv_buf : work.bytes.data();
    copy(contributions + static_cast<std::uint64_t>(own_rank) * bytes, shape.send_buf, bytes,
         store_mode::cached);
    read_row(group, grid, contributions, bytes, row_sequence);
    if (!has_one_receiver || !is_receiver) {
      group.reserve_slot(column_sequence);
      write_packet(group, group.packets(own_rank, column_sequence),
                   contributions + static_cast<std::uint64_t>(grid.begin(own_row)) * bytes, row_bytes,
                   column_sequence);
    }
    if (is_receiver) read_other_rows(group, grid, contributions, bytes, column_sequence);
    if (is_receiver && shape.reduce != nullptr) {
      for (int r = 0; r < group.size(); ++r)
        work.sources[static_cast<std::size_t>(r)] = contributions + static_cast<std::uint64_t>(r) * bytes;
      shape.reduce(shape.recv_buf, work.sources.data(), group.size(), shape.count);
    }
  }
  group.complete(column_sequence);
  group.refresh_completed(column_sequence);
}

void run_barrier(node_group& group) {
  const std::uint64_t sequence = group.allocate_sequence_numbers(1);
  group.reserve_slot(sequence);
  write_packet(group, group.packets(group.rank(), sequence), nullptr, 0, sequence);
  for (int i = 1; i < group.size(); ++i) {
    const int peer = (group.rank() + i) % group.size();
    group.wait_for(peer, group.packets(peer, sequence)->ready, sequence);
  }
  group.complete(sequence);
}

}  // namespace isthmus::shm
