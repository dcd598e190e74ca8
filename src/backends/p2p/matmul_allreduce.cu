// Kernel for a matrix product and the allreduce of the products (isthmus_product). Each thread block computes some columns
// of the result with tensor instructions, and exchanges them with the protocol of one_shot in allreduce.cu.
//
// The product of few rows takes as long as reading the weights B. A block therefore reads 64 rows of B (columns of the
// result), and its warps divide the inner dimension. Every thread copies the elements that it multiplies to its own part of
// the block's memory, several steps ahead, so the copies need neither registers nor barriers.

#include <algorithm>

#include "backends/p2p/inbox.cuh"

namespace isthmus::p2p {

#if ISTHMUS_P2P_HIP  // there is no version for the matrix instructions of AMD GPUs

gpu_error launch_matmul_allreduce(element_type, product_arguments, gpu_stream) { return gpu_invalid_value; }
gpu_error load_product_kernels(int) { return gpu_invalid_value; }

#else

namespace {

constexpr int warps = 8, warp_threads = 32, product_threads = warps * warp_threads;
constexpr int stages = 4;                        // copies of a warp in flight
constexpr int tile_columns = 64;                 // of the result
constexpr int weight_groups = tile_columns / 8;  // groups of 8 rows of B
constexpr int step_elements = 32;                // of the inner dimension, by one warp
constexpr int thread_elements = 8;               // of these, in each row, by one thread
constexpr int round_elements = warps * step_elements;
constexpr int sums_stride = tile_columns + 4;  // of a row of partial sums; avoids bank conflicts

// G: groups of 8 rows of A.
template <int G>
constexpr int stage_vectors = (weight_groups + G) * warp_threads;
template <int G>
constexpr int warp_vectors = stages * stage_vectors<G>;
template <int G>
constexpr unsigned memory_bytes = warps * warp_vectors<G> * 16;

// The elements of a matrix that a thread copies: 8 of each round, in every 8th row from `row` on. The last row replaces rows
// past the end, because only unused sums depend on them.
template <typename T, int Groups>
struct copied_rows {
  const T* next[Groups];

  __device__ copied_rows(const void* matrix, std::uint64_t leading, std::uint32_t row, std::uint32_t rows,
                         std::uint32_t first) {
#pragma unroll
    for (int i = 0; i < Groups; ++i)
      next[i] = static_cast<const T*>(matrix) + std::min(row + 8 * i, rows - 1) * leading + first;
  }
  // Copies the next `count` elements (with Vectors: 8 or 0), and sets the rest to 0.
  template <bool Vectors>
  __device__ void copy(uint4* to, std::uint32_t count) {
#pragma unroll
    for (int i = 0; i < Groups; ++i) {
      if (Vectors)
        copy_async(to + i * warp_threads, next[i], count * sizeof(T));
      else
        to[i * warp_threads] = load(next[i], count);
      next[i] += round_elements;
    }
  }

 private:
  __device__ static __noinline__ uint4 load(const T* from, std::uint32_t count) {
    wire_vector<T> v(make_uint4(0, 0, 0, 0));
#pragma unroll
    for (int i = 0; i < thread_elements; ++i)
      if (static_cast<std::uint32_t>(i) < count) v.lanes[i] = from[i];
    return v.bits;
  }
};
template <typename T>
__device__ bool has_vectors(const void* matrix, std::uint64_t leading, std::uint32_t inner) {
  return is_aligned(matrix) && leading * sizeof(T) % 16 == 0 && inner % thread_elements == 0;
}

template <typename T, int G>
struct tile_product {
  const product_arguments& args;
  uint4* own;               // this thread's part of the memory
  int warp, group, member;  // group: of 4 threads, which copy one row

  __device__ explicit tile_product(const product_arguments& args)
      : args(args),
        own(dynamic_memory() + threadIdx.x / warp_threads * warp_vectors<G> + threadIdx.x % warp_threads),
        warp(threadIdx.x / warp_threads),
        group(threadIdx.x % warp_threads / 4),
        member(threadIdx.x % 4) {}

