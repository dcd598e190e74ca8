// Kernels for allreduce, residual addition and RMSNorm (isthmus/allreduce_rmsnorm.h). The sums use the inboxes with the
// protocol of allreduce.cu. A thread block handles whole rows: a thread keeps its vectors of the row in registers until the
// block has added the squares.

#include <algorithm>

#include "backends/p2p/bytes.cuh"
#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {
namespace {

// Vectors of a row that fit into a slot. A longer row uses several slots. It is also the number of accumulators for the
// squares, so the order of their additions does not depend on the launch.
constexpr int row_threads = slot_vectors;
constexpr int warp_threads = 32;
constexpr float largest_float8 = 448.0f;

// The larger one, or a NaN.
__device__ inline float larger(float a, float b) { return b > a || b != b ? b : a; }

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int mask = warp_threads / 2; mask > 0; mask /= 2) value += shuffle(value, mask);
  return value;
}
__device__ inline float warp_maximum(float value) {
#pragma unroll
  for (int mask = warp_threads / 2; mask > 0; mask /= 2) value = larger(value, shuffle(value, mask));
  return value;
}

// Divides a vector of a row by `scale` and converts it to float8_e4m3. It is not inlined: each kernel would contain
// it up to eight times.
template <typename T>
__device__ __noinline__ word_group<wire_vector<T>::elements / 4> quantize_vector(uint4 vector, float scale) {
  const wire_vector<T> v(vector);
  word_group<wire_vector<T>::elements / 4> group{};
#pragma unroll
  for (int i = 0; i < wire_vector<T>::elements; ++i)
    group.words[i / 4] |= std::uint32_t(device_formats::float8_e4m3::store(to_float(v.lanes[i]) / scale))
                          << (8 * (i % 4));
  return group;
}

// The rows of one thread block. A thread handles the vectors threadIdx.x, threadIdx.x + row_threads, ... of a row, at most U
// of them. Vector u is sent through slot u of the block.
template <typename T, int N, int U>
struct row_block {
  static constexpr int elements = wire_vector<T>::elements;

  const rmsnorm_arguments& args;
  spin_limit& limit;
  bool are_rows_aligned;
  std::uint32_t first_steps[U];
  uint4 first_weight;
  int parity = 0;  // of the row: consecutive rows use different words of the block's memory

  __device__ row_block(const rmsnorm_arguments& args, spin_limit& limit)
      : args(args), limit(limit), are_rows_aligned(std::uint64_t(args.hidden) * sizeof(T) % 16 == 0) {
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (u < slots()) first_steps[u] = *slot(u).step();
    if (U == 1 && has(0)) first_weight = load(args.weight, 0, 0);
  }
  // Returns true, and marks all slots of the block as failed, if one of them has failed: a row needs all of them.
  __device__ bool has_failed_before() const {
    bool result = false;
#pragma unroll
    for (int u = 0; u < U; ++u) result |= u < slots() && has_failed(first_steps[u]);
    if (result) set_steps(0, true);
    return result;
  }
  // All threads of the block call it.
  __device__ void end(std::uint32_t steps) const {
    const bool has_expired = __syncthreads_or(limit.has_expired) != 0;
    start_later_kernels();
    set_steps(steps, has_expired);
  }

  __device__ static int index(int u) { return u * row_threads + static_cast<int>(threadIdx.x); }
  __device__ bool has(int u) const { return static_cast<std::uint32_t>(index(u)) * elements < args.hidden; }
  __device__ int slots() const {
    return U == 1 ? 1 : static_cast<int>((args.hidden + elements * row_threads - 1) / (elements * row_threads));
  }
  __device__ inbox_slot slot(int u) const { return {args, blockIdx.x * slots() + u}; }

  __device__ uint4 load(const void* matrix, std::uint64_t row, int u) const {
    return load_elements<T, T>(static_cast<const T*>(matrix) + row * args.hidden, index(u), args.hidden,
                               are_rows_aligned && is_aligned(matrix));
  }
  __device__ void store(void* matrix, std::uint64_t row, int u, uint4 v) const {
    store_elements<T, T>(static_cast<T*>(matrix) + row * args.hidden, index(u), args.hidden,
                         are_rows_aligned && is_aligned(matrix), v);
  }

