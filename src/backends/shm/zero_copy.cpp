// Zero-copy algorithms, for buffers that every rank can access. A buffer is accessible if it is mapped (in the
// symmetric heap, or if all ranks are threads of one process) or if the kernel can copy it between processes.
#include <algorithm>
#include <optional>

#include "backends/shm/algorithms.hpp"
#include "base/error.hpp"

namespace isthmus::shm {
namespace {

// One of this rank's buffers: its published location, and the heap block that maps the peers' buffers.
struct local_buffer {
  buffer_location location{};
  isthmus_heap_block block{};
};

local_buffer locate_buffer(const node_group& group, const std::byte* pointer, std::uint64_t bytes) {
  local_buffer located;
  if (bytes == 0) return located;
  const auto& context = group.context();
  std::uint64_t offset = 0;
  if (!group.is_one_process() &&
      context.heap_find(context.runtime, pointer, bytes, &located.block, &offset) != 0 &&
      located.block.peers != nullptr) {
    located.location.block_id = located.block.id + 1;
    located.location.offset = offset;
  }
  if (located.location.block_id != 0 ? group.memory().can_kernel_copy()
                                     : group.memory().is_accessible_by_all(pointer))
    located.location.address = const_cast<std::byte*>(pointer);
  return located;
}

class zero_copy {
 public:
  // Scratch memory for contributions that the kernel copies. It must fit into the L2 cache.
  static constexpr std::uint64_t max_scratch_bytes = 1 << 20;
  // Long enough to amortize a system call.
  static constexpr std::uint64_t min_kernel_block_bytes = 16 << 10, max_kernel_block_bytes = 64 << 10;
  // Bytes copied between two abort checks.
  static constexpr std::uint64_t abort_check_bytes = 1 << 20;

  zero_copy(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode)
      : m_group(group),
        m_work(work),
        m_shape(shape),
        m_kernel_block_bytes(
            std::clamp(max_scratch_bytes / static_cast<std::uint64_t>(group.size()) / page_bytes * page_bytes,
                       min_kernel_block_bytes, max_kernel_block_bytes)),
        m_staging_mode(staging_mode),
        m_result_mode(result_store_mode(group, shape)) {}

  bool run(bool is_overwriting) {
    m_sequence = m_group.allocate_sequence_numbers(1);
    publish_locations(is_overwriting);
    // every rank sees the same locations, so all ranks make the same decision
    const bool is_accessible = can_run();
    if (is_accessible) {
      run_copies();
      m_group.poll_abort();  // data read from a rank that aborted is undefined
    }
    streaming_fence();
    m_group.complete(m_sequence);
    // until then, peers may read or write this rank's buffers
    if (is_accessible) m_group.wait_until_all_complete(m_sequence);
    return is_accessible;
  }

  // Without help of the root, receivers write only to their own buffers, so that a receiver waits for no rank at the end.
  bool run_divided_scatter() {
    m_sequence = m_group.allocate_sequence_numbers(1);
    publish_locations(false);
    const bool is_accessible = can_run();
    const int root = m_shape.source, own_rank = m_group.rank();
    const accessible_buffer from = access_send_buffer(root);  // staging reuses the slots of the locations
    m_group.complete(m_sequence);
    if (!is_accessible) return false;
    // A rank whose block is not staged completes these sequence numbers at once.
    run_one_shot(m_group, m_work, m_shape, store_mode::cached, staging_layout::shared, staged_receivers::some);
    if (!is_staged(staged_receivers::some, root, own_rank, m_group.size()))
      read_block(m_shape.recv_buf, from, m_shape.send_offset(own_rank),
                 m_shape.recv_elements(own_rank) * m_shape.element_bytes);
    m_group.poll_abort();  // data read from a rank that aborted is undefined
    streaming_fence();
    const std::uint64_t last_sequence = m_group.allocate_sequence_numbers(1);
    m_group.complete(last_sequence);
    if (own_rank == root)
      m_group.wait_until_all_complete(last_sequence);  // until then, peers read the root's buffer
    return true;
  }

 private:
  // True for gather.
  bool is_push() const { return m_shape.receiver != all_ranks && m_shape.reduce == nullptr; }
  // True for scatter. The root helps its peers, because a cache passes its lines to other cores more slowly than its own
  // core copies them.
  bool is_shared_by_root() const { return m_shape.source != all_ranks && !m_shape.sends_same_block(); }
  // Returns true for reduce and allreduce.
  bool splits_reduction() const { return m_shape.reduce != nullptr && m_shape.sends_same_block(); }

