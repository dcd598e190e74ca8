#include "memory/symmetric_heap.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <optional>

#include "memory/shared_segment.hpp"
#include "runtime/error.hpp"
#include "runtime/exchange.hpp"

namespace isthmus {
namespace {

struct offer {  // what a rank tells the others about its new segment
  std::int32_t status;
  std::int32_t reserved;
  std::uint64_t bytes;
  segment_address address;
};

void check_offers(const std::vector<offer>& offers, const std::optional<error>& own) {
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

}  // namespace

struct symmetric_heap::block {
  std::uint64_t id;
  std::uint64_t bytes;
  std::uintptr_t begin;
  std::vector<std::shared_ptr<shared_segment>> segments;  // by rank; empty where unreachable
  std::vector<void*> peers;
};

symmetric_heap::symmetric_heap() = default;
symmetric_heap::~symmetric_heap() = default;

void* symmetric_heap::allocate(bootstrap& ranks, const membership& who, std::uint64_t bytes) {
  offer mine{ISTHMUS_SUCCESS, 0, bytes, {}};
  std::shared_ptr<shared_segment> own;
  std::optional<error> failure;
  try {
    if (bytes > 0) own = shared_segment::create(bytes);
    if (own) mine.address = own->address();
  } catch (const error& caught) {
    failure = caught;
    mine.status = caught.info().status;
  }
  const auto offers = gather_values(ranks, mine);
  check_offers(offers, failure);
  if (bytes == 0) return nullptr;

  auto fresh = std::make_unique<block>();
  std::int32_t status = ISTHMUS_SUCCESS;
  try {
    for (std::size_t rank = 0; rank < offers.size(); ++rank) {
      const bool near = who.node_of[rank] == who.node_of[static_cast<std::size_t>(who.rank)];
      fresh->segments.push_back(near ? shared_segment::open(offers[rank].address) : nullptr);
      fresh->peers.push_back(near ? fresh->segments.back()->data() : nullptr);
    }
  } catch (const error& caught) {
    failure = caught;
    status = caught.info().status;
  }
  // Nobody closes a descriptor or goes on before every rank has mapped every peer.
  auto outcomes = gather_values(ranks, offer{status, 0, bytes, {}});
  check_offers(outcomes, failure);
  own->close_descriptor();

  fresh->id = m_next_id++;
  fresh->bytes = bytes;
  fresh->begin = reinterpret_cast<std::uintptr_t>(own->data());
  const auto place =
      std::upper_bound(m_blocks.begin(), m_blocks.end(), fresh->begin,
                       [](std::uintptr_t value, const auto& other) { return value < other->begin; });
  m_blocks.insert(place, std::move(fresh));
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
  return own->data();
}

void symmetric_heap::free(void* pointer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const auto place = std::find_if(m_blocks.begin(), m_blocks.end(),
                                  [&](const auto& candidate) { return candidate->begin == begin; });
  if (place == m_blocks.end())
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("memory_free: pointer = {} is not the start of a live block of this communicator's "
                    "symmetric heap ({} live)",
                    pointer, m_blocks.size()),
        "it was freed before, came from another allocator or communicator, or points inside a block");
  m_blocks.erase(place);
  m_count.store(m_blocks.size(), std::memory_order_relaxed);
}

std::size_t symmetric_heap::clear() {
  const std::size_t left = m_blocks.size();
  m_blocks.clear();
  m_count.store(0, std::memory_order_relaxed);
  return left;
}

std::uint64_t symmetric_heap::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& live : m_blocks) total += live->bytes;
  return total;
}

bool symmetric_heap::find_block(const void* pointer, std::uint64_t bytes, isthmus_heap_block* found,
                                std::uint64_t* offset) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto after =
      std::upper_bound(m_blocks.begin(), m_blocks.end(), address,
                       [](std::uintptr_t value, const auto& other) { return value < other->begin; });
  if (after == m_blocks.begin()) return false;
  const block& candidate = **std::prev(after);
  const std::uint64_t distance = address - candidate.begin;
  if (distance > candidate.bytes || bytes > candidate.bytes - distance) return false;
  if (found != nullptr) *found = {candidate.id, candidate.bytes, candidate.peers.data()};
  if (offset != nullptr) *offset = distance;
  return true;
}

}  // namespace isthmus
