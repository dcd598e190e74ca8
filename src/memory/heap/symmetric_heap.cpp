#include "memory/heap/symmetric_heap.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/exchange.hpp"
#include "failure/wait.hpp"

namespace isthmus {

// Allocator for offsets within one segment. Deterministic: equal sequences of calls return equal offsets, which
// keeps the symmetric heaps of all ranks identical.
class offset_allocator {
 public:
  explicit offset_allocator(std::uint64_t bytes) { m_free_ranges[0] = bytes; }

  // Allocates the lowest free range that fits. Returns nullopt if there is none. Offsets are
  // multiples of `alignment`.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes);
  // Releases a range and merges it with adjacent free ranges.
  void release(std::uint64_t offset);

  static constexpr std::uint64_t alignment = 4096;  // required by NCCL windows

 private:
  std::map<std::uint64_t, std::uint64_t> m_free_ranges, m_allocated_ranges;  // offset -> bytes
};

std::optional<std::uint64_t> offset_allocator::allocate(std::uint64_t bytes) {
  const std::uint64_t aligned_bytes = (bytes + alignment - 1) / alignment * alignment;
  for (auto free_range = m_free_ranges.begin(); free_range != m_free_ranges.end(); ++free_range) {
    const auto [offset, free_bytes] = *free_range;
    if (free_bytes < aligned_bytes) continue;
    m_free_ranges.erase(free_range);
    if (free_bytes > aligned_bytes) m_free_ranges[offset + aligned_bytes] = free_bytes - aligned_bytes;
    m_allocated_ranges[offset] = aligned_bytes;
    return offset;
  }
  return std::nullopt;
}

void offset_allocator::release(std::uint64_t offset) {
  const auto allocation = m_allocated_ranges.find(offset);
  if (allocation == m_allocated_ranges.end()) return;
  auto free_range = m_free_ranges.emplace(offset, allocation->second).first;
  m_allocated_ranges.erase(allocation);
  if (const auto next = std::next(free_range);
      next != m_free_ranges.end() && free_range->first + free_range->second == next->first) {
    free_range->second += next->second;
    m_free_ranges.erase(next);
  }
  if (free_range != m_free_ranges.begin())
    if (const auto previous = std::prev(free_range); previous->first + previous->second == free_range->first) {
      previous->second += free_range->second;
      m_free_ranges.erase(free_range);
    }
}

namespace {

constexpr std::uint64_t pool_granules = 4;  // size of a pool

void* offset_pointer(void* base, std::uint64_t offset) {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + offset;
}

}  // namespace

// One segment per rank: a single large block, or a pool of small blocks.
struct symmetric_heap::shared_region {
  std::size_t own_rank;
  std::vector<std::shared_ptr<heap_segment>> segments;  // by rank; null if not accessible
  std::unique_ptr<offset_allocator> free_space;         // pools only
};

struct symmetric_heap::block_record {
  std::uint64_t id;
  std::uint64_t bytes;
  std::uint64_t offset;
  block_owner owned_by;
  std::shared_ptr<shared_region> memory;
  std::vector<void*> peers;
};

// The data that ranks exchange about an allocation.
struct symmetric_heap::rank_report {
  std::uint64_t bytes;
  std::uint64_t freed_count;  // number of blocks that this rank has freed but other ranks may not have
  std::int32_t can_fall_back;
  heap_segment_address address;
};

struct symmetric_heap::proposal {
  rank_report report;
  std::uint64_t segment_bytes;
  std::shared_ptr<heap_segment> segment;
  std::optional<error> failure;
};

namespace {

template <typename Report>
void check_reports(int own_rank, const votes<Report>& all, const std::optional<error>& own_failure) {
  const std::uint64_t bytes = all[0].value.bytes;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].value.bytes != bytes)
      throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                       fmt::format("symmetric allocation: bytes = {} on rank 0 but {} on rank {}", bytes,
                                   all[rank].value.bytes, rank),
                       "pass the same number of bytes on every rank");
  check_votes(own_rank, all, own_failure, fmt::format("symmetric allocation of {} bytes failed", bytes));
}