  void publish_locations(bool is_overwriting) {
    if (!is_overwriting) {
      m_send = locate_buffer(m_group, m_shape.send_buf, m_shape.send_bytes());
      m_recv = locate_buffer(m_group, m_shape.recv_buf, m_shape.recv_bytes());
    }
    if (m_recv.location.address != nullptr || m_recv.location.block_id != 0)
      if (m_shape.is_receiver(m_group.rank()) && (is_push() || splits_reduction() || is_shared_by_root()))
        m_group.memory().expose({m_shape.recv_buf, m_shape.recv_bytes(), true, m_recv.location.block_id != 0});
    if (m_send.location.address != nullptr)
      m_group.memory().expose({m_send.location.address, m_shape.send_bytes(), false, false});
    m_group.reserve_slot(m_sequence);
    slot_header& own_header = m_group.slot(m_group.rank(), m_sequence);
    if (m_group.memory().has_lost_access(m_group.rank()))
      m_send.location = {buffer_location::no_access, 0, nullptr};
    own_header.send = m_send.location;
    own_header.recv = m_recv.location;
    own_header.call_signature = m_group.call_signature();
    own_header.claimed_fragments.store(1, std::memory_order_relaxed);  // the receiver copies the first one
    m_group.set_flag(own_header.staged, m_sequence);
    for (int i = 1; i < m_group.size(); ++i) {
      const int peer = (m_group.rank() + i) % m_group.size();
      m_group.wait_for(peer, m_group.slot(peer, m_sequence).staged, m_sequence);
      // A rank in a different call could access memory past the end of a buffer, so the whole signature counts.
      if (m_group.slot(peer, m_sequence).call_signature != own_header.call_signature)
        m_group.fail_with_mismatch(peer);
    }
  }

  // A rank maps a heap block if one of its own buffers lies in the same block.
  bool is_mapped_by_all(const buffer_location& location) const {
    if (location.block_id == 0) return false;
    for (int r = 0; r < m_group.size(); ++r) {
      const slot_header& header = m_group.slot(r, m_sequence);
      if (header.send.block_id != location.block_id && header.recv.block_id != location.block_id) return false;
    }
    return true;
  }
  bool is_accessible_by_all(const buffer_location& location) const {
    return location.address != nullptr || is_mapped_by_all(location);
  }

  bool can_run() const {
    for (int r = 0; r < m_group.size(); ++r) {
      const slot_header& header = m_group.slot(r, m_sequence);
      if (header.send.block_id == buffer_location::no_access) return false;
      const bool is_read = m_shape.is_read(r) && !is_push();
      const bool is_written = m_shape.is_receiver(r) && (is_push() || splits_reduction());
      if ((is_read && !is_accessible_by_all(header.send)) || (is_written && !is_accessible_by_all(header.recv)))
        return false;
    }
    return true;
  }

  accessible_buffer access(int owner, const buffer_location& location, const std::byte* own) const {
    if (owner == m_group.rank()) return {owner, const_cast<std::byte*>(own), true};
    if (!is_mapped_by_all(location)) return {owner, location.address, m_group.is_same_process(owner)};
    const isthmus_heap_block& block =
        location.block_id == m_send.location.block_id ? m_send.block : m_recv.block;
    return {owner, static_cast<std::byte*>(block.peers[owner]) + location.offset, true};
  }
  accessible_buffer access_send_buffer(int rank) const {
    return access(rank, m_group.slot(rank, m_sequence).send, m_shape.send_buf);
  }
  accessible_buffer access_recv_buffer(int rank) const {
    return access(rank, m_group.slot(rank, m_sequence).recv, m_shape.recv_buf);
  }

  void read_block(std::byte* to, const accessible_buffer& from, std::uint64_t offset, std::uint64_t bytes) {
    if (from.is_mapped)
      copy_with_abort_checks(to, from.begin + offset, bytes, m_result_mode);
    else
      m_group.memory().read_from(from.owner, to, from.begin + offset, bytes);
  }
  void write_block(const accessible_buffer& to, std::uint64_t offset, const std::byte* from,
                   std::uint64_t bytes) {
    // Streaming stores suit data that a peer reads next, but not data that this rank reads next.
    if (to.is_mapped)
      copy_with_abort_checks(to.begin + offset, from, bytes,
                             to.owner == m_group.rank() ? m_result_mode : m_staging_mode);
    else
      m_group.memory().write_to(to.owner, from, to.begin + offset, bytes);
  }
  void copy_with_abort_checks(std::byte* to, const std::byte* from, std::uint64_t bytes, store_mode mode) {
    for (std::uint64_t position = 0; position < bytes; position += abort_check_bytes) {
      m_group.poll_abort();
      copy(to + position, from + position, std::min(abort_check_bytes, bytes - position), mode);
    }
  }

