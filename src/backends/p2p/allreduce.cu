// Allreduce and reduce_scatter by peer stores. Every thread talks only to the threads with its own index
// on the other devices, through words that carry their own arrival (wire.cuh): no barrier inside.

#include <algorithm>
#include <type_traits>

#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {
namespace {

template <typename Wire>
__host__ __device__ std::uint64_t vector_count(std::uint64_t count) {
  return (count + wire_vector<Wire>::elements - 1) / wire_vector<Wire>::elements;
}

// Everyone sends everything to everyone and adds.
template <typename T, typename Wire, int N>
__global__ void __launch_bounds__(512) one_shot(const kernel_arguments args) {
  wait_for_earlier_kernels();
  const inbox_slot slot(args);
  const std::uint32_t step = *slot.step();
  const auto* in = static_cast<const T*>(args.send_buf);
  auto* out = static_cast<T*>(args.recv_buf);
  const bool is_input_aligned = is_aligned(in), is_output_aligned = is_aligned(out);
  const std::uint64_t vectors = vector_count<Wire>(args.count);
  spin_limit limit(args);

  for (int k = threadIdx.x, stretch = 0; k < slot_vectors; k += blockDim.x, ++stretch) {
    // Neighbouring threads take neighbouring vectors; the slots share each stretch of blockDim vectors.
    const std::uint64_t index = (std::uint64_t(stretch) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= vectors) break;
    // A rank without a send buffer takes part with zeros: an inactive shard (tensor_parallel.h).
    const uint4 own = in ? load_elements<T, Wire>(in, index, args.count, is_input_aligned) : make_uint4(0, 0, 0, 0);
    send_to_all<N>(slot, step, args.rank, k, own);
    uint4 sum;
    if (!receive_and_add<Wire, N>(slot, step, k, own, limit, sum)) break;
    store_elements<T, Wire>(out, index, args.count, is_output_aligned, sum);
  }
  __syncthreads();  // every thread has read the step
  if (threadIdx.x == 0) *slot.step() = step + 1;
}

// What becomes of a sum: it stays here (reduce_scatter), it goes to the others through their inboxes, or
// straight into their buffers, where this device can write those. Straight saves reading and emptying the inbox
// once more, but needs a fence and a flag at the end.
enum class result_target { local, inbox, peer_buffers };

// Slice r of the message is added by rank r (first shot) and sent to all (second shot), step by step: while the
// results of one step travel, the inputs of the next are already on their way. U: vectors of a slice that a
// thread handles in one step.
template <typename T, typename Wire, int N, int U, result_target Target>
struct pipeline {
  const kernel_arguments& args;
  const inbox_slot& slot;
  spin_limit& limit;
  const T* in;
  T* out;
  std::uint64_t slice;  // elements from one slice to the next
  std::uint64_t count;  // elements of the whole message
  bool is_input_aligned, is_output_aligned;
  std::uint32_t first_step;

  // Vector of a slice that this thread handles as its u-th of a step, and its place in the inbox row.
  __device__ std::uint64_t index(std::uint32_t step, int u) const {
    return ((std::uint64_t(step) * U + u) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  }
  __device__ int inbox(int u) const { return u * blockDim.x + threadIdx.x; }
  // Elements of slice `owner`; the last slices of a message may be short or empty.
  __device__ std::uint64_t length(int owner) const {
    const std::uint64_t first = owner * slice;
    return first >= count
               ? 0
               : min(static_cast<unsigned long long>(slice), static_cast<unsigned long long>(count - first));
  }
  __device__ bool is_inside(int owner, std::uint64_t i) const {
    return i * wire_vector<Wire>::elements < length(owner);
  }
  __device__ uint4 load(int owner, std::uint64_t i) const {
    if (!in) return make_uint4(0, 0, 0, 0);
    return load_elements<T, Wire>(in + owner * slice, i, length(owner), is_input_aligned);
  }
  __device__ void store(int owner, std::uint64_t i, uint4 v) const {
    store_elements<T, Wire>(Target == result_target::local ? out : out + owner * slice, i, length(owner), is_output_aligned,
                            v);
  }

  __device__ void scatter(std::uint32_t step) const {
#pragma unroll
    for (int i = 1; i < max_rank_count<N>; ++i) {
      if (!N && i >= args.size) break;
      const int peer = rank_after<N>(args, i);
#pragma unroll
      for (int u = 0; u < U; ++u)
        if (is_inside(peer, index(step, u)))
          store_remote(slot.row(i, first_step + step, args.rank) + inbox(u), load(peer, index(step, u)));
    }
  }

  __device__ void reduce(std::uint32_t step) const {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const std::uint64_t i = index(step, u);
      if (!is_inside(args.rank, i)) break;
      uint4 sum;
      if (!receive_and_add<Wire, N>(slot, first_step + step, inbox(u), load(args.rank, i), limit, sum)) break;
      if (Target == result_target::inbox)
        send_to_all<N>(slot, first_step + step, ranks<N>(args) + args.rank, inbox(u), sum);
      if (Target == result_target::peer_buffers) store_to_peers(i, sum);
      store(args.rank, i, sum);
    }
  }

