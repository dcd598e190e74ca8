#include "backends/shm/segments.hpp"

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

// Record that every rank sends to the others, as plain bytes.
struct rank_record {
  segment_address address;
  bool can_kernel_copy;
  const void* cookie_address;  // in the rank's own process, like gate_address
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
  // every destination has at least a few lines of each kind
  sizes.slot_bytes = round_up(std::max(sizes.slot_bytes, ranks * min_slot_block_bytes), page_bytes);
  sizes.packet_lines = std::max(sizes.packet_lines, ranks);
  sizes.cell_bytes = round_up(sizes.cell_bytes, line_bytes);
  return sizes;
}

// Limited per core, because a virtual machine reports the cache of its entire host (for example 480 MiB for two
// cores), which it shares with other guests.
std::uint64_t shared_cache_bytes() {
  constexpr std::uint64_t max_bytes_per_core = 16 << 20, default_bytes = 32 << 20;
  const long level3 = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const long level2 = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  const long cache_bytes = level3 > 0 ? level3 : level2;
  if (cache_bytes <= 0) return default_bytes;
  const auto cores = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return std::min(static_cast<std::uint64_t>(cache_bytes), max_bytes_per_core * cores);
}

// Returns true if there are more ranks than cores. A waiting rank must then yield its core at once.
bool is_oversubscribed(const votes<rank_record>& records) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const auto& each : records) CPU_OR(&all, &all, &each.value.cpus);
  return static_cast<std::size_t>(CPU_COUNT(&all)) < records.size();
}

// Call it in a catch block. A rank without descriptors or memory makes the creation fail on all ranks. Without shared
// memory for another reason, the ranks use other backends.
template <typename Value>
void refuse_after_exception(vote<Value>& ballot) {
  const isthmus_error_info info = current_error().info();
  const bool has_shortage = info.status == ISTHMUS_ERROR_OUT_OF_MEMORY || is_shortage(info.native_code);
  ballot.refuse(has_shortage ? info.status : ISTHMUS_ERROR_UNSUPPORTED, info.message, info.hint,
                info.native_code);
}

void prepare(const isthmus_backend_context& context, vote<rank_record>& ballot,
             std::shared_ptr<shared_segment>& own, std::unique_ptr<write_gate>& own_gate,
             tuning_parameters& parameters) {
  rank_record& record = ballot.value;
  try {
    record.sizes = read_geometry(context);
    constexpr std::uint64_t unbounded = ~std::uint64_t{0};
    parameters.spins = option(context, "spins", 4000, 0, unbounded);
    const std::uint64_t channel_bytes = record.sizes.cell_bytes * record.sizes.cells;
    parameters.address_bytes =
        option(context, "address_bytes", std::max<std::uint64_t>(16 << 10, channel_bytes), 0, unbounded);
    parameters.streaming_bytes = option(context, "streaming_bytes", shared_cache_bytes(), 0, unbounded);
    record.can_kernel_copy = option(context, "kernel_copies", 1, 0, 1) != 0;
    own = shared_segment::create(segment_layout(record.sizes, static_cast<std::uint64_t>(context.size)).bytes(),
                                 segment_use::internal);
    record.address = own->address();
    record.cookie_address = own->cookie();
    own_gate = std::make_unique<write_gate>();
    record.gate_address = own_gate->address();
    if (::sched_getaffinity(0, sizeof(record.cpus), &record.cpus) != 0) CPU_ZERO(&record.cpus);
  } catch (const option_error& problem) {
    ballot.refuse(ISTHMUS_ERROR_CONFIG, problem.what());
  } catch (...) {
    refuse_after_exception(ballot);
  }
}

// The kernel may forbid copies between processes (Yama's default, many containers), so this function tries a
// copy: every segment starts with a known cookie.
bool can_read(const rank_record& peer) {
  if (!peer.can_kernel_copy) return false;
  decltype(peer.address.cookie) copied_cookie{};
  iovec local_iovec{&copied_cookie, sizeof(copied_cookie)};
  iovec remote_iovec{const_cast<void*>(peer.cookie_address), sizeof(copied_cookie)};
  return ::process_vm_readv(static_cast<pid_t>(peer.address.pid), &local_iovec, 1, &remote_iovec, 1, 0) ==
             sizeof(copied_cookie) &&
         copied_cookie == peer.address.cookie;
}

