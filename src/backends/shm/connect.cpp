#include "backends/shm/connect.hpp"

#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <isthmus/plugin.hpp>

#include "base/backend_option.hpp"
#include "base/error.hpp"

namespace isthmus::shm {
namespace {

// What every rank tells the others, as plain bytes.
struct rank_record {
  segment_address address;
  bool can_kernel_copy;
  const void* cookie_address;  // in the rank's own process, like the next
  std::byte* gate_address;
  geometry sizes;
  cpu_set_t cpus;
};

std::uint64_t option(const isthmus_backend_context& context, const char* key, std::uint64_t fallback,
                     std::uint64_t min_value, std::uint64_t max_value) {
  return read_integer_option(context, "shm", key, fallback, min_value, max_value);
}

geometry read_geometry(const isthmus_backend_context& context) {
  constexpr std::uint64_t largest = 1u << 30;
  const auto ranks = static_cast<std::uint64_t>(context.size);
  geometry sizes = default_geometry(ranks);
  sizes.slot_bytes = option(context, "slot_bytes", sizes.slot_bytes, page_bytes, largest);
  sizes.packet_lines = option(context, "packet_lines", sizes.packet_lines, 1, largest / line_bytes);
  sizes.depth = std::bit_ceil(option(context, "depth", sizes.depth, min_depth, 1024));
  sizes.cell_bytes = option(context, "cell_bytes", sizes.cell_bytes, line_bytes, largest);
  sizes.cells = option(context, "cells", sizes.cells, 2, 1024);
  // every destination gets at least a few lines of each
  sizes.slot_bytes = round_up(std::max(sizes.slot_bytes, ranks * min_slot_block_bytes), page_bytes);
  sizes.packet_lines = std::max(sizes.packet_lines, ranks);
  sizes.cell_bytes = round_up(sizes.cell_bytes, line_bytes);
  return sizes;
}

// At most so much for each core: a virtual machine is told the cache of its whole host (480 MiB for two cores),
// of which others have their part.
std::uint64_t shared_cache_bytes() {
  constexpr std::uint64_t max_bytes_per_core = 16 << 20, default_bytes = 32 << 20;
  const long level3 = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const long level2 = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  const long cache_bytes = level3 > 0 ? level3 : level2;
  if (cache_bytes <= 0) return default_bytes;
  const auto cores = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return std::min(static_cast<std::uint64_t>(cache_bytes), max_bytes_per_core * cores);
}

// More ranks than cores that they may run on: then whoever waits must give up its core at once.
bool is_oversubscribed(const votes<rank_record>& records) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const auto& each : records) CPU_OR(&all, &all, &each.value.cpus);
  return static_cast<std::size_t>(CPU_COUNT(&all)) < records.size();
}

void prepare(const isthmus_backend_context& context, vote<rank_record>& ballot,
             std::shared_ptr<shared_segment>& own, std::unique_ptr<write_gate>& own_gate, tuning_parameters& parameters) {
  rank_record& mine = ballot.value;
  try {
    mine.sizes = read_geometry(context);
    constexpr std::uint64_t unbounded = ~std::uint64_t{0};
    parameters.spins = option(context, "spins", 4000, 0, unbounded);
    parameters.address_bytes = option(context, "address_bytes", 16 << 10, 0, unbounded);
    parameters.streaming_bytes = option(context, "streaming_bytes", shared_cache_bytes(), 0, unbounded);
    mine.can_kernel_copy = option(context, "kernel_copies", 1, 0, 1) != 0;
    own = shared_segment::create(segment_layout(mine.sizes, static_cast<std::uint64_t>(context.size)).bytes());
    mine.address = own->address();
    mine.cookie_address = own->cookie();
    own_gate = std::make_unique<write_gate>();
    mine.gate_address = own_gate->address();
    if (::sched_getaffinity(0, sizeof(mine.cpus), &mine.cpus) != 0) CPU_ZERO(&mine.cpus);
  } catch (const option_error& problem) {
    ballot.refuse(ISTHMUS_ERROR_CONFIG, problem.what());
  } catch (const std::exception& problem) {
    ballot.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem.what());
  }
}

