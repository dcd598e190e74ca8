#include "backends/p2p/channel_calls.hpp"

#include <algorithm>

#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::p2p {
namespace {

constexpr std::uint64_t only_packets = ~std::uint64_t{0};

// Index of the arrays of the arguments for a rank.
int distance_to(const channel_arguments& args, int rank) { return (rank - args.rank + args.size) % args.size; }

message make_message(const lane_limits& limits, const void* buffer, const block& part) {
  if (part.bytes == 0) return {};
  return {static_cast<std::byte*>(const_cast<void*>(buffer)) + part.offset, part.bytes,
          shape_of(part.bytes, limits)};
}

bool has_no_data(const channel_arguments& args) {
  const auto has_bytes = [](const message& each) { return each.bytes != 0; };
  return std::none_of(args.out, args.out + args.size, has_bytes) &&
         std::none_of(args.in, args.in + args.size, has_bytes);
}

// The blocks that a collective without reduction moves.
channel_arguments movement_of(const channel_rank& self, const isthmus_operation& operation) {
  channel_arguments args = self.arguments;
  const block_map blocks(operation, args.rank, args.size);
  for (int rank = 0; rank < args.size; ++rank) {
    const int distance = distance_to(args, rank);
    args.out[distance] = make_message(self.limits, operation.send_buf, blocks.outgoing_block(rank));
    args.in[distance] = make_message(self.limits, operation.recv_buf, blocks.incoming_block(rank));
  }
  if (args.out[0].buffer == args.in[0].buffer) args.out[0] = args.in[0] = {};  // in place
  return args;
}

// A message of one byte from each rank to each other rank.
channel_arguments barrier_of(const channel_rank& self) {
  channel_arguments args = self.arguments;
  auto* const header = reinterpret_cast<scratch_header*>(args.scratch[0]);
  for (int distance = 1; distance < args.size; ++distance) {
    args.out[distance] = make_message(self.limits, header->barrier_out, {0, 1});
    args.in[distance] =
        make_message(self.limits, header->barrier_in, {static_cast<std::uint64_t>(distance), 1});
  }
  return args;
}

// This rank's contributions to the result of each rank, and its own result.
channel_arguments reduction_of(const channel_rank& self, const isthmus_operation& operation) {
  channel_arguments args = self.arguments;
  args.op = operation.op;
  const lane_limits limits{self.limits.lanes, only_packets};
  const block_map blocks(operation, args.rank, args.size);
  for (int rank = 0; rank < args.size; ++rank)
    args.out[distance_to(args, rank)] = make_message(limits, operation.send_buf, blocks.outgoing_block(rank));
  args.in[0] = make_message(limits, operation.recv_buf, blocks.incoming_block(args.rank));
  return args;
}

gpu_error launch_two_shots(const channel_rank& self, const isthmus_operation& operation, gpu_stream stream) {
  // Slices start at multiples of 16 bytes, so they have the same alignment as the buffers.
  const auto ranks = static_cast<std::uint64_t>(self.arguments.size);
  const std::uint64_t width = bytes_of(operation.datatype), unit = 16 / width;
  const std::uint64_t slice = ((operation.count + unit - 1) / unit + ranks - 1) / ranks * unit;
  std::array<std::uint64_t, max_ranks> counts{}, displs{};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    displs[rank] = std::min(rank * slice, operation.count);
    counts[rank] = std::min(slice, operation.count - displs[rank]);
  }
  const auto own = static_cast<std::size_t>(self.arguments.rank);
  void* const own_result = static_cast<std::byte*>(operation.recv_buf) + displs[own] * width;

  isthmus_operation scatter = operation;
  scatter.collective = ISTHMUS_REDUCE_SCATTERV;
  scatter.send_counts = counts.data();
  scatter.send_displs = displs.data();
  scatter.count = counts[own];
  scatter.recv_buf = own_result;
  const gpu_error code = launch_combine(operation.datatype, reduction_of(self, scatter), stream);
  if (code != gpu_success) return code;

  isthmus_operation gather = operation;
  gather.collective = ISTHMUS_ALLGATHERV;
  gather.recv_counts = counts.data();
  gather.recv_displs = displs.data();
  gather.count = counts[own];
  gather.send_buf = own_result;
  return launch_exchange(movement_of(self, gather), stream);
}

}  // namespace

gpu_error launch_channel_call(const channel_rank& self, const isthmus_operation& operation, bool is_two_shot,
                              gpu_stream stream) {
  const collective_row& row = row_of(operation.collective);
  if (operation.count == 0 && has_equal_count(row)) return gpu_success;
  if (operation.collective == ISTHMUS_ALLREDUCE && is_two_shot)
    return launch_two_shots(self, operation, stream);
  const channel_arguments args = row.is_reduction                          ? reduction_of(self, operation)
                                 : operation.collective == ISTHMUS_BARRIER ? barrier_of(self)
                                                                           : movement_of(self, operation);
  if (has_no_data(args)) return gpu_success;
  return row.is_reduction ? launch_combine(operation.datatype, args, stream) : launch_exchange(args, stream);
}

void message_rounds::add(const isthmus_operation& operation) {
  const block whole{0, operation.count * bytes_of(operation.datatype)};
  const bool sends = operation.collective == ISTHMUS_SEND;
  const std::size_t round = m_counts[sends ? 0 : 1][static_cast<std::size_t>(operation.root)]++;
  if (whole.bytes == 0) return;  // it takes part in the count only
  while (m_rounds.size() <= round) m_rounds.push_back(m_self.arguments);
  channel_arguments& args = m_rounds[round];
  const int distance = distance_to(args, operation.root);
  if (sends)
    args.out[distance] = make_message(m_self.limits, operation.send_buf, whole);
  else
    args.in[distance] = make_message(m_self.limits, operation.recv_buf, whole);
}

bool message_rounds::are_self_messages_matched() const {
  return std::all_of(m_rounds.begin(), m_rounds.end(),
                     [](const channel_arguments& args) { return args.out[0].bytes == args.in[0].bytes; });
}

gpu_error message_rounds::launch(gpu_stream stream) const {
  for (const channel_arguments& args : m_rounds) {
    if (has_no_data(args)) continue;
    if (const gpu_error code = launch_exchange(args, stream); code != gpu_success) return code;
  }
  return gpu_success;
}

}  // namespace isthmus::p2p
