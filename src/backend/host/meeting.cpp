#include "backend/host/meeting.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "runtime/error.hpp"

namespace isthmus::host {
namespace {

// What every rank tells the others, as plain bytes.
struct card {
  segment_address address;
  bool kernel_copies;
  const void* mapped_at;  // in the rank's own process
  geometry sizes;
  cpu_set_t cpus;
  isthmus_status status;
  char problem[256];
};

struct verdict {
  isthmus_status status;
  bool kernel_copies;
  char problem[256];
};

struct bad_option : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::uint64_t option(const isthmus_backend_context& context, const char* key, std::uint64_t otherwise,
                     std::uint64_t least, std::uint64_t most) {
  const char* text = context.option(context.runtime, key);
  if (text == nullptr) return otherwise;
  std::uint64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, problem] = std::from_chars(text, end, value);
  if (problem != std::errc() || stop != end || value < least || value > most)
    throw bad_option(fmt::format("backend.host.{} is \"{}\"; it must be a whole number from {} to {}", key,
                                 text, least, most));
  return value;
}

geometry read_geometry(const isthmus_backend_context& context) {
  constexpr std::uint64_t largest = 1u << 30;
  const auto ranks = static_cast<std::uint64_t>(context.size);
  geometry sizes{};
  // four pages of each block, which kernels work on at once, with few ranks; more bytes leave the second-level
  // cache
  const std::uint64_t slot_bytes =
      std::max(ranks * (8 << 10), std::min<std::uint64_t>(ranks * (16 << 10), 64 << 10));
  sizes.slot_bytes = option(context, "slot_bytes", slot_bytes, page_bytes, largest);
  sizes.packet_lines = option(context, "packet_lines", 512, 1, largest / line_bytes);
  sizes.depth = std::bit_ceil(option(context, "depth", least_depth, least_depth, 1024));
  sizes.cell_bytes = option(context, "cell_bytes", 32 << 10, line_bytes, largest);
  sizes.cells = option(context, "cells", 4, 2, 1024);
  // every destination gets at least a few lines of each
  sizes.slot_bytes = round_up(std::max(sizes.slot_bytes, ranks * 16 * line_bytes), page_bytes);
  sizes.packet_lines = std::max(sizes.packet_lines, ranks);
  sizes.cell_bytes = round_up(sizes.cell_bytes, line_bytes);
  return sizes;
}

// At most so much for each core: a virtual machine is told the cache of its whole host (480 MiB for two cores),
// of which others have their part.
std::uint64_t shared_cache_bytes() {
  constexpr std::uint64_t most_per_core = 16 << 20, when_unknown = 32 << 20;
  const long level3 = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const long level2 = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  const long known = level3 > 0 ? level3 : level2;
  if (known <= 0) return when_unknown;
  const auto cores = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return std::min(static_cast<std::uint64_t>(known), most_per_core * cores);
}

// More ranks than cores that they may run on: then whoever waits must give up its core at once.
bool is_oversubscribed(const std::vector<card>& cards) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const card& each : cards) CPU_OR(&all, &all, &each.cpus);
  return static_cast<std::size_t>(CPU_COUNT(&all)) < cards.size();
}

// Gathers and reports what any rank says; SUCCESS when all are content.
template <typename Statement>
isthmus_status first_problem(const isthmus_backend_context& context, const std::vector<Statement>& all) {
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].status != ISTHMUS_SUCCESS)
      return context.fail(context.runtime, all[r].status, 0, ISTHMUS_HERE, nullptr, "rank %d: %s",
                          static_cast<int>(r), all[r].problem);
  return ISTHMUS_SUCCESS;
}

template <typename Statement>
void complain(Statement& statement, isthmus_status status, const char* problem) {
  statement.status = status;
  copy_text(statement.problem, sizeof(statement.problem), problem);
}

