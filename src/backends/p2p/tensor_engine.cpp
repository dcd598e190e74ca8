// The tensor-parallel engine for CUDA and HIP: one host thread launches one kernel per device.

#include <isthmus/tensor_parallel.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "backends/p2p/device.hpp"
#include "backends/p2p/local_contexts.hpp"
#include "backends/p2p/peer_scratch.hpp"

namespace isthmus::p2p {
namespace {

// The CUDA driver, which the CUDA runtime has already loaded. The runtime does not offer these queries.
struct driver_functions : gpu::gpu_functions {
  driver_functions() {
    if (const auto driver = dynamic_library::find_loaded(gpu::cuda_driver_name); driver)
      (void)look_up(gpu::vendor_library::cuda_driver, driver);
  }
};

bool is_plain_memory_of(const driver_functions& functions, const void* pointer, int owner) {
  int attributes[] = {gpu::attribute_is_ipc_capable, gpu::attribute_ordinal};
  int is_plain = 0, ordinal = -1;
  void* values[] = {&is_plain, &ordinal};
  return functions.get_pointer_attributes(2, attributes, values, pointer) == gpu::success && is_plain != 0 &&
         ordinal == owner;
}

// Returns true if the driver reports that device `peer`, which has peer access to device `owner`, can write
// `pointer`. This holds for plain allocations of `owner` and for mapped allocations that were made accessible
// to `peer`. It does not hold for stream-ordered pools or for memory unknown to the driver. The check takes
// less than a microsecond.
bool is_writable_by(const void* pointer, int owner, int peer) {
  if (ISTHMUS_P2P_HIP) return false;  // HIP has no such query, so results are sent through the inboxes
  static const driver_functions functions;
  if (functions.get_pointer_attributes == nullptr || functions.mem_get_access == nullptr) return false;
  if (is_plain_memory_of(functions, pointer, owner)) return true;
  const gpu::memory_location location{gpu::location_device, peer};
  unsigned long long flags = 0;
  return functions.mem_get_access(&flags, &location, pointer) == gpu::success &&
         (flags & gpu::access_read_write) == gpu::access_read_write;
}

struct device_rank {
  int device;
  gpu_stream stream;
  std::unique_ptr<peer_scratch> scratch;
  kernel_arguments arguments{};  // arguments that do not change between calls
};

class tensor_engine {
 public:
  tensor_engine(int n, const isthmus_device* devices, const isthmus_stream* streams, double timeout_s)
      : m_ranks(static_cast<std::size_t>(n)) {
    for (int rank = 0; rank < n; ++rank) {
      m_ranks[rank].device = devices[rank].ordinal;
      m_ranks[rank].stream = static_cast<gpu_stream>(streams[rank]);
    }
    if (n > 1) connect(devices, timeout_s);
  }

  // Returns "" if all devices can access each other.
  const std::string& reason() const { return m_reason; }

  bool allreduce(void* const* pointers, std::uint64_t count, element_type type, std::uint64_t active,
                 isthmus_tensor_parallel_algorithm requested_algorithm, bool bfloat16_wire) {
    if (m_has_failed || has_timed_out()) return false;
    const device_guard guard(m_ranks[0].device);
    if (guard.code() != gpu_success) return false;
    if (m_ranks.size() == 1) return sum_single_device(pointers[0], count, type, active);

    const element_type wire = bfloat16_wire ? element_type::bfloat16 : type;
    const std::uint64_t wire_bytes = count * element_bytes(wire);
    const reduction_algorithm algorithm = choose(requested_algorithm, pointers, wire == type, wire_bytes);
    for (std::size_t rank = 0; rank < m_ranks.size(); ++rank) {
      device_rank& rank_state = m_ranks[rank];
      kernel_arguments args = rank_state.arguments;
      args.send_buf = (active >> rank & 1u) != 0 ? pointers[rank] : nullptr;
      args.recv_buf = pointers[rank];
      args.count = count;
      if (algorithm == reduction_algorithm::two_shot_zero_copy)
        for (std::size_t i = 0; i < m_ranks.size(); ++i)
          args.peer_recv_bufs[i] = pointers[(rank + i) % m_ranks.size()];
      gpu_error code = rank == 0 ? gpu_success : gpu_set_device(rank_state.device);
      if (code == gpu_success) code = launch_allreduce(algorithm, type, wire, args, rank_state.stream);
      if (code != gpu_success) {
        abort_launch(rank);
        return false;
      }
    }
    // The guard restores the caller's device only if the guard itself changed it.
    if (m_ranks.size() > 1) (void)gpu_set_device(m_ranks[0].device);
    return true;
  }

  ~tensor_engine() {
    for (const device_rank& rank_state : m_ranks) {
      const device_guard guard(rank_state.device);
      if (guard.code() == gpu_success) (void)gpu_synchronize_stream(rank_state.stream);
    }
  }

