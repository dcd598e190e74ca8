#include "memory/symmetric_heap.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "memory/live_blocks.hpp"
#include "memory/placement.hpp"
#include "runtime/error.hpp"
#include "runtime/exchange.hpp"
#include "runtime/log.hpp"

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
  std::unique_ptr<placement> places;                // of a pool
};

struct symmetric_heap::block {
  std::uint64_t id;
  std::uint64_t bytes;
  std::uint64_t offset;
  owner whose;
  std::shared_ptr<chunk> memory;
  std::vector<void*> peers;
};

// What a rank tells the others about its part of an allocation.
struct symmetric_heap::offer {
  std::int32_t status;
  std::int32_t can_fall_back;
  std::uint64_t bytes;
  std::uint64_t freed;  // blocks that wait for the other ranks
  piece_address address;
};

struct symmetric_heap::proposal {
  offer said;
  std::uint64_t piece_bytes;
  std::shared_ptr<heap_piece> piece;
  std::optional<error> failure;
};

namespace {

template <typename Offers>
void check_all(const Offers& offers, const std::optional<error>& own) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank)
    if (offers[rank].bytes != offers[0].bytes)
      throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                       fmt::format("symmetric allocation: bytes = {} on rank 0 but {} on rank {}",
                                   offers[0].bytes, offers[rank].bytes, rank),
                       "every rank must ask for the same number of bytes");
  if (own) throw error(*own);
  for (std::size_t rank = 0; rank < offers.size(); ++rank)
    if (offers[rank].status != ISTHMUS_SUCCESS)
      throw make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                       fmt::format("symmetric allocation of {} bytes failed on rank {}: {}", offers[0].bytes,
                                   rank, isthmus_status_name(static_cast<isthmus_status>(offers[rank].status))),
                       "see the error that this rank reports");
}

// Runs one rank's part of a step that all ranks take together; keeps the failure for the others to hear of.
template <typename Function>
std::optional<error> attempt(Function&& function) {
  try {
    function();
    return std::nullopt;
  } catch (const error& caught) {
    return caught;
  } catch (const std::bad_alloc&) {
    return make_error(ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE, "host memory exhausted");
  }
}

std::int32_t status_of(const std::optional<error>& failure) {
  return failure ? failure->info().status : ISTHMUS_SUCCESS;
}

}  // namespace

symmetric_heap::symmetric_heap() = default;
symmetric_heap::~symmetric_heap() = default;

void* symmetric_heap::allocate(bootstrap& ranks, const membership& who, std::uint64_t bytes, owner whose) {
  if (m_source == nullptr) open_source(ranks, who);
  proposal mine = propose(bytes, is_pooled(bytes) ? 0 : bytes);
  auto offers = exchange(ranks, mine);
  reuse_what_all_have_freed(ranks, offers);
  if (bytes == 0) return nullptr;
  std::uint64_t offset = 0;
  const bool pooled = is_pooled(bytes);
  auto memory =
      pooled ? take_pooled(ranks, who, bytes, &offset) : share(ranks, who, std::move(mine), std::move(offers));
  if (pooled && whose == owner::backend)
    clear_everywhere(ranks, at(memory->pieces[memory->own_rank]->data(), offset), bytes);
  return add(std::move(memory), offset, bytes, whose);
}

// The first allocation finds out, on all ranks together, whether there is a heap and how coarse it is.
void symmetric_heap::open_source(bootstrap& ranks, const membership& who) {
  std::unique_ptr<heap_source> source;
  std::uint64_t granularity = 0;
  const auto failure = attempt([&] {
    source = heap_source::make(who.device);
    granularity = source->granularity();
  });
  struct state {
    std::int32_t status;
    std::uint64_t bytes, granularity;
  };
  const auto states = gather_values(ranks, state{status_of(failure), 0, granularity});
  check_all(states, failure);
  for (const state& each : states) m_granularity = std::max(m_granularity, each.granularity);
  m_source = std::move(source);
}

