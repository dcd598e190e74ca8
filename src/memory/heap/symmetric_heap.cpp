#include "memory/heap/symmetric_heap.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/exchange.hpp"
#include "memory/heap/live_blocks.hpp"
#include "memory/heap/placement.hpp"

namespace isthmus {
namespace {

constexpr std::uint64_t pool_granules = 4;  // a pool's size

void* at(void* base, std::uint64_t offset) {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + offset;
}

}  // namespace

// One piece of memory on every rank: a block of its own, or a pool of small ones.
struct symmetric_heap::chunk {
  std::size_t own_rank;
  std::vector<std::shared_ptr<heap_piece>> pieces;  // by rank; empty where unreachable
  std::unique_ptr<placement> free_space;            // of a pool
};

struct symmetric_heap::block {
  std::uint64_t id;
  std::uint64_t bytes;
  std::uint64_t offset;
  owner owned_by;
  std::shared_ptr<chunk> memory;
  std::vector<void*> peers;
};

// What a rank tells the others about its part of an allocation.
struct symmetric_heap::part {
  std::uint64_t bytes;
  std::uint64_t freed;  // blocks that wait for the other ranks
  std::int32_t can_fall_back;
  piece_address address;
};

struct symmetric_heap::proposal {
  part said;
  std::uint64_t piece_bytes;
  std::shared_ptr<heap_piece> piece;
  std::optional<error> failure;
};

namespace {

template <typename Part>
void check_all(const votes<Part>& all, const std::optional<error>& own) {
  const std::uint64_t bytes = all[0].value.bytes;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].value.bytes != bytes)
      throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                       fmt::format("symmetric allocation: bytes = {} on rank 0 but {} on rank {}", bytes,
                                   all[rank].value.bytes, rank),
                       "every rank must ask for the same number of bytes");
  check_votes(all, own, fmt::format("symmetric allocation of {} bytes failed", bytes));
}

// Whose memory it was, and that its process has exited, which is seen a moment after its memory has gone.
error not_mapped(const membership& ranks, std::size_t rank, const error& failure) {
  bool has_ended = false;
  for (int looks = 0; looks < 20 && !has_ended; ++looks) {
    has_ended = ranks.rank_processes[rank].state() == process_state::exited;
    if (!has_ended) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const isthmus_error_info& info = failure.info();
  return make_error(
      has_ended ? ISTHMUS_ERROR_REMOTE : info.status, ISTHMUS_HERE,
      has_ended
          ? fmt::format("rank {} exited while rank {} mapped its block of the symmetric heap", rank, ranks.rank)
          : fmt::format("the block of rank {} can't be mapped: {}", rank, info.message),
      has_ended ? "look for a crash or an early exit of that rank" : info.hint, info.native_code);
}

}  // namespace

symmetric_heap::symmetric_heap() = default;
symmetric_heap::~symmetric_heap() = default;

void* symmetric_heap::allocate(bootstrap& control, const membership& ranks, std::uint64_t bytes,
                               owner owned_by) {
  if (m_source == nullptr) open_source(control, ranks);
  proposal mine = propose(bytes, is_pooled(bytes) ? 0 : bytes);
  auto parts = exchange(control, mine);
  reuse_what_all_have_freed(control, parts);
  if (bytes == 0) return nullptr;
  std::uint64_t offset = 0;
  const bool pooled = is_pooled(bytes);
  auto memory = pooled ? take_pooled(control, ranks, bytes, &offset)
                       : share(control, ranks, std::move(mine), std::move(parts));
  if (pooled && owned_by == owner::backend)
    clear_everywhere(control, at(memory->pieces[memory->own_rank]->data(), offset), bytes);
  return add(std::move(memory), offset, bytes, owned_by);
}

// The first allocation finds out, on all ranks together, whether there is a heap and how coarse it is.
void symmetric_heap::open_source(bootstrap& control, const membership& ranks) {
  std::unique_ptr<heap_source> source;
  std::uint64_t granularity = 0;
  const auto failure = capture_error([&] {
    source = heap_source::make(ranks.device);
    granularity = source->granularity();
  });
  for (const std::uint64_t each : agree(control, granularity, failure, "opening the symmetric heap failed"))
    m_granularity = std::max(m_granularity, each);
  m_source = std::move(source);
}

