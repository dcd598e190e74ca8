// The tensor-parallel engine of CUDA and HIP: one kernel launch on each device, from one host thread.

#include <isthmus/tensor_parallel.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backends/p2p/device_guard.hpp"
#include "backends/p2p/local_contexts.hpp"
#include "backends/p2p/peers.hpp"
#include "backends/p2p/reach.hpp"

namespace isthmus::p2p {
namespace {

struct seat {
  int device;
  gpu_stream stream;
  std::unique_ptr<peer_scratch> scratch;
  kernel_arguments prepared{};  // what stays the same from call to call
};

class tensor_engine {
 public:
  tensor_engine(int n, const isthmus_device* devices, const isthmus_stream* streams, double timeout_s)
      : m_seats(static_cast<std::size_t>(n)) {
    for (int rank = 0; rank < n; ++rank) {
      m_seats[rank].device = devices[rank].ordinal;
      m_seats[rank].stream = static_cast<gpu_stream>(streams[rank]);
    }
    if (n > 1) connect(devices, timeout_s);
  }

  // "" once all devices reach each other.
  const std::string& reason() const { return m_reason; }

  bool allreduce(void* const* pointers, std::uint64_t count, element_type type, std::uint64_t active,
                 isthmus_shots shots, bool bfloat16_wire) {
    if (m_broken || is_expired()) return false;
    const device_guard guard(m_seats[0].device);
    if (guard.code() != gpu_success) return false;
    if (m_seats.size() == 1) return alone(pointers[0], count, type, active);

    const element_type wire = bfloat16_wire ? element_type::bfloat16 : type;
    const std::uint64_t wire_bytes = count * (wire == element_type::float32 ? 4 : 2);
    const reduction_algorithm algorithm = choose(shots, pointers, wire == type, wire_bytes);
    for (std::size_t rank = 0; rank < m_seats.size(); ++rank) {
      seat& seat = m_seats[rank];
      kernel_arguments args = seat.prepared;
      args.send_buf = (active >> rank & 1u) != 0 ? pointers[rank] : nullptr;
      args.recv_buf = pointers[rank];
      args.count = count;
      if (algorithm == reduction_algorithm::two_shot_zero_copy)
        for (std::size_t i = 0; i < m_seats.size(); ++i)
          args.peer_recv_bufs[i] = pointers[(rank + i) % m_seats.size()];
      gpu_error code = rank == 0 ? gpu_success : gpu_set_device(seat.device);
      if (code == gpu_success) code = launch_allreduce(algorithm, type, wire, args, seat.stream);
      if (code != gpu_success) {
        give_up(rank);
        return false;
      }
    }
    // The guard restores the caller's device only if it changed it itself.
    if (m_seats.size() > 1) (void)gpu_set_device(m_seats[0].device);
    return true;
  }

  ~tensor_engine() {
    for (const seat& seat : m_seats) {
      const device_guard guard(seat.device);
      if (guard.code() == gpu_success) (void)gpu_synchronize_stream(seat.stream);
    }
  }

 private:
  // As ranks of a communicator connect, so each needs a thread while it lasts.
  void connect(const isthmus_device* devices, double timeout_s) {
    const int n = static_cast<int>(m_seats.size());
    local_contexts contexts(n, devices, timeout_s);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < n; ++rank)
        threads.emplace_back(
            [&, rank] { m_seats[rank].scratch = std::make_unique<peer_scratch>(contexts.context(rank)); });
    }
    for (int rank = 0; rank < n && m_reason.empty(); ++rank) m_reason = m_seats[rank].scratch->reason();
    if (!m_reason.empty()) return;
    for (int rank = 0; rank < n; ++rank) {
      kernel_arguments& args = m_seats[rank].prepared;
      args.rank = rank;
      args.size = n;
      args.divisor = 1.0f;
      m_seats[rank].scratch->fill_arguments(args);
      args.timeout_ns = static_cast<std::uint64_t>(timeout_s * 1e9);
    }
  }