// piece_bytes == 0: no memory of its own is needed yet.
symmetric_heap::proposal symmetric_heap::propose(std::uint64_t bytes, std::uint64_t piece_bytes) {
  proposal mine{{}, piece_bytes, nullptr, std::nullopt};
  mine.said.bytes = bytes;
  mine.said.freed = m_freed.size();
  mine.said.can_fall_back = m_source->can_fall_back() ? 1 : 0;
  mine.failure = attempt([&] {
    if (piece_bytes == 0) return;
    auto made = m_source->create(piece_bytes);
    mine.piece = std::move(made.piece);
    mine.said.address = made.address;
  });
  mine.said.status = status_of(mine.failure);
  return mine;
}

std::vector<symmetric_heap::offer> symmetric_heap::exchange(bootstrap& ranks, const proposal& mine) {
  auto offers = gather_values(ranks, mine.said);
  check_all(offers, mine.failure);
  return offers;
}

// Maps every rank's piece. Where that fails on some rank and there is another way of sharing, all ranks
// make new pieces and try again; so nobody uses a piece before every rank has mapped it.
std::shared_ptr<symmetric_heap::chunk> symmetric_heap::share(bootstrap& ranks, const membership& who,
                                                             proposal mine, std::vector<offer> offers) {
  while (true) {
    std::shared_ptr<chunk> made;
    const auto failure = attempt([&] { made = map(who, offers); });
    offer outcome = mine.said;
    outcome.status = status_of(failure);
    const auto outcomes = gather_values(ranks, outcome);
    mine.piece->end_export();
    const auto failed = [](const offer& each) { return each.status != ISTHMUS_SUCCESS; };
    const auto falls_back = [](const offer& each) { return each.can_fall_back != 0; };
    if (std::none_of(outcomes.begin(), outcomes.end(), failed)) return made;
    if (std::none_of(outcomes.begin(), outcomes.end(), falls_back)) check_all(outcomes, failure);  // throws
    tell(fmt::format(
        "symmetric heap: blocks are shared by interprocess handle, not by file descriptor, because {}",
        failure ? failure->what() : "mapping failed on another rank"));
    m_source->fall_back();
    made.reset();
    mine = propose(mine.said.bytes, mine.piece_bytes);
    offers = exchange(ranks, mine);
  }
}

std::shared_ptr<symmetric_heap::chunk> symmetric_heap::map(const membership& who,
                                                           const std::vector<offer>& offers) {
  auto made = std::make_shared<chunk>();
  made->own_rank = static_cast<std::size_t>(who.rank);
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    std::string reason;
    const bool near = who.node_of[rank] == who.node_of[made->own_rank];
    made->pieces.push_back(near ? m_source->open(offers[rank].address, reason) : nullptr);
    if (!reason.empty()) tell(fmt::format("symmetric heap: rank {} is out of reach: {}", rank, reason));
  }
  return made;
}

// Ranks keep equal pools: they take and give places in the same order.
std::shared_ptr<symmetric_heap::chunk> symmetric_heap::take_pooled(bootstrap& ranks, const membership& who,
                                                                   std::uint64_t bytes, std::uint64_t* offset) {
  for (const auto& pool : m_pools)
    if (const auto place = pool->places->take(bytes)) {
      *offset = *place;
      return pool;
    }
  const std::uint64_t pool_bytes = pool_granules * m_granularity;
  proposal mine = propose(bytes, pool_bytes);
  auto offers = exchange(ranks, mine);
  auto pool = share(ranks, who, std::move(mine), std::move(offers));
  pool->places = std::make_unique<placement>(pool_bytes);
  m_pools.push_back(pool);
  *offset = *pool->places->take(bytes);
  return pool;
}