// Adds to a mapping error the owner of the memory and whether its process has exited. The kernel reports the
// exit shortly after the memory disappears, hence the retries.
error mapping_error(const membership& ranks, std::size_t rank, const error& failure) {
  const auto has_exited = [&] { return ranks.rank_processes[rank].has_exited(); };
  const bool has_ended =
      poll_until(has_exited, deadline_after(std::chrono::milliseconds(200)), std::chrono::milliseconds(10));
  const isthmus_error_info& info = failure.info();
  return make_error(
      has_ended ? ISTHMUS_ERROR_REMOTE : info.status, ISTHMUS_HERE,
      has_ended
          ? fmt::format("rank {} exited while rank {} mapped its block of the symmetric heap", rank, ranks.rank)
          : fmt::format("the block of rank {} cannot be mapped: {}", rank, info.message),
      has_ended ? "look for a crash or an early exit of that rank" : info.hint, info.native_code);
}

}  // namespace

symmetric_heap::symmetric_heap() = default;
symmetric_heap::~symmetric_heap() = default;

void* symmetric_heap::allocate(bootstrap& control, const membership& ranks, std::uint64_t bytes,
                               block_owner owned_by) {
  if (m_source == nullptr) open_source(control, ranks);
  proposal own_proposal = propose(bytes, is_pooled(bytes) ? 0 : bytes);
  auto reports = exchange(control, own_proposal);
  reclaim_freed_blocks(control, reports);
  if (bytes == 0) return nullptr;
  std::uint64_t offset = 0;
  const bool is_from_pool = is_pooled(bytes);
  auto memory = is_from_pool ? allocate_pooled(control, ranks, bytes, &offset)
                             : share(control, ranks, std::move(own_proposal), std::move(reports));
  if (is_from_pool && owned_by == block_owner::backend)
    clear_on_all_ranks(control, offset_pointer(memory->segments[memory->own_rank]->data(), offset), bytes);
  return add(std::move(memory), offset, bytes, owned_by);
}

// At the first allocation, all ranks agree on whether the heap is supported and on its granularity.
void symmetric_heap::open_source(bootstrap& control, const membership& ranks) {
  std::unique_ptr<heap_source> source;
  std::uint64_t granularity = 0;
  const auto failure = capture_error([&] {
    source = heap_source::make(ranks.device);
    granularity = source->granularity();
  });
  for (const std::uint64_t rank_granularity :
       agree(control, granularity, failure, "opening the symmetric heap failed"))
    m_granularity = std::max(m_granularity, rank_granularity);
  m_source = std::move(source);
}

// segment_bytes == 0: no new segment is needed.
symmetric_heap::proposal symmetric_heap::propose(std::uint64_t bytes, std::uint64_t segment_bytes) {
  proposal own_proposal{{}, segment_bytes, nullptr, std::nullopt};
  own_proposal.report.bytes = bytes;
  own_proposal.report.freed_count = m_freed_blocks.size();
  own_proposal.report.can_fall_back = m_source->can_fall_back() ? 1 : 0;
  own_proposal.failure = capture_error([&] {
    if (segment_bytes == 0) return;
    auto new_segment = m_source->create(segment_bytes);
    own_proposal.segment = std::move(new_segment.segment);
    own_proposal.report.address = new_segment.address;
  });
  return own_proposal;
}

std::vector<symmetric_heap::rank_report> symmetric_heap::exchange(bootstrap& control,
                                                                  const proposal& own_proposal) {
  const auto all = gather_votes(control, own_proposal.report, own_proposal.failure);
  check_reports(control.rank(), all, own_proposal.failure);
  std::vector<rank_report> reports;
  for (const auto& each : all) reports.push_back(each.value);
  return reports;
}

// Maps the segments of all ranks. If this fails on some rank and another sharing method exists, all ranks
// create new segments and try again. No rank uses a segment before every rank has mapped it.
std::shared_ptr<symmetric_heap::shared_region> symmetric_heap::share(bootstrap& control,
                                                                     const membership& ranks,
                                                                     proposal own_proposal,
                                                                     std::vector<rank_report> reports) {
  while (true) {
    std::shared_ptr<shared_region> region;
    const auto failure = capture_error([&] { region = map(ranks, reports); });
    const auto all = gather_votes(control, own_proposal.report, failure);
    own_proposal.segment->end_export();
    if (first_refusal(all) < 0) return region;
    if (std::ranges::none_of(all, [](const auto& each) { return each.value.can_fall_back != 0; }))
      check_reports(control.rank(), all, failure);  // throws
    warn_once(
        fmt::format("symmetric heap: blocks are shared by interprocess handle instead of file descriptor: {}",
                    failure ? failure->what() : refusal_text(all)));
    m_source->fall_back();
    region.reset();
    own_proposal = propose(own_proposal.report.bytes, own_proposal.segment_bytes);
    reports = exchange(control, own_proposal);
  }
}