  // A peer's buffer may be written here: what it held has arrived, because the sum is complete.
  __device__ void store_to_peers(std::uint64_t index, uint4 sum) const {
#pragma unroll
    for (int i = 1; i < max_rank_count<N>; ++i) {
      if (!N && i >= args.size) break;
      auto* to = static_cast<T*>(args.peer_recv_bufs[i]) + args.rank * slice;
      store_elements<T, Wire>(to, index, length(args.rank), is_aligned(to), sum);
    }
  }

  // Returns once the places of `step`, which this thread has emptied, are empty in memory.
  __device__ void confirm_cleared(std::uint32_t step) const {
    while (and_of_cleared_words(step) != pending_word && !limit.is_exhausted()) {
    }
  }
  // All words of the emptied places and-ed together; the loads are in flight together.
  __device__ std::uint32_t and_of_cleared_words(std::uint32_t step) const {
    std::uint32_t words = pending_word;
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int i = 1; i < max_rank_count<N>; ++i) {
        if (!N && i >= args.size) break;
        const int peer = rank_after<N>(args, i);
        const uint4* from = slot.row(0, first_step + step, peer) + inbox(u);
        if (is_inside(args.rank, index(step, u))) words &= and_of_words(load_remote(from));
        if (Target == result_target::inbox && is_inside(peer, index(step, u)))
          words &= and_of_words(load_remote(from + ranks<N>(args) * slot_vectors));
      }
    }
    return words;
  }
  __device__ static std::uint32_t and_of_words(uint4 v) { return v.x & v.y & v.z & v.w; }

  __device__ void collect(std::uint32_t step) const {
#pragma unroll
    for (int i = 1; i < max_rank_count<N>; ++i) {
      if (!N && i >= args.size) break;
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

// Before a generation of the inbox is written again, its emptying must be in memory before anything leaves
// from which a writer concludes that it was emptied. Two ways of seeing to it, each for the wire on which it
// is the faster (128 MiB, 2 H200: float32 436 us by loads, 507 by fences; bfloat16 225 and 206):
//  - a fence in one of fence_period steps; blocks take turns, because it waits for all that is on the links;
//  - loads of the emptied places, confirm_delay steps later, when there is nothing to wait for any more.
// docs/p2p_protocol.md shows why these numbers are enough, also for the next kernel.
constexpr std::uint32_t fence_period = depth - 4;
constexpr std::uint32_t confirm_delay = 3;

// Tells the others that this block's results are in their buffers, and waits for theirs. A block that gave up
// says nothing, so that the others give up, too.
template <int N>
__device__ inline void exchange_completion(const inbox_slot& slot, spin_limit& limit) {
  const kernel_arguments& args = slot.args;
  const std::uint32_t number = *slot.zero_copy_count() + 1;
  const bool is_incomplete = __syncthreads_or(limit.has_expired) != 0;  // the whole block has stored
  const int i = static_cast<int>(threadIdx.x) + 1;
  if (is_incomplete || i >= ranks<N>(args)) return;
  store_flag(slot.done(i, args.rank), number);
  const std::uint32_t* peer_flag = slot.done(0, rank_after<N>(args, i));
  // A peer whose block has no share in the next call may have handed that over, too: one more is as good.
  while (static_cast<std::int32_t>(load_flag(peer_flag) - number) < 0 && !limit.is_exhausted()) {
  }
}

template <typename T, typename Wire, int N, int U, result_target Target>
__global__ void __launch_bounds__(512) two_shot(const kernel_arguments args) {
  wait_for_earlier_kernels();
  const inbox_slot slot(args);
  spin_limit limit(args);
  // Slices start on whole vectors, so that their alignment is that of the buffers.
  constexpr bool is_reduce_scatter = Target == result_target::local;
  const std::uint64_t slice =
      is_reduce_scatter ? args.count
               : (vector_count<Wire>(args.count) + ranks<N>(args) - 1) / ranks<N>(args) * wire_vector<Wire>::elements;
  const std::uint64_t count = is_reduce_scatter ? args.count * ranks<N>(args) : args.count;
  const bool are_slices_aligned = slice * sizeof(T) % 16 == 0;
  constexpr bool confirms_by_loads = sizeof(Wire) == 4;
  const pipeline<T, Wire, N, U, Target> p{args,
                                           slot,
                                           limit,
                                           static_cast<const T*>(args.send_buf),
                                           static_cast<T*>(args.recv_buf),
                                           slice,
                                           count,
                                           is_aligned(args.send_buf) && are_slices_aligned,
                                           is_aligned(args.recv_buf),
                                           *slot.step()};
  const std::uint64_t vectors_per_step = std::uint64_t(U) * gridDim.x * blockDim.x;
  const auto steps = static_cast<std::uint32_t>((vector_count<Wire>(slice) + vectors_per_step - 1) / vectors_per_step);

  p.scatter(0);
  for (std::uint32_t s = 0; s < steps; ++s) {
    if (!confirms_by_loads && steps > depth - 2 && s > 0 && (s + blockIdx.x) % fence_period == 0) __threadfence_system();
    if (s + 1 < steps) p.scatter(s + 1);
    if (confirms_by_loads && s >= confirm_delay && s - confirm_delay + depth - 2 < steps) p.confirm_cleared(s - confirm_delay);
    p.reduce(s);
    if (Target == result_target::inbox && s > 0) p.collect(s - 1);
  }
  if (Target == result_target::inbox) p.collect(steps - 1);
  if (Target == result_target::peer_buffers) exchange_completion<N>(slot, limit);
  __syncthreads();  // every thread has read the step
  if (threadIdx.x == 0) {
    *slot.step() = p.first_step + steps;
    if (Target == result_target::peer_buffers) *slot.zero_copy_count() += 1;
  }
}

// Launch shapes. A message should spread over as many multiprocessors as it has warps for (latency), and
// a long one should have as many bytes on the links as there are threads (bandwidth).
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
  // One vector a step keeps the pipeline short; two keep the links busy once it is long anyway.
  if (vectors <= std::uint64_t(4) * max_slots * 512)
    return gpu_launch(two_shot<T, Wire, N, 1, Target>, args, stream);
  return gpu_launch(two_shot<T, Wire, N, 2, Target>, args, stream);
}

template <typename T, typename Wire, int N>
gpu_error launch(reduction_algorithm algorithm, kernel_arguments args, gpu_stream stream) {
  const std::uint64_t vectors = vector_count<Wire>(args.count);
  const std::uint64_t slice = (vectors + args.size - 1) / args.size;
  if (algorithm == reduction_algorithm::two_shot) return launch_two_shot<T, Wire, N, result_target::inbox>(args, slice, stream);
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

// Calls `function` with the types and the number of ranks as template arguments.
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

gpu_error launch_allreduce(reduction_algorithm algorithm, element_type type, element_type wire, kernel_arguments args, gpu_stream stream) {
  return dispatch_types(type, wire, args.size, [&]<typename T, typename Wire, int N>() {
    return launch<T, Wire, N>(algorithm, args, stream);
  });
}

gpu_error launch_reduce_scatter(element_type type, element_type wire, kernel_arguments args, gpu_stream stream) {
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