void prepare(const isthmus_backend_context& context, card& mine, std::shared_ptr<segment>& own, tuning& tuned) {
  try {
    mine.sizes = read_geometry(context);
    constexpr std::uint64_t unbounded = ~std::uint64_t{0};
    tuned.spins = option(context, "spins", 4000, 0, unbounded);
    tuned.address_bytes = option(context, "address_bytes", 16 << 10, 0, unbounded);
    tuned.streaming_bytes = option(context, "streaming_bytes", shared_cache_bytes(), 0, unbounded);
    mine.kernel_copies = option(context, "kernel_copies", 1, 0, 1) != 0;
    own = segment::create(layout(mine.sizes, static_cast<std::uint64_t>(context.size)).bytes());
    mine.address = own->address();
    mine.mapped_at = own->data();
    if (::sched_getaffinity(0, sizeof(mine.cpus), &mine.cpus) != 0) CPU_ZERO(&mine.cpus);
  } catch (const bad_option& problem) {
    complain(mine, ISTHMUS_ERROR_CONFIG, problem.what());
  } catch (const std::exception& problem) {
    complain(mine, ISTHMUS_ERROR_UNSUPPORTED, problem.what());
  }
}

// Copying between processes needs the kernel's leave (not with Yama's default, nor in many
// containers), so it is tried: every segment begins with a cookie that is known.
bool can_read(const card& peer) {
  if (!peer.kernel_copies) return false;
  segment_header seen{};
  iovec here{&seen, sizeof(seen)};
  iovec there{const_cast<void*>(peer.mapped_at), sizeof(seen)};
  return ::process_vm_readv(static_cast<pid_t>(peer.address.pid), &here, 1, &there, 1, 0) == sizeof(seen) &&
         std::memcmp(seen.cookie, peer.address.cookie, sizeof(seen.cookie)) == 0;
}

verdict open_peers(int rank, const std::vector<card>& cards, const std::shared_ptr<segment>& own,
                   std::vector<std::shared_ptr<segment>>& segments) {
  verdict mine{};
  try {
    for (std::size_t r = 0; r < cards.size(); ++r)
      segments.push_back(static_cast<int>(r) == rank ? own : segment::open(cards[r].address));
    mine.kernel_copies = std::all_of(cards.begin(), cards.end(), can_read);
  } catch (const std::exception& problem) {
    complain(mine, ISTHMUS_ERROR_UNSUPPORTED, problem.what());
  }
  return mine;
}

}  // namespace

isthmus_status meet(const isthmus_backend_context& context, gathering& result) {
  for (int r = 0; r < context.size; ++r)  // equal on all ranks, so all leave here together
    if (context.node_of[r] != context.node_of[0])
      return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr,
                          "rank %d is on another machine than rank 0; shared memory needs one machine", r);
  card mine{};
  std::shared_ptr<segment> own;
  prepare(context, mine, own, result.tuned);
  std::vector<card> cards(static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, &mine, cards.data(), sizeof(card))) return status;
  if (const auto status = first_problem(context, cards)) return status;
  for (int r = 0; r < context.size; ++r)
    if (!(cards[static_cast<std::size_t>(r)].sizes == cards[0].sizes))
      return context.fail(context.runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                          "give all ranks the same backend.host options",
                          "the sizes in the backend.host options of rank %d differ from those of rank 0", r);

  const verdict opened = open_peers(context.rank, cards, own, result.segments);
  std::vector<verdict> verdicts(cards.size());
  // also a barrier: everybody has opened what it needs, so the descriptors can go
  if (const auto status = context.allgather(context.runtime, &opened, verdicts.data(), sizeof(verdict)))
    return status;
  own->close_descriptor();
  if (const auto status = first_problem(context, verdicts)) return status;
  result.sizes = mine.sizes;
  result.kernel_copies =
      std::all_of(verdicts.begin(), verdicts.end(), [](auto& each) { return each.kernel_copies; });
  if (is_oversubscribed(cards)) result.tuned.spins = 0;
  return ISTHMUS_SUCCESS;
}

}  // namespace isthmus::host