std::shared_ptr<symmetric_heap::shared_region> symmetric_heap::map(const membership& ranks,
                                                                   const std::vector<rank_report>& reports) {
  auto region = std::make_shared<shared_region>();
  region->own_rank = static_cast<std::size_t>(ranks.rank);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    std::string reason;
    const bool is_same_node = ranks.node_of[rank] == ranks.node_of[region->own_rank];
    try {
      region->segments.push_back(is_same_node ? m_source->open(reports[rank].address, reason) : nullptr);
    } catch (const error& failure) {
      throw mapping_error(ranks, rank, failure);
    }
    if (!reason.empty()) warn_once(fmt::format("symmetric heap: rank {} is not accessible: {}", rank, reason));
  }
  return region;
}

// Pools are identical on all ranks, because all ranks allocate and release offsets in the same order.
std::shared_ptr<symmetric_heap::shared_region> symmetric_heap::allocate_pooled(bootstrap& control,
                                                                               const membership& ranks,
                                                                               std::uint64_t bytes,
                                                                               std::uint64_t* offset) {
  for (const auto& pool : m_pools)
    if (const auto pool_offset = pool->free_space->allocate(bytes)) {
      *offset = *pool_offset;
      return pool;
    }
  const std::uint64_t pool_bytes = pool_granules * m_granularity;
  proposal own_proposal = propose(bytes, pool_bytes);
  auto reports = exchange(control, own_proposal);
  auto pool = share(control, ranks, std::move(own_proposal), std::move(reports));
  pool->free_space = std::make_unique<offset_allocator>(pool_bytes);
  m_pools.push_back(pool);
  *offset = *pool->free_space->allocate(bytes);
  return pool;
}

// Freeing is local, and peers may still use the memory. At each allocation, ranks exchange the list of blocks
// that they have freed. Blocks freed by all ranks are reused.
void symmetric_heap::reclaim_freed_blocks(bootstrap& control, const std::vector<rank_report>& reports) {
  if (std::ranges::any_of(reports, [](const rank_report& each) { return each.freed_count == 0; })) return;
  std::string own_ids;
  for (const auto& each : m_freed_blocks)
    own_ids.append(reinterpret_cast<const char*>(&each->id), sizeof each->id);
  std::map<std::uint64_t, std::size_t> counts;
  for (const std::string& peer_ids : gather_texts(control, own_ids))
    for (std::size_t i = 0; i + sizeof(std::uint64_t) <= peer_ids.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t id = 0;
      std::memcpy(&id, peer_ids.data() + i, sizeof id);
      ++counts[id];
    }
  std::erase_if(m_freed_blocks, [&](const auto& each) {
    if (counts[each->id] != reports.size()) return false;
    if (each->memory->free_space != nullptr) each->memory->free_space->release(each->offset);
    return true;
  });
}

// No rank writes to a peer's block before the peer has cleared it.
void symmetric_heap::clear_on_all_ranks(bootstrap& control, void* own_block, std::uint64_t bytes) {
  const auto failure = capture_error([&] { m_source->clear(own_block, bytes); });
  rank_report outcome{};
  outcome.bytes = bytes;
  check_reports(control.rank(), gather_votes(control, outcome, failure), failure);
}

void* symmetric_heap::add(std::shared_ptr<shared_region> memory, std::uint64_t offset, std::uint64_t bytes,
                          block_owner owned_by) {
  auto new_block =
      std::make_unique<block_record>(block_record{m_next_id++, bytes, offset, owned_by, std::move(memory), {}});
  for (const auto& segment : new_block->memory->segments)
    new_block->peers.push_back(segment == nullptr ? nullptr : offset_pointer(segment->data(), offset));
  void* const own_block = new_block->peers[new_block->memory->own_rank];
  const range new_range{reinterpret_cast<std::uintptr_t>(own_block), bytes};
  const auto next_range = std::upper_bound(m_ranges.begin(), m_ranges.end(), new_range,
                                           [](const range& a, const range& b) { return a.begin < b.begin; });
  m_blocks.insert(m_blocks.begin() + (next_range - m_ranges.begin()), std::move(new_block));
  m_ranges.insert(next_range, new_range);
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
  if (owned_by == block_owner::program) m_live_blocks.fetch_add(1, std::memory_order_relaxed);
  return own_block;
}