  // Computes this warp's part of the sums of a tile, and stores it in the block's memory.
  __device__ void multiply(std::uint32_t first_column) const {
    if (has_vectors<T>(args.a, args.lda, args.inner) && has_vectors<T>(args.b, args.ldb, args.inner))
      multiply_copied<true>(first_column);
    else
      multiply_copied<false>(first_column);
  }

  // Returns 8 elements of this rank's product.
  __device__ uint4 result(std::uint32_t row, std::uint32_t first_column, int vector) const {
    float sums[thread_elements] = {};
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const auto* const from =
          reinterpret_cast<const uint4*>(warp_sums(w) + row * sums_stride + vector * thread_elements);
      const wire_vector<float> parts[2] = {wire_vector<float>(from[0]), wire_vector<float>(from[1])};
#pragma unroll
      for (int i = 0; i < thread_elements; ++i) sums[i] += parts[i / 4].lanes[i % 4];
    }
    wire_vector<T> v;
    const auto* const bias = static_cast<const T*>(args.bias);
    const std::uint32_t first = first_column + vector * thread_elements;
#pragma unroll
    for (int i = 0; i < thread_elements; ++i) {
      float value = args.alpha * sums[i];
      if (bias != nullptr && first + i < args.columns) value += to_float(bias[first + i]);
      v.lanes[i] = from_float<T>(value);
    }
    return escape_pending(v.bits);
  }

 private:
  template <bool Vectors>
  __device__ void multiply_copied(std::uint32_t first_column) const {
    const std::uint32_t first = warp * step_elements + member * thread_elements;
    copied_rows<T, weight_groups> b(args.b, args.ldb, first_column + group, args.columns, first);
    copied_rows<T, G> a(args.a, args.lda, group, args.rows, first);
    const std::uint32_t rounds = (args.inner + round_elements - 1) / round_elements;
    std::uint32_t position = first;  // of the next copies
    const auto copy = [&](int stage) {
      const std::uint32_t left = position < args.inner ? args.inner - position : 0;
      const std::uint32_t count = left < thread_elements ? left : thread_elements;
      b.template copy<Vectors>(own + stage * stage_vectors<G>, count);
      a.template copy<Vectors>(own + stage * stage_vectors<G> + weight_groups * warp_threads, count);
      position += round_elements;
      end_copies();
    };
    float sums[weight_groups / 2][G][4] = {};
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) copy(i);
    int stage = 0;
    for (std::uint32_t round = 0; round < rounds; ++round) {
      copy(stage == 0 ? stages - 1 : stage - 1);
      wait_for_copies<stages - 1>();
      const uint4* const from = own + stage * stage_vectors<G>;
      uint4 weights[weight_groups];
#pragma unroll
      for (int i = 0; i < weight_groups; ++i) weights[i] = from[i * warp_threads];
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const uint4 row = from[(weight_groups + g) * warp_threads];
#pragma unroll
        for (int i = 0; i < weight_groups / 2; ++i)
          multiply_tiles<T>(sums[i][g], weights[2 * i], weights[2 * i + 1], row);
      }
      stage = stage == stages - 1 ? 0 : stage + 1;
    }
    wait_for_copies<0>();
    synchronize_warp();  // the sums replace the copies of all threads of the warp
    float* const to = warp_sums(warp);
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int i = 0; i < weight_groups / 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          to[(8 * g + 2 * member + j % 2) * sums_stride + 16 * i + 8 * (j / 2) + group] = sums[i][g][j];
  }

  static_assert(8 * G * sums_stride * sizeof(float) <= warp_vectors<G> * 16);
  __device__ static float* warp_sums(int warp) {
    return reinterpret_cast<float*>(dynamic_memory() + warp * warp_vectors<G>);
  }
};

