// Kernels for allreduce and reduce_scatter with peer stores. Every thread communicates only with the threads
// that have the same index on the other devices. Words signal their own arrival (wire.cuh), so the kernels
// need no barrier.

#include <algorithm>
#include <type_traits>

#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {
namespace {

template <typename Wire>
__host__ __device__ std::uint64_t vector_count(std::uint64_t count) {
  return (count + wire_vector<Wire>::elements - 1) / wire_vector<Wire>::elements;
}

// One shot: every rank sends its whole input to all ranks, and each rank computes the complete sum.
template <typename T, typename Wire, int N>
__global__ void __launch_bounds__(512) one_shot(const kernel_arguments args) {
  wait_for_earlier_kernels();
  const inbox_slot slot(args);
  const auto* in = static_cast<const T*>(args.send_buf);
  auto* out = static_cast<T*>(args.recv_buf);
  const bool is_input_aligned = is_aligned(in), is_output_aligned = is_aligned(out);
  const std::uint64_t vectors = vector_count<Wire>(args.count);
  // Adjacent threads load adjacent vectors; consecutive runs of blockDim vectors are distributed over the slots.
  const auto index_in_run = [](int run) {
    return (std::uint64_t(run) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  };
  // A rank without a send buffer contributes zeros: an inactive shard (tensor_parallel.h).
  const auto load = [&](std::uint64_t index) {
    return in != nullptr && index < vectors ? load_elements<T, Wire>(in, index, args.count, is_input_aligned)
                                            : make_uint4(0, 0, 0, 0);
  };
  uint4 own = load(index_in_run(0));  // in flight at the same time as the step
  const std::uint32_t step = *slot.step();
  if (has_failed(step)) return;
  spin_limit limit(args);

  for (int k = threadIdx.x, run = 0; k < slot_vectors && index_in_run(run) < vectors; k += blockDim.x, ++run) {
    const std::uint64_t index = index_in_run(run);
    if (run != 0) own = load(index);
    send_to_all<N>(slot, step, args.rank, k, own);
    uint4 sum;
    if (!receive_and_add<Wire, N>(slot, step, k, own, limit, sum)) break;
    store_elements<T, Wire>(out, index, args.count, is_output_aligned, sum);
  }
  const bool has_expired = __syncthreads_or(limit.has_expired) != 0;
  start_later_kernels();
  if (threadIdx.x == 0) slot.set_step(step + 1, has_expired);
}

// Destination of a sum:
//   local: only on this rank (reduce_scatter)
//   inbox: on the peers, through their inboxes
//   peer_buffers: directly in the peers' receive buffers, if this device can write to them. This avoids one
//   pass over the inbox, but needs a fence and a flag at the end.
enum class result_target { local, inbox, peer_buffers };

// Two shots: rank r reduces slice r of the message (first shot) and sends the sum to all ranks (second shot).
// The steps are pipelined: the inputs of the next step are sent before the results of the current
// one are complete.
// U: number of vectors of a slice that a thread handles in one step.
template <typename T, typename Wire, int N, int U, result_target Target>
struct pipeline {
  const kernel_arguments& args;
  const inbox_slot& slot;
  spin_limit& limit;
  const T* in;
  T* out;
  std::uint64_t slice;  // distance between two slices in elements
  std::uint64_t count;  // elements of the whole message
  bool is_input_aligned, is_output_aligned;
  std::uint32_t first_step = 0;

  // Index within a slice of the u-th vector that this thread handles in a step. inbox(u): its index in
  // the inbox row.
  __device__ std::uint64_t index(std::uint32_t step, int u) const {
    return ((std::uint64_t(step) * U + u) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  }
  __device__ int inbox(int u) const { return u * blockDim.x + threadIdx.x; }
  // Returns the number of elements of slice `owner`. The last slices of a message can be short or empty.
  __device__ std::uint64_t length(int owner) const {
    const std::uint64_t first = owner * slice;
    if (first >= count) return 0;
    return slice < count - first ? slice : count - first;
  }
  __device__ bool is_inside(int owner, std::uint64_t i) const {
    return i * wire_vector<Wire>::elements < length(owner);
  }
  __device__ uint4 load(int owner, std::uint64_t i) const {
    if (!in) return make_uint4(0, 0, 0, 0);
    return load_elements<T, Wire>(in + owner * slice, i, length(owner), is_input_aligned);
  }
  __device__ void store(int owner, std::uint64_t i, uint4 v) const {
    if (Target == result_target::inbox && out == nullptr) return;  // not the root of a reduce
    store_elements<T, Wire>(Target == result_target::local ? out : out + owner * slice, i, length(owner),
                            is_output_aligned, v);
  }

  // The inputs of one step for the peers `first`, `first + 1`, ...: for all peers if they fit into the registers, otherwise
  // for one. All loads are in flight at the same time.
  static constexpr int input_peers = N == 2 || N == 4 ? N - 1 : 1;
  struct step_inputs {
    uint4 vectors[input_peers][U];
  };
  __device__ step_inputs load_inputs(std::uint32_t step, int first) const {
    step_inputs inputs;
#pragma unroll
    for (int i = 0; i < input_peers && first + i < ranks<N>(args); ++i) {
      const int peer = rank_after<N>(args, first + i);
#pragma unroll
      for (int u = 0; u < U; ++u)
        if (is_inside(peer, index(step, u))) inputs.vectors[i][u] = load(peer, index(step, u));
    }
    return inputs;
  }
  __device__ void send_inputs(std::uint32_t step, int first, const step_inputs& inputs) const {
#pragma unroll
    for (int i = 0; i < input_peers && first + i < ranks<N>(args); ++i) {
      const int peer = rank_after<N>(args, first + i);
#pragma unroll
      for (int u = 0; u < U; ++u)
        if (is_inside(peer, index(step, u)))
          store_remote(slot.row(first + i, first_step + step, args.rank) + inbox(u), inputs.vectors[i][u]);
    }
  }
  // `inputs`: the result of load_inputs(step, 1).
  __device__ void scatter(std::uint32_t step, const step_inputs& inputs) const {
    send_inputs(step, 1, inputs);
#pragma unroll rank_unroll < N>
    for (int i = 1 + input_peers; i < ranks<N>(args); ++i) send_inputs(step, i, load_inputs(step, i));
  }

  __device__ void reduce(std::uint32_t step) const {
    uint4 own[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (is_inside(args.rank, index(step, u))) own[u] = load(args.rank, index(step, u));
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const std::uint64_t i = index(step, u);
      if (!is_inside(args.rank, i)) break;
      uint4 sum;
      if (!receive_and_add<Wire, N>(slot, first_step + step, inbox(u), own[u], limit, sum)) break;
      if (Target == result_target::inbox)
        send_to_all<N>(slot, first_step + step, ranks<N>(args) + args.rank, inbox(u), sum);
      if (Target == result_target::peer_buffers) store_to_peers(i, sum);
      store(args.rank, i, sum);
    }
  }

  // Writing to a peer's buffer is safe here: the sum is complete, so the peer's input has already been read.
  __device__ void store_to_peers(std::uint64_t index, uint4 sum) const {
#pragma unroll rank_unroll < N>
    for (int i = 1; i < ranks<N>(args); ++i) {
      auto* destination = static_cast<T*>(args.peer_recv_bufs[i]) + args.rank * slice;
      store_elements<T, Wire>(destination, index, length(args.rank), is_aligned(destination), sum);
    }
  }

  // Waits until this thread's clearing stores to the words of `step` have reached memory.
  __device__ void confirm_cleared(std::uint32_t step) const {
    while (and_of_cleared_words(step) != pending_word && !limit.is_exhausted()) {
    }
  }
  // Returns the bitwise AND of all cleared words. The loads are independent, so they are in flight at
  // the same time.
  __device__ std::uint32_t and_of_cleared_words(std::uint32_t step) const {
    std::uint32_t words = pending_word;
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll rank_unroll < N>
      for (int i = 1; i < ranks<N>(args); ++i) {
        const int peer = rank_after<N>(args, i);
        const uint4* source = slot.row(0, first_step + step, peer) + inbox(u);
        if (is_inside(args.rank, index(step, u))) words &= and_of_words(load_remote(source));
        if (Target == result_target::inbox && is_inside(peer, index(step, u)))
          words &= and_of_words(load_remote(source + ranks<N>(args) * slot_vectors));
      }
    }
    return words;
  }
  __device__ static std::uint32_t and_of_words(uint4 v) { return v.x & v.y & v.z & v.w; }

  __device__ void collect(std::uint32_t step) const {
#pragma unroll rank_unroll < N>
    for (int i = 1; i < ranks<N>(args); ++i) {
      const int peer = rank_after<N>(args, i);
      uint4* row = slot.row(0, first_step + step, ranks<N>(args) + peer);
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const std::uint64_t k = index(step, u);
        if (!is_inside(peer, k)) break;
        uint4 v = load_remote(row + inbox(u));
        while (is_pending(v) && !limit.is_exhausted()) v = load_remote(row + inbox(u));
        if (is_pending(v)) break;
        store_remote(row + inbox(u), pending_vector());
        store(peer, k, v);
      }
    }
  }
};

// Before a generation of the inbox is reused, the clearing stores must reach memory. They must precede any
// store from which a writer infers that the generation is free. Two methods guarantee this. Each wire uses the
// faster one (128 MiB, 2 H200: float32 436 us with loads, 507 us with fences; bfloat16 225 us and 206 us):
//  - fence_between_steps.
//  - loads of the cleared words confirm_delay steps later, when the loads no longer have to wait.
// docs/internals/p2p.md shows why these constants are sufficient, including for the next kernel.
constexpr std::uint32_t confirm_delay = 3;

// Notifies the peers that this block's results are in their buffers, and waits for the same notification from
// each peer. A block whose wait expired sends no notification, so its peers time out as well.
template <int N>
__device__ inline void exchange_completion(const inbox_slot& slot, spin_limit& limit) {
  const kernel_arguments& args = slot.args;
  const std::uint32_t number = *slot.zero_copy_count() + 1;
  const bool is_incomplete = __syncthreads_or(limit.has_expired) != 0;  // all threads of the block have stored
  const int i = static_cast<int>(threadIdx.x) + 1;
  if (is_incomplete || i >= ranks<N>(args)) return;
  store_flag(slot.done(i, args.rank), number);
  const std::uint32_t* peer_flag = slot.done(0, rank_after<N>(args, i));
  // A peer without data in the next call may already have completed that call, so larger numbers
  // also mean complete.
  while (static_cast<std::int32_t>(load_flag(peer_flag) - number) < 0 && !limit.is_exhausted()) {
  }
}

template <typename T, typename Wire, int N, int U, result_target Target>
__global__ void __launch_bounds__(512) two_shot(const kernel_arguments args) {
  wait_for_earlier_kernels();
  const inbox_slot slot(args);
  spin_limit limit(args);
  // Slices start at vector boundaries, so they have the same alignment as the buffers.
  constexpr bool is_reduce_scatter = Target == result_target::local;
  const std::uint64_t slice = is_reduce_scatter ? args.count
                                                : (vector_count<Wire>(args.count) + ranks<N>(args) - 1) /
                                                      ranks<N>(args) * wire_vector<Wire>::elements;
  const std::uint64_t count = is_reduce_scatter ? args.count * ranks<N>(args) : args.count;
  const bool are_slices_aligned = slice * sizeof(T) % 16 == 0;
  constexpr bool confirms_by_loads = sizeof(Wire) == 4;
  pipeline<T, Wire, N, U, Target> p{args,
                                    slot,
                                    limit,
                                    static_cast<const T*>(args.send_buf),
                                    static_cast<T*>(args.recv_buf),
                                    slice,
                                    count,
                                    is_aligned(args.send_buf) && are_slices_aligned,
                                    is_aligned(args.recv_buf)};
  const std::uint64_t vectors_per_step = std::uint64_t(U) * gridDim.x * blockDim.x;
  const auto steps =
      static_cast<std::uint32_t>((vector_count<Wire>(slice) + vectors_per_step - 1) / vectors_per_step);

  auto inputs = p.load_inputs(0, 1);  // in flight at the same time as the step
  p.first_step = *slot.step();
  if (has_failed(p.first_step)) return;
  p.scatter(0, inputs);
  if (steps > 1) inputs = p.load_inputs(1, 1);
  // A thread whose wait has expired sends nothing more: a rank that is late may still read the earlier steps.
  for (std::uint32_t s = 0; s < steps && !limit.has_expired; ++s) {
    if (!confirms_by_loads) fence_between_steps(s, steps);
    if (s + 1 < steps) p.scatter(s + 1, inputs);
    if (s + 2 < steps) inputs = p.load_inputs(s + 2, 1);  // arrive while this step is reduced
    if (confirms_by_loads && s >= confirm_delay && s - confirm_delay + depth - 2 < steps)
      p.confirm_cleared(s - confirm_delay);
    p.reduce(s);
    if (Target == result_target::inbox && s > 0) p.collect(s - 1);
  }
  if (Target == result_target::inbox && !limit.has_expired) p.collect(steps - 1);
  if (Target == result_target::peer_buffers) exchange_completion<N>(slot, limit);
  const bool has_expired = __syncthreads_or(limit.has_expired) != 0;
  start_later_kernels();
  if (threadIdx.x == 0) {
    slot.set_step(p.first_step + steps, has_expired);
    if (Target == result_target::peer_buffers) *slot.zero_copy_count() += 1;
  }
}

// Launch shapes. For latency, a short message is spread over as many multiprocessors as it has warps. For
// bandwidth, a long message uses large blocks, because every thread keeps bytes in flight on the links.
struct launch_shape {
  int slots, threads;
};
launch_shape shape_for(std::uint64_t vectors) {
  const int threads = vectors <= 32 * 128 ? 128 : vectors <= 64 * 256 ? 256 : 512;
  const auto slots = (vectors + threads - 1) / threads;
  return {static_cast<int>(std::clamp<std::uint64_t>(slots, 1, max_slots)), threads};
}
void set_shape(kernel_arguments& args, std::uint64_t vectors) {
  const launch_shape shape = shape_for(vectors);
  args.slots = shape.slots;
  args.threads = shape.threads;
}

template <typename T, typename Wire, int N, result_target Target>
gpu_error launch_two_shot(kernel_arguments args, std::uint64_t vectors, gpu_stream stream) {
  set_shape(args, vectors);
  // One vector per step keeps the pipeline short. For long messages, two per step keep the links busy.
  if (vectors <= std::uint64_t(4) * max_slots * 512)
    return gpu_launch(two_shot<T, Wire, N, 1, Target>, args, stream);
  return gpu_launch(two_shot<T, Wire, N, 2, Target>, args, stream);
}

template <typename T, typename Wire, int N>
gpu_error launch(reduction_algorithm algorithm, kernel_arguments args, gpu_stream stream) {
  const std::uint64_t vectors = vector_count<Wire>(args.count);
  const std::uint64_t slice = (vectors + args.size - 1) / args.size;
  if (algorithm == reduction_algorithm::two_shot)
    return launch_two_shot<T, Wire, N, result_target::inbox>(args, slice, stream);
  if constexpr (std::is_same_v<T, Wire>)
    if (algorithm == reduction_algorithm::two_shot_zero_copy)
      return launch_two_shot<T, Wire, N, result_target::peer_buffers>(args, slice, stream);
  if (algorithm != reduction_algorithm::one_shot) return gpu_invalid_value;
  set_shape(args, vectors);
  return gpu_launch(one_shot<T, Wire, N>, args, stream);
}

template <typename T, typename Wire, int N>
gpu_error load_kernels() {
  gpu_error code = gpu_load_kernel(one_shot<T, Wire, N>);
  const auto load_two_shots = [&]<result_target Target>() {
    if (code == gpu_success) code = gpu_load_kernel(two_shot<T, Wire, N, 1, Target>);
    if (code == gpu_success) code = gpu_load_kernel(two_shot<T, Wire, N, 2, Target>);
  };
  load_two_shots.template operator()<result_target::inbox>();
  load_two_shots.template operator()<result_target::local>();
  if constexpr (std::is_same_v<T, Wire>) load_two_shots.template operator()<result_target::peer_buffers>();
  return code;
}

// Calls `function` with the types and the number of ranks as template arguments (0: any number of ranks).
template <typename T, typename Wire, typename Function>
gpu_error dispatch_ranks(int size, Function function) {
  switch (size) {
    case 2: return function.template operator()<T, Wire, 2>();
    case 4: return function.template operator()<T, Wire, 4>();
    case 8: return function.template operator()<T, Wire, 8>();
    default: return function.template operator()<T, Wire, 0>();
  }
}
template <typename Function>
gpu_error dispatch_types(element_type type, element_type wire, int size, Function function) {
  switch (type) {
    case element_type::float32:
      return wire == element_type::bfloat16 ? dispatch_ranks<float, bfloat16>(size, function)
                                            : dispatch_ranks<float, float>(size, function);
    case element_type::float16: return dispatch_ranks<float16, float16>(size, function);
    case element_type::bfloat16: return dispatch_ranks<bfloat16, bfloat16>(size, function);
  }
  return gpu_invalid_value;
}

}  // namespace

gpu_error launch_allreduce(reduction_algorithm algorithm, element_type type, element_type wire,
                           kernel_arguments args, gpu_stream stream) {
  return dispatch_types(type, wire, args.size, [&]<typename T, typename Wire, int N>() {
    return launch<T, Wire, N>(algorithm, args, stream);
  });
}

gpu_error launch_reduce_scatter(element_type type, element_type wire, kernel_arguments args,
                                gpu_stream stream) {
  return dispatch_types(type, wire, args.size, [&]<typename T, typename Wire, int N>() {
    return launch_two_shot<T, Wire, N, result_target::local>(args, vector_count<Wire>(args.count), stream);
  });
}

gpu_error load_reduction_kernels(int size) {
  for (const element_type type : {element_type::float32, element_type::float16, element_type::bfloat16})
    for (const element_type wire : {type, element_type::bfloat16}) {
      const gpu_error code = dispatch_types(
          type, wire, size, [&]<typename T, typename Wire, int N>() { return load_kernels<T, Wire, N>(); });
      if (code != gpu_success) return code;
    }
  return gpu_success;
}

}  // namespace isthmus::p2p