void symmetric_heap::remove(std::size_t index) {
  const auto position = static_cast<std::ptrdiff_t>(index);
  auto freed_block = std::move(m_blocks[index]);
  if (freed_block->owned_by == block_owner::program) m_live_blocks.fetch_sub(1, std::memory_order_relaxed);
  m_blocks.erase(m_blocks.begin() + position);
  m_ranges.erase(m_ranges.begin() + position);
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
  const bool is_from_pool = freed_block->memory->free_space != nullptr;
  if (!is_from_pool && !m_source->must_outlive_peers()) return;
  if (!is_from_pool)  // keep only a segment that peers may have open
    for (std::size_t rank = 0; rank < freed_block->memory->segments.size(); ++rank)
      if (rank != freed_block->memory->own_rank) freed_block->memory->segments[rank].reset();
  m_freed_blocks.push_back(std::move(freed_block));
}

void symmetric_heap::free(void* pointer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const auto position = std::find_if(m_ranges.begin(), m_ranges.end(),
                                     [&](const range& candidate) { return candidate.begin == begin; });
  const auto index = static_cast<std::size_t>(position - m_ranges.begin());
  if (position == m_ranges.end() || m_blocks[index]->owned_by != block_owner::program)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("memory_free: pointer = {} is not the start of a live block of this communicator's "
                    "symmetric heap ({} live)",
                    pointer, blocks()),
        "pass each block's start to isthmus_memory_free_symmetric once, with the communicator that allocated "
        "it");
  remove(index);
}

void symmetric_heap::free_backend_block(std::uint64_t id) {
  const auto position = std::find_if(m_blocks.begin(), m_blocks.end(), [&](const auto& candidate) {
    return candidate->id == id && candidate->owned_by == block_owner::backend;
  });
  if (position == m_blocks.end())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("heap_free: id = {} is not a live block of a backend", id),
                     "free each block once; blocks of the program are freed by isthmus_memory_free_symmetric");
  remove(static_cast<std::size_t>(position - m_blocks.begin()));
}

std::size_t symmetric_heap::clear() {
  const std::size_t live_count = blocks();
  m_live_blocks.fetch_sub(live_count, std::memory_order_relaxed);
  m_count.store(0, std::memory_order_relaxed);
  m_ranges.clear();
  m_blocks.clear();
  m_freed_blocks.clear();
  m_pools.clear();
  m_source.reset();
  return live_count;
}

std::size_t symmetric_heap::blocks() const noexcept {
  return static_cast<std::size_t>(std::count_if(m_blocks.begin(), m_blocks.end(), [](const auto& block_entry) {
    return block_entry->owned_by == block_owner::program;
  }));
}

std::uint64_t symmetric_heap::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& block_entry : m_blocks)
    if (block_entry->owned_by == block_owner::program) total += block_entry->bytes;
  return total;
}

void symmetric_heap::warn_once(const std::string& text) {
  if (m_warnings.insert(text).second) log(log_level::warning, "{}", text);
}

bool symmetric_heap::find_block(const void* pointer, std::uint64_t bytes, isthmus_heap_block* result,
                                std::uint64_t* offset) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto next_range =
      std::upper_bound(m_ranges.begin(), m_ranges.end(), address,
                       [](std::uintptr_t value, const range& other) { return value < other.begin; });
  if (next_range == m_ranges.begin()) return false;
  const range& candidate = *std::prev(next_range);
  const std::uint64_t distance = address - candidate.begin;
  if (distance > candidate.bytes || bytes > candidate.bytes - distance) return false;
  if (result != nullptr) {
    const block_record& match = *m_blocks[static_cast<std::size_t>(std::prev(next_range) - m_ranges.begin())];
    *result = {match.id, match.bytes, match.peers.data()};
  }
  if (offset != nullptr) *offset = distance;
  return true;
}

}  // namespace isthmus