// piece_bytes == 0: no memory of its own is needed yet.
symmetric_heap::proposal symmetric_heap::propose(std::uint64_t bytes, std::uint64_t piece_bytes) {
  proposal mine{{}, piece_bytes, nullptr, std::nullopt};
  mine.said.bytes = bytes;
  mine.said.freed = m_freed.size();
  mine.said.can_fall_back = m_source->can_fall_back() ? 1 : 0;
  mine.failure = capture_error([&] {
    if (piece_bytes == 0) return;
    auto made = m_source->create(piece_bytes);
    mine.piece = std::move(made.piece);
    mine.said.address = made.address;
  });
  return mine;
}

std::vector<symmetric_heap::part> symmetric_heap::exchange(bootstrap& control, const proposal& mine) {
  const auto all = gather_votes(control, mine.said, mine.failure);
  check_all(all, mine.failure);
  std::vector<part> parts;
  for (const auto& each : all) parts.push_back(each.value);
  return parts;
}

// Maps every rank's piece. Where that fails on some rank and there is another way of sharing, all ranks
// make new pieces and try again; so nobody uses a piece before every rank has mapped it.
std::shared_ptr<symmetric_heap::chunk> symmetric_heap::share(bootstrap& control, const membership& ranks,
                                                             proposal mine, std::vector<part> parts) {
  while (true) {
    std::shared_ptr<chunk> made;
    const auto failure = capture_error([&] { made = map(ranks, parts); });
    const auto all = gather_votes(control, mine.said, failure);
    mine.piece->end_export();
    if (first_refusal(all) < 0) return made;
    if (std::ranges::none_of(all, [](const auto& each) { return each.value.can_fall_back != 0; }))
      check_all(all, failure);  // throws
    tell(fmt::format(
        "symmetric heap: blocks are shared by interprocess handle, not by file descriptor, because {}",
        failure ? failure->what() : refusal_text(all)));
    m_source->fall_back();
    made.reset();
    mine = propose(mine.said.bytes, mine.piece_bytes);
    parts = exchange(control, mine);
  }
}

std::shared_ptr<symmetric_heap::chunk> symmetric_heap::map(const membership& ranks,
                                                           const std::vector<part>& parts) {
  auto made = std::make_shared<chunk>();
  made->own_rank = static_cast<std::size_t>(ranks.rank);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    std::string reason;
    const bool near = ranks.node_of[rank] == ranks.node_of[made->own_rank];
    try {
      made->pieces.push_back(near ? m_source->open(parts[rank].address, reason) : nullptr);
    } catch (const error& failure) {
      throw not_mapped(ranks, rank, failure);
    }
    if (!reason.empty()) tell(fmt::format("symmetric heap: rank {} is out of reach: {}", rank, reason));
  }
  return made;
}

// Ranks keep equal pools: they take and give offsets in the same order.
std::shared_ptr<symmetric_heap::chunk> symmetric_heap::take_pooled(bootstrap& control, const membership& ranks,
                                                                   std::uint64_t bytes, std::uint64_t* offset) {
  for (const auto& pool : m_pools)
    if (const auto found = pool->free_space->take(bytes)) {
      *offset = *found;
      return pool;
    }
  const std::uint64_t pool_bytes = pool_granules * m_granularity;
  proposal mine = propose(bytes, pool_bytes);
  auto parts = exchange(control, mine);
  auto pool = share(control, ranks, std::move(mine), std::move(parts));
  pool->free_space = std::make_unique<placement>(pool_bytes);
  m_pools.push_back(pool);
  *offset = *pool->free_space->take(bytes);
  return pool;
}

// A rank frees without waiting for the others, which may still use its memory. What all have freed is found
// when they meet for the next allocation.
void symmetric_heap::reuse_what_all_have_freed(bootstrap& control, const std::vector<part>& parts) {
  if (std::ranges::any_of(parts, [](const part& each) { return each.freed == 0; })) return;
  std::string mine;
  for (const auto& freed : m_freed) mine.append(reinterpret_cast<const char*>(&freed->id), sizeof freed->id);
  std::map<std::uint64_t, std::size_t> counts;
  for (const std::string& theirs : gather_texts(control, mine))
    for (std::size_t i = 0; i + sizeof(std::uint64_t) <= theirs.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t id = 0;
      std::memcpy(&id, theirs.data() + i, sizeof id);
      ++counts[id];
    }
  std::erase_if(m_freed, [&](const auto& freed) {
    if (counts[freed->id] != parts.size()) return false;
    if (freed->memory->free_space != nullptr) freed->memory->free_space->give(freed->offset);
    return true;
  });
}

// Nobody writes into a peer's block before that peer has cleared it.
void symmetric_heap::clear_everywhere(bootstrap& control, void* own, std::uint64_t bytes) {
  const auto failure = capture_error([&] { m_source->clear(own, bytes); });
  part outcome{};
  outcome.bytes = bytes;
  check_all(gather_votes(control, outcome, failure), failure);
}