  // Completes a row. `receive(u, sum)` waits for a vector of the sum. All threads of the block call it. Returns false, and
  // stores nothing, if a wait of any thread has expired.
  template <typename Receive>
  __device__ bool complete(std::uint64_t row, Receive&& receive) {
    uint4 result[U];
    float squares = 0.0f;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (!has(u)) continue;
      const uint4 residual = load(args.residual, row, u);  // arrives during the wait
      uint4 sum{};
      receive(u, sum);
      result[u] = add_residual(sum, residual, squares);
    }
    if (!add_over_block(squares)) return false;
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(args.hidden) + args.eps);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (!has(u)) continue;
      store(args.recv_buf, row, u, result[u]);
      result[u] = normalize(result[u], factor, U == 1 ? first_weight : load(args.weight, 0, u));
      if (!args.is_quantized) store(args.normalized, row, u, result[u]);
    }
    if (args.is_quantized) quantize(row, result);
    parity ^= 1;
    return true;
  }

 private:
  __device__ void set_steps(std::uint32_t steps, bool has_expired) const {
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (u < slots() && threadIdx.x == 0) slot(u).set_step(first_steps[u] + steps, has_expired);
  }
  __device__ static uint4 add_residual(uint4 sum, uint4 residual, float& squares) {
    const wire_vector<T> a(sum), b(residual);
    wire_vector<T> x;
    float vector_squares = 0.0f;
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      x.lanes[i] = from_float<T>(to_float(a.lanes[i]) + to_float(b.lanes[i]));
      const float value = to_float(x.lanes[i]);
      vector_squares += multiply(value, value);
    }
    squares += vector_squares;
    return x.bits;
  }
  __device__ uint4 normalize(uint4 row, float factor, uint4 weight) const {
    const wire_vector<T> x(row), w(weight);
    wire_vector<T> y;
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      float value = to_float(x.lanes[i]) * factor;
      if (args.round_before_weight) value = to_float(from_float<T>(value));
      y.lanes[i] = from_float<T>(value * to_float(w.lanes[i]));
    }
    return y.bits;
  }

  // Adds `value` over the block. Returns false on all threads if a wait of any thread has expired.
  __device__ bool add_over_block(float& value) const {
    const unsigned lane = threadIdx.x % warp_threads;
    float* const words = block_memory() + parity * warp_threads;
    const float sum = warp_sum(value);
    if (lane == 0) words[threadIdx.x / warp_threads] = sum;
    if (__syncthreads_or(limit.has_expired) != 0) return false;
    value = warp_sum(lane * warp_threads < blockDim.x ? words[lane] : 0.0f);
    return true;
  }
  __device__ float maximum_over_block(float value) const {
    const unsigned lane = threadIdx.x % warp_threads;
    float* const words = block_memory() + (2 + parity) * warp_threads;
    const float maximum = warp_maximum(value);
    if (lane == 0) words[threadIdx.x / warp_threads] = maximum;
    __syncthreads();
    return warp_maximum(lane * warp_threads < blockDim.x ? words[lane] : 0.0f);
  }
  static_assert(block_words >= 4 * warp_threads);

  __device__ float row_scale(std::uint64_t row, const uint4 (&normalized)[U]) const {
    if (args.scale != nullptr) return *args.scale;
    float largest = 0.0f;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (!has(u)) continue;
      const wire_vector<T> v(normalized[u]);
#pragma unroll
      for (int i = 0; i < elements; ++i) largest = larger(largest, fabsf(to_float(v.lanes[i])));
    }
    largest = maximum_over_block(largest);
    float scale = largest / largest_float8;
    if (scale == 0.0f) scale = 1.0f;
    if (threadIdx.x == 0) args.scales[row] = scale;
    return scale;
  }
  __device__ void quantize(std::uint64_t row, const uint4 (&normalized)[U]) const {
    const float scale = row_scale(row, normalized);
    auto* const out = static_cast<std::byte*>(args.normalized) + row * args.hidden;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (has(u))
        store_group<elements / 4>(out, index(u), args.hidden, quantize_vector<T>(normalized[u], scale));
    }
  }
};