// A rank frees without waiting for the others, which may still use its memory. What all have freed is found
// when they meet for the next allocation.
void symmetric_heap::reuse_what_all_have_freed(bootstrap& ranks, const std::vector<offer>& offers) {
  if (std::any_of(offers.begin(), offers.end(), [](const offer& each) { return each.freed == 0; })) return;
  std::string mine;
  for (const auto& freed : m_freed) mine.append(reinterpret_cast<const char*>(&freed->id), sizeof freed->id);
  std::map<std::uint64_t, std::size_t> counts;
  for (const std::string& theirs : gather_texts(ranks, mine))
    for (std::size_t i = 0; i + sizeof(std::uint64_t) <= theirs.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t id = 0;
      std::memcpy(&id, theirs.data() + i, sizeof id);
      ++counts[id];
    }
  std::erase_if(m_freed, [&](const auto& freed) {
    if (counts[freed->id] != offers.size()) return false;
    if (freed->memory->places != nullptr) freed->memory->places->give(freed->offset);
    return true;
  });
}

// Nobody writes into a peer's block before that peer has cleared it.
void symmetric_heap::clear_everywhere(bootstrap& ranks, void* own, std::uint64_t bytes) {
  const auto failure = attempt([&] { m_source->clear(own, bytes); });
  offer outcome{};
  outcome.status = status_of(failure);
  outcome.bytes = bytes;
  check_all(gather_values(ranks, outcome), failure);
}

void* symmetric_heap::add(std::shared_ptr<chunk> memory, std::uint64_t offset, std::uint64_t bytes,
                          owner whose) {
  auto fresh = std::make_unique<block>(block{m_next_id++, bytes, offset, whose, std::move(memory), {}});
  for (const auto& piece : fresh->memory->pieces)
    fresh->peers.push_back(piece == nullptr ? nullptr : at(piece->data(), offset));
  void* const own = fresh->peers[fresh->memory->own_rank];
  const range place{reinterpret_cast<std::uintptr_t>(own), bytes};
  const auto after = std::upper_bound(m_ranges.begin(), m_ranges.end(), place,
                                      [](const range& a, const range& b) { return a.begin < b.begin; });
  m_blocks.insert(m_blocks.begin() + (after - m_ranges.begin()), std::move(fresh));
  m_ranges.insert(after, place);
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
  if (whose == owner::program) live_blocks::add_to_heaps();
  return own;
}

void symmetric_heap::remove(std::size_t index) {
  const auto step = static_cast<std::ptrdiff_t>(index);
  auto gone = std::move(m_blocks[index]);
  if (gone->whose == owner::program) live_blocks::remove_from_heaps(1);
  m_blocks.erase(m_blocks.begin() + step);
  m_ranges.erase(m_ranges.begin() + step);
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
  const bool pooled = gone->memory->places != nullptr;
  if (!pooled && !m_source->outlives_peers()) return;
  if (!pooled)  // only what peers may have open stays
    for (std::size_t rank = 0; rank < gone->memory->pieces.size(); ++rank)
      if (rank != gone->memory->own_rank) gone->memory->pieces[rank].reset();
  m_freed.push_back(std::move(gone));
}

void symmetric_heap::free(void* pointer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const auto place = std::find_if(m_ranges.begin(), m_ranges.end(),
                                  [&](const range& candidate) { return candidate.begin == begin; });
  const auto index = static_cast<std::size_t>(place - m_ranges.begin());
  if (place == m_ranges.end() || m_blocks[index]->whose != owner::program)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("memory_free: pointer = {} is not the start of a live block of this communicator's "
                    "symmetric heap ({} live)",
                    pointer, blocks()),
        "it was freed before, came from another allocator or communicator, or points inside a block");
  remove(index);
}

void symmetric_heap::free_of_backend(std::uint64_t id) {
  const auto place = std::find_if(m_blocks.begin(), m_blocks.end(), [&](const auto& candidate) {
    return candidate->id == id && candidate->whose == owner::backend;
  });
  if (place == m_blocks.end())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("heap_free: no backend has a live block {}", id),
                     "it was freed before, or belongs to the program");
  remove(static_cast<std::size_t>(place - m_blocks.begin()));
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
      m_blocks.begin(), m_blocks.end(), [](const auto& live) { return live->whose == owner::program; }));
}

std::uint64_t symmetric_heap::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& live : m_blocks)
    if (live->whose == owner::program) total += live->bytes;
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
