// The kernel of reductions of all datatypes and operations: each rank sends its contributions to the ranks that need
// the result, as packets, and these ranks combine them. Block l handles lane l of the channels of all peers.
// Contributions are combined in rank order, in the accumulation type of the datatype, and rounded once.
// All ranks that combine an element get the same bits.

#include <algorithm>

#include "backends/p2p/channel.cuh"
#include "device/elements.cuh"

namespace isthmus::p2p {
namespace {

namespace element = device_elements::element;
namespace operation = device_elements::operation;

// The elements of a packet.
template <typename Element>
struct packet_elements {
  static constexpr int lanes = 8 / sizeof(typename Element::bits);
  union {
    word_group<2> group;
    typename Element::bits elements[lanes];
  };
  __device__ explicit packet_elements(word_group<2> content) : group(content) {}
};

template <typename Element>
struct packet_total {
  using value = typename Element::value;
  static constexpr int lanes = packet_elements<Element>::lanes;
  value totals[lanes];

  template <typename Function>
  __device__ void update(Function function) {
#pragma unroll
    for (int i = 0; i < lanes; ++i) totals[i] = function(totals[i], i);
  }
  __device__ explicit packet_total(word_group<2> first) {
    const packet_elements<Element> content(first);
    update([&](value, int i) { return Element::load(content.elements[i]); });
  }
  template <typename Operation>
  __device__ void combine(const value* next) {
    update([&](value total, int i) { return Operation::combine(total, next[i]); });
  }
  __device__ void add(isthmus_reduction_op op, word_group<2> group) {
    const packet_elements<Element> content(group);
    value next[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) next[i] = Element::load(content.elements[i]);
    switch (op) {
      case ISTHMUS_PROD: return combine<operation::prod>(next);
      case ISTHMUS_MIN: return combine<operation::min>(next);
      case ISTHMUS_MAX: return combine<operation::max>(next);
      default: return combine<operation::sum>(next);
    }
  }
  __device__ word_group<2> result(isthmus_reduction_op op, int size) {
    if (op == ISTHMUS_AVG) update([size](value total, int) { return operation::avg::finish(total, size); });
    packet_elements<Element> content(word_group<2>{});
#pragma unroll
    for (int i = 0; i < lanes; ++i) content.elements[i] = Element::store(totals[i]);
    return content.group;
  }
};

// The number of ranks is at most N, so that loops over ranks are unrolled and values stay in registers.
template <typename Element, int N>
struct combination {
  const channel_arguments& args;
  int lane;
  spin_limit& limit;

  __device__ bool is_peer(int rank) const { return rank < args.size && rank != args.rank; }
  __device__ lane_view view_of(int rank) const {
    return {args, rank > args.rank ? rank - args.rank : rank - args.rank + args.size, lane};
  }

  __device__ void send(const lane_counters (&counters)[N], std::uint32_t step) const {
#pragma unroll
    for (int rank = 0; rank < N; ++rank) {
      if (!is_peer(rank)) continue;
      const lane_view view = view_of(rank);
      const packet_stream out(view, args.out[view.peer], counters[rank].sent);
      if (step < out.steps) out.send(step, counters[rank].acknowledged, limit);
    }
  }

  // Receives the packet `i` of a step from all ranks, and adds them and this rank's own group in rank order. Returns
  // false if a wait expired. There is no result then, so a call changes no buffer unless all ranks join it.
  __device__ bool receive(const lane_counters (&counters)[N], std::uint32_t step, int i, word_group<2> own,
                          word_group<2>& result) const {
    uint4 packets[N];  // all loads are in flight at the same time
#pragma unroll
    for (int rank = 0; rank < N; ++rank)
      if (is_peer(rank)) {
        const lane_view view = view_of(rank);
        packets[rank] = packet_stream(view, args.in[0], counters[rank].received).begin_receive(step, i);
      }
#pragma unroll
    for (int rank = 0; rank < N; ++rank)
      if (is_peer(rank)) {
        const lane_view view = view_of(rank);
        const packet_stream in(view, args.in[0], counters[rank].received);
        if (!in.complete_receive(step, i, packets[rank], limit)) return false;
      }
    const auto contribution = [&](int rank) {
      return rank == args.rank ? own : word_group<2>{{packets[rank].x, packets[rank].z}};
    };
    packet_total<Element> total(contribution(0));
#pragma unroll
    for (int rank = 1; rank < N; ++rank)
      if (rank < args.size) total.add(args.op, contribution(rank));
    result = total.result(args.op, args.size);
    return true;
  }