// Every rank sends its rows to all ranks and completes all rows. It sends the next row before it receives the current one.
template <typename T, int N, int U>
__global__ void __launch_bounds__(row_threads)
    one_shot_rmsnorm(ISTHMUS_P2P_KERNEL_ARGUMENT const rmsnorm_arguments args) {
  wait_for_earlier_kernels();
  spin_limit limit(args);
  row_block<T, N, U> block(args, limit);
  if (block.has_failed_before()) return;
  const auto steps = static_cast<std::uint32_t>((args.tokens - blockIdx.x + gridDim.x - 1) / gridDim.x);
  const auto row = [](std::uint32_t step) { return std::uint64_t(step) * gridDim.x + blockIdx.x; };
  const auto scatter = [&](std::uint32_t step) {
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (block.has(u))
        send_to_all<N>(block.slot(u), block.first_steps[u] + step, args.rank, threadIdx.x,
                       block.load(args.send_buf, row(step), u));
  };
  scatter(0);
  for (std::uint32_t step = 0; step < steps; ++step) {
    fence_between_steps(step, steps);
    if (step + 1 < steps) scatter(step + 1);
    const bool is_complete = block.complete(row(step), [&](int u, uint4& sum) {
      receive_and_add<T, N>(block.slot(u), block.first_steps[u] + step, threadIdx.x,
                            block.load(args.send_buf, row(step), u), limit, sum);
    });
    if (!is_complete) break;
  }
  block.end(steps);
}

// Rank r adds every N-th row, starting with row r, and sends the sums to all ranks. Every rank completes all rows. The steps
// are pipelined as in allreduce.cu.
template <typename T, int N, int U>
struct row_pipeline {
  row_block<T, N, U>& block;
  const rmsnorm_arguments& args;

  __device__ std::uint64_t row(std::uint32_t step, int owner) const {
    return (std::uint64_t(step) * gridDim.x + blockIdx.x) * ranks<N>(args) + owner;
  }

  __device__ void scatter(std::uint32_t step) const {
#pragma unroll rank_unroll < N>
    for (int i = 1; i < ranks<N>(args); ++i) {
      const std::uint64_t peer_row = row(step, rank_after<N>(args, i));
      if (peer_row >= args.tokens) continue;
#pragma unroll
      for (int u = 0; u < U; ++u)
        if (block.has(u))
          store_remote(block.slot(u).row(i, block.first_steps[u] + step, args.rank) + threadIdx.x,
                       block.load(args.send_buf, peer_row, u));
    }
  }
  __device__ bool reduce(std::uint32_t step) const {
    const std::uint64_t own_row = row(step, args.rank);
    if (own_row >= args.tokens) return true;
    return block.complete(own_row, [&](int u, uint4& sum) {
      const inbox_slot slot = block.slot(u);
      const std::uint32_t number = block.first_steps[u] + step;
      if (receive_and_add<T, N>(slot, number, threadIdx.x, block.load(args.send_buf, own_row, u), block.limit,
                                sum))
        send_to_all<N>(slot, number, ranks<N>(args) + args.rank, threadIdx.x, sum);
    });
  }
  __device__ bool collect(std::uint32_t step) const {
#pragma unroll 1
    for (int i = 1; i < ranks<N>(args); ++i) {
      const int owner = rank_after<N>(args, i);
      if (row(step, owner) >= args.tokens) continue;
      const bool is_complete = block.complete(row(step, owner), [&](int u, uint4& sum) {
        uint4* const source =
            block.slot(u).row(0, block.first_steps[u] + step, ranks<N>(args) + owner) + threadIdx.x;
        sum = load_remote(source);
        while (is_pending(sum) && !block.limit.is_exhausted()) sum = load_remote(source);
        if (!is_pending(sum)) store_remote(source, pending_vector());
      });
      if (!is_complete) return false;
    }
    return true;
  }
};

template <typename T, int N, int U>
__global__ void __launch_bounds__(row_threads)
    two_shot_rmsnorm(ISTHMUS_P2P_KERNEL_ARGUMENT const rmsnorm_arguments args) {
  wait_for_earlier_kernels();
  spin_limit limit(args);
  row_block<T, N, U> block(args, limit);
  if (block.has_failed_before()) return;
  const row_pipeline<T, N, U> rows{block, args};
  const std::uint64_t own_rows = (args.tokens + ranks<N>(args) - 1) / ranks<N>(args);  // of rank 0
  const auto steps = static_cast<std::uint32_t>((own_rows - blockIdx.x + gridDim.x - 1) / gridDim.x);
  bool is_complete = true;
  rows.scatter(0);
  for (std::uint32_t step = 0; step < steps; ++step) {
    fence_between_steps(step, steps);
    if (step + 1 < steps) rows.scatter(step + 1);
    is_complete = rows.reduce(step) && (step == 0 || rows.collect(step - 1));
    if (!is_complete) break;
  }
  if (is_complete) rows.collect(steps - 1);
  block.end(steps);
}