  void run_copies() {
    if (is_push() || splits_reduction()) {
      const write_scope scope = m_group.begin_remote_writes();
      m_group.poll_abort();
      if (is_push())
        push();
      else
        reduce_slice();
    } else if (m_shape.reduce != nullptr)
      reduce_own_block();
    else if (is_shared_by_root())
      share_copies();
    else
      pull();
  }

  void push() {
    const int own_rank = m_group.rank();
    write_block(access_recv_buffer(m_shape.receiver), m_shape.recv_offset(own_rank), m_shape.send_buf,
                m_shape.send_elements(own_rank) * m_shape.element_bytes);
  }

  void pull() {
    const int own_rank = m_group.rank();
    for (int i = 0; i < m_group.size(); ++i) {
      const int peer = (own_rank + i) % m_group.size();
      const std::uint64_t bytes = m_shape.recv_elements(peer) * m_shape.element_bytes;
      if (m_shape.is_source(peer) && bytes > 0)
        read_block(m_shape.recv_buf + m_shape.recv_offset(peer), access_send_buffer(peer),
                   m_shape.send_offset(own_rank), bytes);
    }
  }

  // The receiver of a block copies its first fragment. Then the receiver and the root claim fragments until none is left.
  void share_copies() {
    const int root = m_shape.source, own_rank = m_group.rank();
    if (own_rank != root) {
      const accessible_buffer from = access_send_buffer(root);
      for (auto fragment = fragment_at(0); fragment; fragment = claim_fragment(own_rank))
        read_block(m_shape.recv_buf + fragment->begin, from, m_shape.send_offset(own_rank) + fragment->begin,
                   fragment->bytes);
      return;
    }
    help_receivers();
    if (m_shape.is_receiver(root))
      read_block(m_shape.recv_buf, access_send_buffer(root), m_shape.send_offset(root),
                 m_shape.recv_elements(root) * m_shape.element_bytes);
  }

  // Writes a fragment to each receiver in turn. Not if ranks outnumber cores, because a root that loses its core within a
  // fragment would delay the receiver.
  void help_receivers() {
    if (m_group.parameters().spins == 0) return;
    const write_scope scope = m_group.begin_remote_writes();
    m_group.poll_abort();
    for (bool has_copied = true; has_copied;) {
      has_copied = false;
      for (int i = 1; i < m_group.size(); ++i) {
        const int peer = (m_group.rank() + i) % m_group.size();
        if (!is_accessible_by_all(m_group.slot(peer, m_sequence).recv)) continue;
        const auto fragment = claim_fragment(peer);
        if (!fragment) continue;
        has_copied = true;
        write_block(access_recv_buffer(peer), fragment->begin,
                    m_shape.send_buf + m_shape.send_offset(peer) + fragment->begin, fragment->bytes);
      }
    }
  }

  struct block_fragment {
    std::uint64_t begin, bytes;
  };

  // Claims the next fragment of the block that `receiver` and the root copy.
  std::optional<block_fragment> claim_fragment(int receiver) {
    return fragment_at(
        m_group.slot(receiver, m_sequence).claimed_fragments.fetch_add(1, std::memory_order_relaxed));
  }
  // A fragment of any block, because all blocks have the same length.
  std::optional<block_fragment> fragment_at(std::uint64_t index) const {
    constexpr std::uint64_t min_bytes = 16 << 10, max_bytes = 256 << 10;
    const std::uint64_t block_bytes = m_shape.count * m_shape.element_bytes;
    const std::uint64_t bytes = std::clamp(round_up(block_bytes / 8, page_bytes), min_bytes, max_bytes);
    if (index * bytes >= block_bytes) return std::nullopt;
    return block_fragment{index * bytes, std::min(bytes, block_bytes - index * bytes)};
  }