  __device__ void receive_step(const lane_counters (&counters)[N], const packet_stream& in,
                               std::uint32_t step) const {
    const thread_groups<2> own = in.groups(step);
#pragma unroll 1
    for (int i = 0; i < own.count; ++i) {
      const word_group<2> contribution = load_group<2>(args.out[0].buffer, own.index(i), own.content.bytes);
      word_group<2> result;
      if (!receive(counters, step, i, contribution, result)) return;
      own.store(i, result);
    }
  }
};

template <typename Element, int N>
__global__ void __launch_bounds__(lane_threads)
    combine(ISTHMUS_P2P_KERNEL_ARGUMENT const channel_arguments args) {
  wait_for_earlier_kernels();
  spin_limit limit(args);
  const combination<Element, N> all{args, static_cast<int>(blockIdx.x), limit};
  lane_counters counters[N];
  std::uint32_t steps = 0;
#pragma unroll
  for (int rank = 0; rank < N; ++rank)
    if (all.is_peer(rank)) {
      const lane_view view = all.view_of(rank);
      counters[rank] = view.load_counters(packet_ring);
      const std::uint32_t out_steps = steps_of(args.out[view.peer], all.lane, packet_batch);
      steps = steps < out_steps ? out_steps : steps;
    }
  // Thread r updates the counters of rank r.
  const int own_peer = static_cast<int>(threadIdx.x);
  const bool updates_peer = all.is_peer(own_peer);
  const lane_view own_view = all.view_of(updates_peer ? own_peer : args.rank + 1);
  const lane_counters own_counters = updates_peer ? own_view.load_counters(packet_ring) : lane_counters{};

  const packet_stream in(own_view, args.in[0], 0);
  steps = steps < in.steps ? in.steps : steps;
  for (std::uint32_t step = 0; step < steps; ++step) {
    all.send(counters, step);
    if (step < in.steps) all.receive_step(counters, in, step);
    if (__syncthreads_or(limit.has_expired) != 0) return;
    if (step < in.steps && updates_peer)
      store_word(&own_view.peer_counters(packet_ring)->acknowledged, own_counters.received + step + 1);
  }
  start_later_kernels();
  if (!updates_peer) return;
  own_view.own_counters(packet_ring)->sent =
      own_counters.sent + steps_of(args.out[own_view.peer], all.lane, packet_batch);
  own_view.own_counters(packet_ring)->received = own_counters.received + in.steps;
}

// Calls `function` with the element type and the bound of the number of ranks as template arguments.
template <typename Element, typename Function>
gpu_error dispatch_size(int size, Function function) {
  if (size <= 2) return function.template operator()<Element, 2>();
  return size <= combine_max_ranks ? function.template operator()<Element, combine_max_ranks>()
                                   : gpu_invalid_value;
}
template <typename Function>
gpu_error dispatch(isthmus_datatype datatype, int size, Function function) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME: return dispatch_size<element::name>(size, function);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
  return gpu_invalid_value;
}

}  // namespace

gpu_error launch_combine(isthmus_datatype datatype, channel_arguments args, gpu_stream stream) {
  args.slots = args.in[0].shape.lanes;
  args.threads = std::max<int>(args.in[0].shape.threads, combine_max_ranks);
  for (int i = 1; i < args.size; ++i) {
    args.slots = std::max<int>(args.slots, args.out[i].shape.lanes);
    args.threads = std::max<int>(args.threads, args.out[i].shape.threads);
  }
  return dispatch(datatype, args.size,
                  [&]<typename Element, int N>() { return gpu_launch(combine<Element, N>, args, stream); });
}

gpu_error load_combine_kernels(int size) {
  if (size > combine_max_ranks) return gpu_success;
  for (int datatype = 0; datatype < ISTHMUS_DATATYPE_COUNT; ++datatype) {
    const gpu_error code =
        dispatch(static_cast<isthmus_datatype>(datatype), size,
                 [&]<typename Element, int N>() { return gpu_load_kernel(combine<Element, N>); });
    if (code != gpu_success) return code;
  }
  return gpu_success;
}

}  // namespace isthmus::p2p