template <typename T, int N, int U>
gpu_error launch_rows(reduction_algorithm algorithm, const rmsnorm_arguments& args, gpu_stream stream) {
  if (algorithm == reduction_algorithm::one_shot) return gpu_launch(one_shot_rmsnorm<T, N, U>, args, stream);
  if (algorithm == reduction_algorithm::two_shot) return gpu_launch(two_shot_rmsnorm<T, N, U>, args, stream);
  return gpu_invalid_value;
}

// The longest rows (more than 32 KiB) have kernels for any number of ranks only. Those for 2, 4 and 8 ranks would be 40% of
// the code of this file.
template <typename T, int N>
gpu_error launch(reduction_algorithm algorithm, rmsnorm_arguments args, gpu_stream stream) {
  const int vectors = static_cast<int>((args.hidden + wire_vector<T>::elements - 1) / wire_vector<T>::elements);
  const int slots = (vectors + row_threads - 1) / row_threads;
  const std::uint64_t ranks =
      algorithm == reduction_algorithm::one_shot ? 1 : static_cast<std::uint64_t>(args.size);
  // Each block occupies a multiprocessor, because the blocks of all ranks wait for each other.
  const std::uint64_t most_blocks = std::max(1, std::min(max_slots, args.multiprocessors) / slots);
  args.slots = static_cast<int>(std::min((args.tokens + ranks - 1) / ranks, most_blocks));
  args.threads = std::min(row_threads, (vectors + warp_threads - 1) / warp_threads * warp_threads);
  if (slots == 1) return launch_rows<T, N, 1>(algorithm, args, stream);
  if (slots == 2) return launch_rows<T, N, 2>(algorithm, args, stream);
  return slots <= 4 ? launch_rows<T, 0, 4>(algorithm, args, stream) : gpu_invalid_value;
}

// Calls `function` with the type and the number of ranks as template arguments (0: any number of ranks).
template <typename T, typename Function>
gpu_error dispatch_ranks(int size, Function function) {
  switch (size) {
    case 2: return function.template operator()<T, 2>();
    case 4: return function.template operator()<T, 4>();
    case 8: return function.template operator()<T, 8>();
    default: return function.template operator()<T, 0>();
  }
}
template <typename Function>
gpu_error dispatch(element_type type, int size, Function function) {
  switch (type) {
    case element_type::float32: return dispatch_ranks<float>(size, function);
    case element_type::float16: return dispatch_ranks<float16>(size, function);
    case element_type::bfloat16: return dispatch_ranks<bfloat16>(size, function);
  }
  return gpu_invalid_value;
}

template <typename T, int N, int U>
gpu_error load_kernels() {
  const gpu_error code = gpu_load_kernel(one_shot_rmsnorm<T, N, U>);
  return code == gpu_success ? gpu_load_kernel(two_shot_rmsnorm<T, N, U>) : code;
}

}  // namespace

gpu_error launch_allreduce_rmsnorm(reduction_algorithm algorithm, element_type type, rmsnorm_arguments args,
                                   gpu_stream stream) {
  return dispatch(type, args.size, [&]<typename T, int N>() { return launch<T, N>(algorithm, args, stream); });
}

gpu_error load_rmsnorm_kernels(int size) {
  for (const element_type type : {element_type::float32, element_type::float16, element_type::bfloat16}) {
    const gpu_error code = dispatch(type, size, [&]<typename T, int N>() {
      gpu_error loaded = load_kernels<T, N, 1>();
      if (loaded == gpu_success) loaded = load_kernels<T, N, 2>();
      return loaded == gpu_success ? load_kernels<T, 0, 4>() : loaded;
    });
    if (code != gpu_success) return code;
  }
  return gpu_success;
}

}  // namespace isthmus::p2p