  void reduce_own_block() {
    const std::uint64_t bytes = m_shape.element_bytes, elements = m_shape.recv_elements(m_group.rank());
    const bool is_mapped = locate_contributions(m_shape.send_offset(m_group.rank()));
    const std::uint64_t block = is_mapped ? elements : m_kernel_block_bytes / bytes;
    for (std::uint64_t position = 0; position < elements; position += block)
      reduce_block(m_shape.recv_buf + position * bytes, position, std::min(block, elements - position));
  }

  // Reduces this rank's slice of all vectors and writes the result to every receiver. Slices are disjoint and
  // consist of whole lines. In-place calls need no special case, because only this rank accesses its slice.
  void reduce_slice() {
    const std::uint64_t bytes = m_shape.element_bytes, ranks = static_cast<std::uint64_t>(m_group.size());
    const std::uint64_t slice = round_up((m_shape.count + ranks - 1) / ranks, line_bytes / bytes);
    const std::uint64_t begin = std::min(m_shape.count, slice * static_cast<std::uint64_t>(m_group.rank()));
    const std::uint64_t end = std::min(m_shape.count, begin + slice);
    bool is_mapped = locate_contributions(0);
    m_work.receivers.clear();
    for (int i = 0; i < m_group.size(); ++i) {
      const int peer = (m_group.rank() + i) % m_group.size();
      if (!m_shape.is_receiver(peer)) continue;
      m_work.receivers.push_back(access_recv_buffer(peer));
      is_mapped &= m_work.receivers.back().is_mapped;
    }
    const std::uint64_t block_bytes = is_mapped ? page_bytes : m_kernel_block_bytes,
                        block = block_bytes / bytes;
    std::byte* result = scratch(block_bytes);
    for (std::uint64_t position = begin; position < end; position += block) {
      const std::uint64_t length = std::min(block, end - position);
      reduce_block(result, position, length);
      for (const accessible_buffer& receiver : m_work.receivers)
        write_block(receiver, position * bytes, result, length * bytes);
    }
  }

  // Locates this rank's part of every contribution. True: all of them are mapped.
  bool locate_contributions(std::uint64_t offset) {
    bool is_mapped = true;
    m_work.contributions.clear();
    for (int r = 0; r < m_group.size(); ++r) {
      m_work.contributions.push_back(access_send_buffer(r));
      m_work.contributions.back().begin += offset;
      is_mapped &= m_work.contributions.back().is_mapped;
    }
    return is_mapped;
  }

  // Reduces `length` elements of all contributions, starting at element `position`. Each rank copies from a different
  // peer first.
  void reduce_block(std::byte* to, std::uint64_t position, std::uint64_t length) {
    const std::uint64_t bytes = m_shape.element_bytes;
    for (int i = 0; i < m_group.size(); ++i) {
      const auto r = static_cast<std::size_t>((m_group.rank() + i) % m_group.size());
      const accessible_buffer& from = m_work.contributions[r];
      m_work.sources[r] = from.begin + position * bytes;
      if (from.is_mapped) continue;
      std::byte* local_copy = scratch(m_kernel_block_bytes) + (r + 1) * m_kernel_block_bytes;
      m_group.memory().read_from(from.owner, local_copy, from.begin + position * bytes, length * bytes);
      m_work.sources[r] = local_copy;
    }
    m_shape.reduce(to, m_work.sources.data(), m_group.size(), length);
  }

  // Scratch memory of this rank: a block of results and, if the kernel copies, a block of each contribution.
  std::byte* scratch(std::uint64_t block_bytes) {
    const std::uint64_t blocks = block_bytes == m_kernel_block_bytes ? m_work.contributions.size() + 1 : 1;
    const std::uint64_t required_bytes = blocks * block_bytes + line_bytes;
    if (m_work.bytes.size() < required_bytes) m_work.bytes.resize(required_bytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(m_work.bytes.data());
    return m_work.bytes.data() + (round_up(begin, line_bytes) - begin);
  }

  node_group& m_group;
  workspace& m_work;
  const collective_shape& m_shape;
  std::uint64_t m_kernel_block_bytes;
  store_mode m_staging_mode, m_result_mode;
  std::uint64_t m_sequence = 0;
  local_buffer m_send, m_recv;
};

}  // namespace

bool run_divided_scatter(node_group& group, workspace& work, const collective_shape& shape) {
  return zero_copy(group, work, shape, store_mode::cached).run_divided_scatter();
}

bool run_zero_copy(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                   bool is_overwriting) {
  return zero_copy(group, work, shape, staging_mode).run(is_overwriting);
}

}  // namespace isthmus::shm