// Copying between processes needs the kernel's leave (not with Yama's default, nor in many
// containers), so it is tried: every segment begins with a cookie that is known.
bool can_read(const rank_record& peer) {
  if (!peer.can_kernel_copy) return false;
  decltype(peer.address.cookie) copied_cookie{};
  iovec local_iovec{&copied_cookie, sizeof(copied_cookie)};
  iovec remote_iovec{const_cast<void*>(peer.cookie_address), sizeof(copied_cookie)};
  return ::process_vm_readv(static_cast<pid_t>(peer.address.pid), &local_iovec, 1, &remote_iovec, 1, 0) == sizeof(copied_cookie) &&
         copied_cookie == peer.address.cookie;
}

// Its value: whether the kernel may copy between this rank and all others.
vote<bool> open_peers(int rank, const votes<rank_record>& records, const std::shared_ptr<shared_segment>& own,
                      std::vector<std::shared_ptr<shared_segment>>& segments) {
  vote<bool> mine;
  try {
    for (std::size_t r = 0; r < records.size(); ++r)
      segments.push_back(static_cast<int>(r) == rank ? own : shared_segment::open(records[r].value.address));
    mine.value = std::all_of(records.begin(), records.end(), [](auto& each) { return can_read(each.value); });
  } catch (const std::exception& problem) {
    mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem.what());
  }
  return mine;
}

}  // namespace

geometry default_geometry(std::uint64_t ranks) {
  // four pages of each block, which kernels work on at once, with few ranks; more bytes leave the second-level
  // cache
  const std::uint64_t slot_bytes =
      std::max(ranks * (8 << 10), std::min<std::uint64_t>(ranks * (16 << 10), 64 << 10));
  geometry sizes{slot_bytes, 512, min_depth, 32 << 10, 4};
  const auto is_too_large = [&] { return segment_layout(sizes, ranks).bytes() * ranks > max_segments_bytes; };
  // Cells grow with the square of the ranks, and a message that needs several is still under way; so they go
  // first, then the slots.
  constexpr std::uint64_t min_cell_bytes = 256, min_packet_lines = 4;
  while (is_too_large() && sizes.cell_bytes > 4 * min_cell_bytes) sizes.cell_bytes /= 2;
  while (is_too_large() && sizes.slot_bytes > ranks * min_slot_block_bytes) sizes.slot_bytes /= 2;
  while (is_too_large() && sizes.cell_bytes > min_cell_bytes) sizes.cell_bytes /= 2;
  while (is_too_large() && sizes.packet_lines > ranks * min_packet_lines) sizes.packet_lines /= 2;
  return sizes;
}

isthmus_status connect(const isthmus_backend_context& context, connection& result) {
  for (int r = 0; r < context.size; ++r)  // equal on all ranks, so all leave here together
    if (context.node_of[r] != context.node_of[0])
      return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr,
                          "rank %d is on another machine than rank 0; shared memory needs one machine", r);
  vote<rank_record> mine;
  std::shared_ptr<shared_segment> own;
  prepare(context, mine, own, result.own_gate, result.parameters);
  votes<rank_record> records;
  if (const auto status = agree(context, ISTHMUS_HERE, mine, records)) return status;
  for (int r = 0; r < context.size; ++r)
    if (!(records[static_cast<std::size_t>(r)].value.sizes == records[0].value.sizes))
      return context.fail(context.runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                          "give all ranks the same backend.shm options",
                          "the sizes in the backend.shm options of rank %d differ from those of rank 0", r);

  const vote<bool> access_vote = open_peers(context.rank, records, own, result.segments);
  votes<bool> access_votes;
  // also a barrier: everybody has opened what it needs, so the descriptors can go
  const isthmus_status status = agree(context, ISTHMUS_HERE, access_vote, access_votes);
  own->close_descriptor();
  if (status != ISTHMUS_SUCCESS) return status;
  result.sizes = mine.value.sizes;
  for (const auto& each : records) result.gate_addresses.push_back(each.value.gate_address);
  result.can_kernel_copy =
      std::all_of(access_votes.begin(), access_votes.end(), [](auto& each) { return each.value; });
  if (is_oversubscribed(records)) result.parameters.spins = 0;
  return ISTHMUS_SUCCESS;
}

}  // namespace isthmus::shm
