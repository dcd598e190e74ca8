// Two-phase reduction: every rank reduces one slice of each chunk and then gathers the other slices.
#include <algorithm>
#include <optional>

#include "backends/shm/algorithms.hpp"

namespace isthmus::shm {
namespace {

// Order of the ranks in a chunk: the position of `first` is 0.
struct rank_order {
  int first, ranks;

  std::uint64_t position(int rank) const { return static_cast<std::uint64_t>((rank + ranks - first) % ranks); }
};

// One chunk of the vector, in bytes. The ranks divide it into slices of whole lines.
struct vector_chunk {
  std::uint64_t sequence;
  std::uint64_t begin;   // in the vector
  std::uint64_t length;  // total of all slices
  std::uint64_t slice;   // of one slice; the last ones may be shorter or empty
  rank_order order;

  std::uint64_t slice_begin(int rank) const { return std::min(length, slice * order.position(rank)); }
  std::uint64_t slice_length(int rank) const {
    return std::min(length, slice * (order.position(rank) + 1)) - slice_begin(rank);
  }
};

class two_shot {
 public:
  two_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
           slice_reducers reducers)
      : m_group(group),
        m_work(work),
        m_shape(shape),
        m_bytes(shape.count * shape.element_bytes),
        m_reducers(static_cast<std::uint64_t>(
            reducers == slice_reducers::all_but_root ? std::max(1, group.size() - 1) : group.size())),
        m_order{reducers == slice_reducers::all_but_root ? (shape.receiver + 1) % group.size() : 0,
                group.size()},
        m_chunk_bytes(chunk_bytes(group, m_bytes, m_reducers)),
        m_block_bytes(group.size() > few_ranks ? max_block_bytes : 512),
        m_is_receiver(shape.is_receiver(group.rank())),
        m_staging_mode(staging_mode),
        m_result_mode(result_store_mode(group, shape)) {}

  // Chunk k is staged in step k, reduced `stage_distance` steps later and gathered another `stage_distance`
  // steps later. By then, peers have published their parts. Within a step, writes of one chunk overlap with
  // reads of another.
  void run() {
    m_chunks = (m_bytes + m_chunk_bytes - 1) / m_chunk_bytes;
    m_first = m_group.allocate_sequence_numbers(m_chunks);
    for (std::uint64_t step = 0; step < m_chunks + 2 * stage_distance; ++step) {
      const auto staged = find_chunk(step, 0), reduced = find_chunk(step, stage_distance),
                 gathered = find_chunk(step, 2 * stage_distance);
      wait_for_peers(staged, reduced, gathered);
      const std::uint64_t slice =
          std::max({staged ? staged->slice : 0, reduced ? reduced->slice : 0, gathered ? gathered->slice : 0});
      for (std::uint64_t position = 0; position < slice; position += m_block_bytes) {
        if (staged) stage(*staged, position);
        if (reduced) reduce(*reduced, position);
      }
      if (gathered && m_is_receiver) gather(*gathered);
      publish(staged, reduced, gathered);
    }
    if (m_result_mode == store_mode::streaming) streaming_fence();
  }

 private:
  static constexpr std::uint64_t stage_distance = lookahead / 2;
  // Staging and reduction alternate in small blocks. The processor overlaps them, and reduced data is still in
  // the L1 cache when it is copied. With many ranks the blocks are longer, because hardware prefetchers track
  // only a few pages.
  static constexpr int few_ranks = 4;
  static constexpr std::uint64_t max_block_bytes = 8192;

  // Returns the number of bytes that the blocks of a slot hold. Short vectors use smaller chunks, so that their
  // chunks overlap as well. A slice has at least one page.
  static std::uint64_t chunk_bytes(const node_group& group, std::uint64_t bytes, std::uint64_t reducers) {
    const std::uint64_t min_bytes = page_bytes * reducers,
                        max_bytes = group.sizes().slot_block_bytes(group.size()) * reducers;
    return std::min(max_bytes, std::max(min_bytes, round_up(bytes / 4, min_bytes)));
  }

  // Returns the chunk that is processed in this step with the given delay, if any.
  std::optional<vector_chunk> find_chunk(std::uint64_t step, std::uint64_t delay) const {
    if (step < delay || step - delay >= m_chunks) return std::nullopt;
    const std::uint64_t k = step - delay, begin = k * m_chunk_bytes;
    const std::uint64_t length = std::min(m_chunk_bytes, m_bytes - begin);
    const std::uint64_t slice = round_up((length + m_reducers - 1) / m_reducers, line_bytes);
    return vector_chunk{m_first + k, begin, length, slice, m_order};
  }

  // False for a root that only gathers.
  bool reduces() const { return m_order.position(m_group.rank()) < m_reducers; }