  // The advice as far as it can be followed.
  reduction_algorithm choose(isthmus_shots shots, void* const* pointers, bool as_it_is, std::uint64_t wire_bytes) const {
    if (shots == ISTHMUS_ONE_SHOT && wire_bytes <= one_shot_limit_bytes) return reduction_algorithm::one_shot;
    if (shots != ISTHMUS_TWO_SHOT_ZERO_COPY || !as_it_is) return reduction_algorithm::two_shot;
    for (std::size_t owner = 0; owner < m_seats.size(); ++owner)
      for (std::size_t peer = 0; peer < m_seats.size(); ++peer)
        if (peer != owner && !is_writable_by(pointers[owner], m_seats[owner].device, m_seats[peer].device))
          return reduction_algorithm::two_shot;
    return reduction_algorithm::two_shot_zero_copy;
  }

  bool is_expired() const {
    return m_seats.size() > 1 && std::any_of(m_seats.begin(), m_seats.end(),
                                             [](const seat& seat) { return seat.scratch->flags()->expired != 0; });
  }

  // One device: nothing travels, so nothing is rounded.
  bool alone(void* pointer, std::uint64_t count, element_type type, std::uint64_t active) {
    if ((active & 1u) != 0) return true;
    return gpu_memset_async(pointer, 0, count * (type == element_type::float32 ? 4 : 2), m_seats[0].stream) ==
           gpu_success;
  }

  // Device `failed` and those after it have not joined this call, those before it wait in it. Once the
  // earlier calls are complete the waiting kernels may be told to leave; they store nothing, because no sum
  // is complete without every rank. Only this way waits, and only it makes the handle useless.
  void give_up(std::size_t failed) {
    m_broken = true;
    for (std::size_t rank = failed; rank < m_seats.size(); ++rank)
      if (gpu_set_device(m_seats[rank].device) == gpu_success)
        (void)gpu_synchronize_stream(m_seats[rank].stream);
    for (const seat& seat : m_seats) seat.scratch->flags()->abort = 1;
    for (std::size_t rank = 0; rank < failed; ++rank)
      if (gpu_set_device(m_seats[rank].device) == gpu_success)
        (void)gpu_synchronize_stream(m_seats[rank].stream);
    (void)gpu_set_device(m_seats[0].device);
  }

  std::vector<seat> m_seats;
  std::string m_reason;
  bool m_broken = false;
};

void* open(int n, const isthmus_device* devices, const isthmus_stream* streams, double timeout_s, char* reason,
           std::size_t reason_bytes) {
  try {
    auto made = std::make_unique<tensor_engine>(n, devices, streams, timeout_s);
    if (made->reason().empty()) return made.release();
    std::snprintf(reason, reason_bytes, "%s", made->reason().c_str());
  } catch (const std::exception& failure) {
    std::snprintf(reason, reason_bytes, "%s", failure.what());
  }
  return nullptr;
}

bool allreduce(void* state, void* const* pointers, std::uint64_t count, isthmus_datatype datatype,
               std::uint64_t active, isthmus_shots shots, bool bfloat16_wire) {
  const auto type = datatype == ISTHMUS_FLOAT32    ? std::optional(element_type::float32)
                    : datatype == ISTHMUS_FLOAT16  ? std::optional(element_type::float16)
                    : datatype == ISTHMUS_BFLOAT16 ? std::optional(element_type::bfloat16)
                                                   : std::nullopt;
  if (!type) return false;
  return static_cast<tensor_engine*>(state)->allreduce(pointers, count, *type, active, shots,
                                                       bfloat16_wire && *type == element_type::float32);
}

void close(void* state) { delete static_cast<tensor_engine*>(state); }

}  // namespace
}  // namespace isthmus::p2p

extern "C" __attribute__((visibility("default"))) const isthmus_tensor_parallel_engine*
isthmus_tensor_parallel_engine_v1(void) {
  static const isthmus_tensor_parallel_engine engine = {sizeof(isthmus_tensor_parallel_engine),
                                                        ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI,
                                                        1u << ISTHMUS_P2P_PLATFORM,
                                                        "p2p",
                                                        isthmus::p2p::open,
                                                        isthmus::p2p::allreduce,
                                                        isthmus::p2p::close};
  return &engine;
}