 private:
  // Connecting is collective, as for the ranks of a communicator, so each device needs a thread
  // during the setup.
  void connect(const isthmus_device* devices, double timeout_s) {
    const int n = static_cast<int>(m_ranks.size());
    local_contexts contexts(n, devices, timeout_s);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < n; ++rank)
        threads.emplace_back(
            [&, rank] { m_ranks[rank].scratch = std::make_unique<peer_scratch>(contexts.context(rank)); });
    }
    for (int rank = 0; rank < n && m_reason.empty(); ++rank) m_reason = m_ranks[rank].scratch->reason();
    if (!m_reason.empty()) return;
    for (int rank = 0; rank < n; ++rank) {
      kernel_arguments& args = m_ranks[rank].arguments;
      args.rank = rank;
      args.size = n;
      args.divisor = 1.0f;
      m_ranks[rank].scratch->fill_arguments(args);
      args.timeout_ns = static_cast<std::uint64_t>(timeout_s * 1e9);
    }
  }

  // Follows the request if the buffers and the message size allow it.
  reduction_algorithm choose(isthmus_tensor_parallel_algorithm requested_algorithm, void* const* pointers,
                             bool is_exact_wire, std::uint64_t wire_bytes) const {
    if (requested_algorithm == ISTHMUS_ONE_SHOT && wire_bytes <= one_shot_limit_bytes)
      return reduction_algorithm::one_shot;
    if (requested_algorithm != ISTHMUS_TWO_SHOT_ZERO_COPY || !is_exact_wire)
      return reduction_algorithm::two_shot;
    for (std::size_t owner = 0; owner < m_ranks.size(); ++owner)
      for (std::size_t peer = 0; peer < m_ranks.size(); ++peer)
        if (peer != owner && !is_writable_by(pointers[owner], m_ranks[owner].device, m_ranks[peer].device))
          return reduction_algorithm::two_shot;
    return reduction_algorithm::two_shot_zero_copy;
  }

  bool has_timed_out() const {
    return m_ranks.size() > 1 && std::any_of(m_ranks.begin(), m_ranks.end(), [](const device_rank& rank_state) {
             return rank_state.scratch->flags()->expired != 0;
           });
  }

  // With one device, nothing is sent, so nothing is rounded.
  bool sum_single_device(void* pointer, std::uint64_t count, element_type type, std::uint64_t active) {
    if ((active & 1u) != 0) return true;
    return gpu_memset_async(pointer, 0, count * element_bytes(type), m_ranks[0].stream) == gpu_success;
  }

  // The launch failed on `first_failed_rank`, and later ranks were not launched. The kernels of earlier ranks
  // wait for these ranks. They are aborted after previous calls have completed. They store nothing, because no
  // sum is complete without every rank. Only this error path blocks and makes the handle unusable.
  void abort_launch(std::size_t first_failed_rank) {
    m_has_failed = true;
    for (std::size_t rank = first_failed_rank; rank < m_ranks.size(); ++rank)
      if (gpu_set_device(m_ranks[rank].device) == gpu_success)
        (void)gpu_synchronize_stream(m_ranks[rank].stream);
    for (const device_rank& rank_state : m_ranks) rank_state.scratch->flags()->abort = 1;
    for (std::size_t rank = 0; rank < first_failed_rank; ++rank)
      if (gpu_set_device(m_ranks[rank].device) == gpu_success)
        (void)gpu_synchronize_stream(m_ranks[rank].stream);
    (void)gpu_set_device(m_ranks[0].device);
  }

  std::vector<device_rank> m_ranks;
  std::string m_reason;
  bool m_has_failed = false;
};

void* open(int n, const isthmus_device* devices, const isthmus_stream* streams, double timeout_s, char* reason,
           std::size_t reason_bytes) {
  try {
    auto engine = std::make_unique<tensor_engine>(n, devices, streams, timeout_s);
    if (engine->reason().empty()) return engine.release();
    std::snprintf(reason, reason_bytes, "%s", engine->reason().c_str());
  } catch (const std::exception& failure) {
    std::snprintf(reason, reason_bytes, "%s", failure.what());
  }
  return nullptr;
}

bool allreduce(void* state, void* const* pointers, std::uint64_t count, isthmus_datatype datatype,
               std::uint64_t active, isthmus_tensor_parallel_algorithm requested_algorithm,
               bool bfloat16_wire) {
  const auto type = element_of(datatype);
  if (!type) return false;
  return static_cast<tensor_engine*>(state)->allreduce(pointers, count, *type, active, requested_algorithm,
                                                       bfloat16_wire && *type == element_type::float32);
}

void close(void* state) { delete static_cast<tensor_engine*>(state); }

}  // namespace
}  // namespace isthmus::p2p

extern "C" __attribute__((visibility("default"))) const isthmus_tensor_parallel_engine*
isthmus_tensor_parallel_engine_v1(void) {
  static const isthmus_tensor_parallel_engine engine = {.struct_bytes = sizeof(isthmus_tensor_parallel_engine),
                                                        .abi_version = ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI,
                                                        .platforms = 1u << ISTHMUS_P2P_PLATFORM,
                                                        .name = "p2p",
                                                        .open = isthmus::p2p::open,
                                                        .allreduce = isthmus::p2p::allreduce,
                                                        .close = isthmus::p2p::close};
  return &engine;
}