// The vote's value is true if the kernel can copy between this rank and all others.
vote<bool> open_peers(int rank, const votes<rank_record>& records, const std::shared_ptr<shared_segment>& own,
                      std::vector<std::shared_ptr<shared_segment>>& segments) {
  vote<bool> own_vote;
  try {
    for (std::size_t r = 0; r < records.size(); ++r)
      segments.push_back(static_cast<int>(r) == rank
                             ? own
                             : shared_segment::open(records[r].value.address, segment_use::internal));
    own_vote.value =
        std::all_of(records.begin(), records.end(), [](auto& each) { return can_read(each.value); });
  } catch (...) {
    refuse_after_exception(own_vote);
  }
  return own_vote;
}

}  // namespace

geometry default_geometry(std::uint64_t ranks) {
  // With few ranks a slot holds four pages of each block. The kernels process them together, and larger slots
  // would not fit into the L2 cache.
  const std::uint64_t slot_bytes =
      std::max(ranks * (8 << 10), std::min<std::uint64_t>(ranks * (16 << 10), 64 << 10));
  geometry sizes{slot_bytes, 512, min_depth, 32 << 10, 4};
  const auto is_too_large = [&] { return segment_layout(sizes, ranks).bytes() * ranks > max_segments_bytes; };
  // The memory for cells grows with the square of the number of ranks, and a message can use several cells. So
  // cells shrink first, then slots.
  constexpr std::uint64_t min_cell_bytes = 256, min_packet_lines = 4;
  while (is_too_large() && sizes.cell_bytes > 4 * min_cell_bytes) sizes.cell_bytes /= 2;
  while (is_too_large() && sizes.slot_bytes > ranks * min_slot_block_bytes) sizes.slot_bytes /= 2;
  while (is_too_large() && sizes.cell_bytes > min_cell_bytes) sizes.cell_bytes /= 2;
  while (is_too_large() && sizes.packet_lines > ranks * min_packet_lines) sizes.packet_lines /= 2;
  return sizes;
}

isthmus_status connect(const isthmus_backend_context& context, segment_connection& result) {
  for (int r = 0; r < context.size; ++r)  // equal on all ranks, so all of them return here
    if (context.node_of[r] != context.node_of[0])
      return context.fail(
          context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr,
          "rank %d is on another machine than rank 0: the shm backend needs all ranks on one machine", r);
  vote<rank_record> own_vote;
  std::shared_ptr<shared_segment> own;
  prepare(context, own_vote, own, result.own_gate, result.parameters);
  votes<rank_record> records;
  if (const auto status = agree(context, ISTHMUS_HERE, own_vote, records)) return status;
  for (int r = 0; r < context.size; ++r)
    if (!(records[static_cast<std::size_t>(r)].value.sizes == records[0].value.sizes))
      return context.fail(context.runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                          "set the same backend.shm options on all ranks",
                          "the sizes in the backend.shm options of rank %d differ from those of rank 0", r);

  const vote<bool> access_vote = open_peers(context.rank, records, own, result.segments);
  votes<bool> access_votes;
  // Also a barrier: every rank has opened its peers' segments, so the descriptors can be closed.
  const isthmus_status status = agree(context, ISTHMUS_HERE, access_vote, access_votes);
  own->close_descriptor();
  if (status != ISTHMUS_SUCCESS) return status;
  result.sizes = own_vote.value.sizes;
  for (const auto& each : records) result.gate_addresses.push_back(each.value.gate_address);
  result.can_kernel_copy =
      std::all_of(access_votes.begin(), access_votes.end(), [](auto& each) { return each.value; });
  if (is_oversubscribed(records)) result.parameters.spins = 0;
  return ISTHMUS_SUCCESS;
}

node_segments::node_segments(const isthmus_backend_context& context, const segment_connection& connected)
    : m_context(context),
      m_sizes(connected.sizes),
      m_parameters(connected.parameters),
      m_layout(connected.sizes, static_cast<std::uint64_t>(context.size)),
      m_depth_bits(std::countr_zero(connected.sizes.depth)),
      m_segments(connected.segments) {
  for (const auto& segment : m_segments) m_bases.push_back(segment->data());
}

}  // namespace isthmus::shm