template <typename T, int N, int G>
__global__ void __launch_bounds__(product_threads)
    multiply_and_add(ISTHMUS_P2P_KERNEL_ARGUMENT const product_arguments args) {
  wait_for_earlier_kernels();
  spin_limit limit(args);
  const inbox_slot slot(args);
  const std::uint32_t first_step = *slot.step();  // arrives during the product
  const tile_product<T, G> product(args);
  const std::uint32_t tiles = (args.columns + tile_columns - 1) / tile_columns;
  const std::uint32_t steps = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const int row_vectors = tile_columns / thread_elements;
  const bool is_result_aligned = is_aligned(args.recv_buf) && args.columns * sizeof(T) % 16 == 0;
  bool has_expired = false;
  for (std::uint32_t step = 0; step < steps && !has_expired; ++step) {
    const std::uint32_t first_column = (step * gridDim.x + blockIdx.x) * tile_columns;
    fence_between_steps(step, steps);
    product.multiply(first_column);
    __syncthreads();
    if (has_failed(first_step)) return;
    const std::uint32_t row = threadIdx.x / row_vectors, vector = threadIdx.x % row_vectors;
    if (row < args.rows && first_column + vector * thread_elements < args.columns) {
      const uint4 own = product.result(row, first_column, vector);
      send_to_all<N>(slot, first_step + step, args.rank, threadIdx.x, own);
      uint4 sum;
      if (receive_and_add<T, N>(slot, first_step + step, threadIdx.x, own, limit, sum))
        store_elements<T, T>(static_cast<T*>(args.recv_buf) + std::uint64_t(row) * args.columns,
                             first_column / thread_elements + vector, args.columns, is_result_aligned, sum);
    }
    has_expired = __syncthreads_or(limit.has_expired) != 0;  // also: the next step overwrites the sums
  }
  start_later_kernels();
  if (threadIdx.x == 0) slot.set_step(first_step + steps, has_expired);
}
static_assert(product_max_rows * tile_columns / thread_elements <= product_threads);

// Calls `function` with the type, the number of ranks (0: any) and the groups of rows as template arguments.
template <typename T, int N, typename Function>
gpu_error dispatch_rows(std::uint32_t rows, Function function) {
  return rows <= 8 ? function.template operator()<T, N, 1>() : function.template operator()<T, N, 2>();
}
template <typename T, typename Function>
gpu_error dispatch_ranks(int size, std::uint32_t rows, Function function) {
  switch (size) {
    case 2: return dispatch_rows<T, 2>(rows, function);
    case 4: return dispatch_rows<T, 4>(rows, function);
    case 8: return dispatch_rows<T, 8>(rows, function);
    default: return dispatch_rows<T, 0>(rows, function);
  }
}
template <typename Function>
gpu_error dispatch(element_type type, int size, std::uint32_t rows, Function function) {
  switch (type) {
    case element_type::float32: return gpu_invalid_value;
    case element_type::float16: return dispatch_ranks<float16>(size, rows, function);
    case element_type::bfloat16: return dispatch_ranks<bfloat16>(size, rows, function);
  }
  return gpu_invalid_value;
}

}  // namespace

gpu_error launch_matmul_allreduce(element_type type, product_arguments args, gpu_stream stream) {
  if (args.rows > product_max_rows) return gpu_invalid_value;
  if (args.inner == 0) args.a = args.b = args.recv_buf;  // nothing is read
  const std::uint32_t tiles = (args.columns + tile_columns - 1) / tile_columns;
  // Each block occupies a multiprocessor, because the blocks of all ranks wait for each other.
  args.slots = static_cast<int>(
      std::min<std::uint32_t>(tiles, static_cast<std::uint32_t>(std::min(max_slots, args.multiprocessors))));
  args.threads = product_threads;
  return dispatch(type, args.size, args.rows, [&]<typename T, int N, int G>() {
    return gpu_launch(multiply_and_add<T, N, G>, args, stream, 1, memory_bytes<G>);
  });
}

gpu_error load_product_kernels(int size) {
  for (const element_type type : {element_type::float16, element_type::bfloat16})
    for (const std::uint32_t rows : {8, product_max_rows}) {
      const gpu_error code = dispatch(type, size, rows, [&]<typename T, int N, int G>() {
        return gpu_allow_memory(multiply_and_add<T, N, G>, memory_bytes<G>);
      });
      if (code != gpu_success) return code;
    }
  return gpu_success;
}

#endif

}  // namespace isthmus::p2p