void* symmetric_heap::add(std::shared_ptr<chunk> memory, std::uint64_t offset, std::uint64_t bytes,
                          owner owned_by) {
  auto fresh = std::make_unique<block>(block{m_next_id++, bytes, offset, owned_by, std::move(memory), {}});
  for (const auto& piece : fresh->memory->pieces)
    fresh->peers.push_back(piece == nullptr ? nullptr : at(piece->data(), offset));
  void* const own = fresh->peers[fresh->memory->own_rank];
  const range added{reinterpret_cast<std::uintptr_t>(own), bytes};
  const auto after = std::upper_bound(m_ranges.begin(), m_ranges.end(), added,
                                      [](const range& a, const range& b) { return a.begin < b.begin; });
  m_blocks.insert(m_blocks.begin() + (after - m_ranges.begin()), std::move(fresh));
  m_ranges.insert(after, added);
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
  if (owned_by == owner::program) live_blocks::add_to_heaps();
  return own;
}

void symmetric_heap::remove(std::size_t index) {
  const auto step = static_cast<std::ptrdiff_t>(index);
  auto gone = std::move(m_blocks[index]);
  if (gone->owned_by == owner::program) live_blocks::remove_from_heaps(1);
  m_blocks.erase(m_blocks.begin() + step);
  m_ranges.erase(m_ranges.begin() + step);
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
  const bool pooled = gone->memory->free_space != nullptr;
  if (!pooled && !m_source->outlives_peers()) return;
  if (!pooled)  // only what peers may have open stays
    for (std::size_t rank = 0; rank < gone->memory->pieces.size(); ++rank)
      if (rank != gone->memory->own_rank) gone->memory->pieces[rank].reset();
  m_freed.push_back(std::move(gone));
}

void symmetric_heap::free(void* pointer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const auto found = std::find_if(m_ranges.begin(), m_ranges.end(),
                                  [&](const range& candidate) { return candidate.begin == begin; });
  const auto index = static_cast<std::size_t>(found - m_ranges.begin());
  if (found == m_ranges.end() || m_blocks[index]->owned_by != owner::program)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("memory_free: pointer = {} is not the start of a live block of this communicator's "
                    "symmetric heap ({} live)",
                    pointer, blocks()),
        "it was freed before, came from another allocator or communicator, or points inside a block");
  remove(index);
}

void symmetric_heap::free_of_backend(std::uint64_t id) {
  const auto found = std::find_if(m_blocks.begin(), m_blocks.end(), [&](const auto& candidate) {
    return candidate->id == id && candidate->owned_by == owner::backend;
  });
  if (found == m_blocks.end())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("heap_free: no backend has a live block {}", id),
                     "it was freed before, or belongs to the program");
  remove(static_cast<std::size_t>(found - m_blocks.begin()));
}

std::size_t symmetric_heap::clear() {
  const std::size_t left = blocks();
  live_blocks::remove_from_heaps(left);
  m_count.store(0, std::memory_order_relaxed);
  m_ranges.clear();
  m_blocks.clear();
  m_freed.clear();
  m_pools.clear();
  m_source.reset();
  return left;
}

std::size_t symmetric_heap::blocks() const noexcept {
  return static_cast<std::size_t>(std::count_if(
      m_blocks.begin(), m_blocks.end(), [](const auto& live) { return live->owned_by == owner::program; }));
}

std::uint64_t symmetric_heap::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& live : m_blocks)
    if (live->owned_by == owner::program) total += live->bytes;
  return total;
}

void symmetric_heap::tell(const std::string& text) {
  if (m_told.insert(text).second) log(log_level::warning, "{}", text);
}

bool symmetric_heap::find_block(const void* pointer, std::uint64_t bytes, isthmus_heap_block* found,
                                std::uint64_t* offset) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto after =
      std::upper_bound(m_ranges.begin(), m_ranges.end(), address,
                       [](std::uintptr_t value, const range& other) { return value < other.begin; });
  if (after == m_ranges.begin()) return false;
  const range& candidate = *std::prev(after);
  const std::uint64_t distance = address - candidate.begin;
  if (distance > candidate.bytes || bytes > candidate.bytes - distance) return false;
  if (found != nullptr) {
    const block& which = *m_blocks[static_cast<std::size_t>(std::prev(after) - m_ranges.begin())];
    *found = {which.id, which.bytes, which.peers.data()};
  }
  if (offset != nullptr) *offset = distance;
  return true;
}

}  // namespace isthmus