  void wait_for_peers(const std::optional<vector_chunk>& staged, const std::optional<vector_chunk>& reduced,
                      const std::optional<vector_chunk>& gathered) {
    if (staged) m_group.reserve_slot(staged->sequence);
    const bool waits_for_contributions = reduced && reduces();
    // Each flag is a cache miss, so all of them are prefetched before the first is polled.
    for (int r = 0; r < m_group.size(); ++r) {
      if (waits_for_contributions) __builtin_prefetch(&m_group.slot(r, reduced->sequence).staged);
      if (gathered) __builtin_prefetch(&m_group.slot(r, gathered->sequence).reduced);
    }
    for (int i = 1; i < m_group.size(); ++i) {
      const int peer = (m_group.rank() + i) % m_group.size();
      if (waits_for_contributions)
        m_group.wait_for(peer, m_group.slot(peer, reduced->sequence).staged, reduced->sequence);
      if (gathered && m_is_receiver)
        m_group.wait_for(peer, m_group.slot(peer, gathered->sequence).reduced, gathered->sequence);
    }
  }

  void publish(const std::optional<vector_chunk>& staged, const std::optional<vector_chunk>& reduced,
               const std::optional<vector_chunk>& gathered) {
    const int own_rank = m_group.rank();
    if (m_staging_mode == store_mode::streaming && (staged || reduced)) streaming_fence();
    if (staged) m_group.set_flag(m_group.slot(own_rank, staged->sequence).staged, staged->sequence);
    if (reduced) m_group.set_flag(m_group.slot(own_rank, reduced->sequence).reduced, reduced->sequence);
    if (gathered) m_group.complete(gathered->sequence);
  }

  // Returns the number of bytes of the block at `position` in a slice of `slice_length` bytes.
  std::uint64_t block_length(std::uint64_t slice_length, std::uint64_t position) const {
    return position >= slice_length ? 0 : std::min(m_block_bytes, slice_length - position);
  }

  // This rank's own slice is not staged, because no other rank reads it.
  void stage(const vector_chunk& chunk, std::uint64_t position) {
    m_work.ranges.clear();
    for (int i = 1; i < m_group.size(); ++i) {
      const int peer = (m_group.rank() + i) % m_group.size();
      const std::uint64_t length = block_length(chunk.slice_length(peer), position);
      if (length > 0)
        m_work.ranges.push_back({m_group.data_for(peer, m_group.rank(), chunk.sequence) + position,
                                 m_shape.send_buf + chunk.begin + chunk.slice_begin(peer) + position, length});
    }
    copy_staged(m_group, m_work.ranges, m_staging_mode);
  }

  void reduce(const vector_chunk& chunk, std::uint64_t position) {
    const int own_rank = m_group.rank();
    const std::uint64_t length = block_length(chunk.slice_length(own_rank), position),
                        offset = chunk.slice_begin(own_rank) + position;
    if (length == 0) return;
    for (int r = 0; r < m_group.size(); ++r)
      m_work.sources[static_cast<std::size_t>(r)] =
          r == own_rank ? m_shape.send_buf + chunk.begin + offset
                        : m_group.data_for(own_rank, r, chunk.sequence) + position;
    alignas(line_bytes) std::byte reduced[max_block_bytes];
    std::byte* result_slice = m_group.result(own_rank, chunk.sequence) + position;
    std::byte* out = m_staging_mode == store_mode::cached ? result_slice : reduced;
    m_shape.reduce(out, m_work.sources.data(), m_group.size(), length / m_shape.element_bytes);
    copy(result_slice, out, length, m_staging_mode);
    if (m_is_receiver) copy(m_shape.recv_buf + chunk.begin + offset, out, length, m_result_mode);
  }

  // Copies one slice after the other: all ranks read the same lines, and interleaved copies were slower.
  void gather(const vector_chunk& chunk) {
    for (int i = 1; i < m_group.size(); ++i) {
      const int peer = (m_group.rank() + i) % m_group.size();
      copy(m_shape.recv_buf + chunk.begin + chunk.slice_begin(peer), m_group.result(peer, chunk.sequence),
           chunk.slice_length(peer), m_result_mode);
    }
  }

  node_group& m_group;
  workspace& m_work;
  const collective_shape& m_shape;
  std::uint64_t m_bytes, m_reducers;
  rank_order m_order;
  std::uint64_t m_chunk_bytes, m_block_bytes;
  bool m_is_receiver;
  store_mode m_staging_mode, m_result_mode;
  std::uint64_t m_first = 0, m_chunks = 0;
};

}  // namespace

void run_two_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                  slice_reducers reducers) {
  two_shot(group, work, shape, staging_mode, reducers).run();
}

}  // namespace isthmus::shm
