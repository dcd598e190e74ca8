// Tensor parallelism on any SYCL devices. isthmus/tensor_parallel.h uses kernels with peer access. This header
// uses copies and addition kernels, which are ordered by events. Header-only; requires SYCL 2020.
//
//   isthmus::tensor_parallel sum(queues);                       // one in-order queue per device
//   sum.allreduce(pointers, count);                             // true: enqueued on every queue
//
// For C programs, pass it as an engine: options.engine = isthmus::sycl_tensor_parallel_engine(). The streams
// are then sycl::queue pointers.
//
// Create the queues in one context if the platform allows it. Between contexts, a direct copy silently does
// nothing, and between devices without peer access, it fails or hangs. In these cases, tensors are copied
// through host memory, and the host waits for them.
#ifndef ISTHMUS_SYCL_TENSOR_PARALLEL_HPP
#define ISTHMUS_SYCL_TENSOR_PARALLEL_HPP

#include <isthmus/tensor_parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <isthmus/sycl/tensor_kernels.hpp>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace isthmus {

/// Sums a tensor over the SYCL devices of one process, for inference engines that have one in-order
/// queue per device.
///
/// Tensors are added in rank order in float32, so sums are bit-identical on all devices and in every run. Every
/// device fetches the tensors of all other devices and adds them. Tensors of up to 64 KiB on two to four devices
/// need fewer commands: the first device adds the tensors, and the others fetch the sum.
///
/// Devices of one context with peer access copy directly, and the host does not wait. Otherwise, tensors are
/// copied through host memory, and the host waits.
///
/// Thread safety: only one thread at a time may use an object. Different objects are independent.
/// Memory: each device holds one slot per device and one for its own tensor. Each slot has the size of the
///   largest call so far.
/// @code
/// isthmus::tensor_parallel sum(queues);
/// if (!sum.allreduce(pointers, count)) use_another_way();
/// queues[0].memcpy(result, pointers[0], bytes).wait();   // later work of every queue sees the sum
/// @endcode
class tensor_parallel {
 public:
  /// Compiles the kernels. If the program's compiler is not a SYCL compiler, DPC++ compiles them at run time,
  /// which takes two seconds per context (SYCL_CACHE_PERSISTENT=1 keeps the result).
  /// @param queues One in-order queue per device, at most 16; copies of a queue are the same queue.
  /// @throws std::invalid_argument If `queues` is empty, has more than 16 entries, or contains
  ///   an out-of-order queue.
  /// @throws sycl::exception Compilation errors of the runtime.
  explicit tensor_parallel(const std::vector<sycl::queue>& queues) {
    if (queues.empty() || queues.size() > 16)
      throw std::invalid_argument("tensor_parallel: queues has " + std::to_string(queues.size()) +
                                  " entries, must have 1 to 16");
    for (const sycl::queue& queue : queues) {
      if (!queue.is_in_order())
        throw std::invalid_argument(
            "tensor_parallel: a queue is out of order; create it with sycl::property::queue::in_order");
      m_devices.emplace_back(queue, kernels_for(queue));
    }
    m_is_direct = enable_direct_copies();
  }

  /// Waits for all enqueued work, then frees the slots.
  ~tensor_parallel() {
    for (device_state& device : m_devices) try {
        device.queue.wait();
      } catch (const sycl::exception&) {  // NOLINT(bugprone-empty-catch): reported to the queue's owner
      }
  }
  tensor_parallel(const tensor_parallel&) = delete;
  tensor_parallel& operator=(const tensor_parallel&) = delete;

  /// Replaces pointers[i][0..count) with the sum over the devices whose bit is set in `active`. The other
  /// devices contribute zeros.
  /// Ordering: starts after the earlier work of each queue.
  /// Blocking: the host does not wait if the devices copy directly.
  /// @param pointers One tensor per queue, modified in place. Device i must be able to
  ///   access pointers[i] (USM).
  /// @param count The number of elements; equal on all devices. 0 returns true immediately.
  /// @param datatype float32, float16 or bfloat16; 16-bit sums are computed in float32 and rounded once.
  /// @param active Bit i: device i contributes; ISTHMUS_ALL_ACTIVE for all.
  /// @param bfloat16_wire Transfers float32 as bfloat16, which halves the bytes. The sum and every
  ///   contribution, including the device's own, are rounded to nearest even.
  /// @return True: the sum is enqueued on every queue, and later work sees it. False: no tensor was changed,
  ///   because memory was insufficient, the datatype is not supported, or an earlier call caught a runtime
  ///   exception. After such an exception, every call returns false.
  bool allreduce(void* const* pointers, std::uint64_t count, isthmus_datatype datatype = ISTHMUS_FLOAT32,
                 std::uint64_t active = ISTHMUS_ALL_ACTIVE, bool bfloat16_wire = false) {
    const auto format = detail::tensor_format_of(datatype);
    if (!format || m_is_broken) return false;
    if (count == 0) return true;
    const bool uses_bfloat16 =
        bfloat16_wire && *format == detail::tensor_format::float32 && m_devices.size() > 1;
    const allreduce_call call{pointers, count, *format,
                              uses_bfloat16 ? detail::tensor_format::bfloat16 : *format, active};
    if (!reserve(count * detail::bytes_of(call.wire))) return false;
    try {
      enqueue(call);
    } catch (const sycl::exception&) {
      m_is_broken = true;
      return false;
    }
    return true;
  }

 private:
  using memory_handle = std::shared_ptr<std::byte>;

  /// The buffers of one device for calls of up to m_slot_bytes.
  struct buffers {
    memory_handle inbox, outbox;  // one slot per rank; this device's tensor in wire format
    memory_handle staging;        // on the host; null if devices copy directly
  };
  /// One device: its queue, its kernels, its buffers, and the events that the next call must wait for.
  struct device_state {
    device_state(const sycl::queue& device_queue, std::shared_ptr<detail::tensor_kernels> shared_kernels)
        : queue(device_queue), kernels(std::move(shared_kernels)) {}
    sycl::queue queue;
    std::shared_ptr<detail::tensor_kernels> kernels;  // one per context
    buffers current;
    std::vector<buffers> retired_buffers;  // of smaller calls that may still run
    bool is_prepared = false;
    sycl::event prepare_event;
    std::vector<sycl::event> peer_reads;        // copies out of the outbox, which the next call must wait for
    sycl::event staging_copy;                   // the copy into staging
    std::vector<sycl::event> unstaging_copies;  // copies out of staging
  };
  /// The arguments of one allreduce.
  struct allreduce_call {
    void* const* pointers;  // one per device
    std::uint64_t count;    // elements
    detail::tensor_format format, wire;
    std::uint64_t active;  // bit i: device i contributes
    bool is_active(std::size_t rank) const { return (active >> rank & 1u) != 0; }
    std::uint64_t wire_bytes() const { return count * detail::bytes_of(wire); }
  };

  /// Returns the kernels for the queue's context. They are compiled once per context, because
  /// that takes seconds.
  std::shared_ptr<detail::tensor_kernels> kernels_for(const sycl::queue& queue) const {
    for (const device_state& device : m_devices)
      if (device.queue.get_context() == queue.get_context()) return device.kernels;
    return std::make_shared<detail::tensor_kernels>(queue);
  }
  /// Enables direct copies between all devices. Returns whether that is possible. A common context is not
  /// sufficient: without peer access, such a copy fails on Level Zero. With OpenCL, DPC++ copies through
  /// host memory and frees it in a callback, which deadlocks because the free waits for the queue that
  /// runs the callback.
  bool enable_direct_copies() const {
    if (!share_context()) return false;
    for (const device_state& device : m_devices)
      for (const auto& peer : m_devices)
        if (!detail::has_peer_access(device.queue.get_device(), peer.queue.get_device())) return false;
    for (const device_state& device : m_devices)
      for (const auto& peer : m_devices)
        detail::enable_peer_access(device.queue.get_device(), peer.queue.get_device());
    return true;
  }
  bool share_context() const {
    return std::all_of(m_devices.begin(), m_devices.end(), [&](const device_state& device) {
      return device.queue.get_context() == m_devices[0].queue.get_context();
    });
  }

  // Allocates slots of `bytes` on all devices or on none. Earlier calls continue to use the old buffers.
  bool reserve(std::uint64_t bytes) {
    if (bytes <= m_slot_bytes || m_devices.size() == 1) return true;
    const std::uint64_t slot_bytes = std::max(bytes, 2 * m_slot_bytes);
    std::vector<buffers> new_buffers;
    for (device_state& device : m_devices) try {
        buffers device_buffers;
        device_buffers.inbox = allocate(device, slot_bytes * m_devices.size());
        device_buffers.outbox = allocate(device, slot_bytes);
        if (!m_is_direct) device_buffers.staging = allocate_on_host(device, slot_bytes);
        if (!device_buffers.inbox || !device_buffers.outbox || (!m_is_direct && !device_buffers.staging))
          return false;
        new_buffers.push_back(std::move(device_buffers));
      } catch (const std::exception&) {
        return false;
      }
    for (std::size_t rank = 0; rank < m_devices.size(); ++rank) {
      m_devices[rank].retired_buffers.push_back(std::move(m_devices[rank].current));
      m_devices[rank].current = std::move(new_buffers[rank]);
    }
    m_slot_bytes = slot_bytes;
    return true;
  }
  /// Allocates a block whose deleter keeps the context and frees the block. Returns null if out of memory.
  static memory_handle allocate(const device_state& device, std::uint64_t bytes) {
    const sycl::context context = device.queue.get_context();
    auto* block = static_cast<std::byte*>(sycl::malloc_device(bytes, device.queue.get_device(), context));
    if (block == nullptr) return nullptr;
    return memory_handle(block, [context](std::byte* pointer) { sycl::free(pointer, context); });
  }

  /// Allocates host memory. It is pinned only if all queues share a context, because a copy from pinned memory
  /// of another context might do nothing.
  memory_handle allocate_on_host(const device_state& device, std::uint64_t bytes) const {
    if (!share_context())
      return memory_handle(new std::byte[bytes], [](std::byte* pointer) { delete[] pointer; });
    const sycl::context context = device.queue.get_context();
    auto* block = static_cast<std::byte*>(sycl::malloc_host(bytes, context));
    if (block == nullptr) return nullptr;
    return memory_handle(block, [context](std::byte* pointer) { sycl::free(pointer, context); });
  }

  /// Enqueues the three steps: prepare the outboxes, copy, and add. Each step is enqueued on all devices
  /// before the next.
  void enqueue(const allreduce_call& call) {
    if (is_small(call)) return reduce_on_first(call);
    for (std::size_t rank = 0; rank < m_devices.size(); ++rank) prepare(call, rank);
    if (m_devices.size() > 1) m_is_direct ? copy_directly(call) : copy_through_host(call);
    for (std::size_t rank = 0; rank < m_devices.size(); ++rank) add_contributions(call, rank);
  }

  // Copies the tensor to the outbox in the wire format, because the data that peers read must not change while
  // the sum is written. The copy waits until all peers have read the outbox for the previous call.
  void prepare(const allreduce_call& call, std::size_t rank) {
    device_state& device = m_devices[rank];
    device.is_prepared = m_devices.size() > 1 && call.is_active(rank);
    if (!device.is_prepared) return;
    std::vector<sycl::event> wait_events = std::exchange(device.peer_reads, {});
    device.prepare_event = call.wire == call.format
                               ? device.queue.memcpy(device.current.outbox.get(), call.pointers[rank],
                                                     call.wire_bytes(), wait_events)
                               : device.kernels->narrow(device.queue, device.current.outbox.get(),
                                                        call.pointers[rank], call.count, wait_events);
  }

  // For small tensors, submitting the commands takes longer than moving the data. The limit has not been
  // tuned on hardware.
  bool is_small(const allreduce_call& call) const {
    constexpr std::uint64_t max_bytes = 64 << 10;
    return m_is_direct && m_devices.size() > 1 && m_devices.size() <= detail::tensor_reduction::max_sources &&
           call.wire == call.format && call.wire_bytes() <= max_bytes;
  }

  // Two commands per device: the others fill their outboxes, the first device adds them, and the others fetch
  // the sum from its outbox. Each device writes only its own memory.
  void reduce_on_first(const allreduce_call& call) {
    device_state& first = m_devices[0];
    detail::tensor_reduction sum{
        call.pointers[0], first.current.outbox.get(), {}, call.count, static_cast<std::uint32_t>(call.format)};
    if (call.is_active(0)) sum.sources[0] = call.pointers[0];
    std::vector<sycl::event> wait_events = std::exchange(first.peer_reads, {});
    for (std::size_t rank = 1; rank < m_devices.size(); ++rank) {
      prepare(call, rank);
      if (!call.is_active(rank)) continue;
      sum.sources[rank] = m_devices[rank].current.outbox.get();
      wait_events.push_back(m_devices[rank].prepare_event);
    }
    const sycl::event reduced = first.kernels->reduce(first.queue, sum, wait_events);
    // A later prepare() of these devices comes after the fetch, so their outboxes need no entry in peer_reads.
    for (std::size_t rank = 1; rank < m_devices.size(); ++rank)
      first.peer_reads.push_back(m_devices[rank].queue.memcpy(call.pointers[rank], first.current.outbox.get(),
                                                              call.wire_bytes(), {reduced}));
  }

  // Each device fetches on its own in-order queue, so the previous sum is complete and its inbox slot is free.
  void copy_directly(const allreduce_call& call) {
    for (std::size_t source_rank = 0; source_rank < m_devices.size(); ++source_rank) {
      if (!call.is_active(source_rank)) continue;
      device_state& source = m_devices[source_rank];
      for (std::size_t i = 1; i < m_devices.size(); ++i) {
        device_state& target = m_devices[(source_rank + i) % m_devices.size()];
        source.peer_reads.push_back(target.queue.memcpy(target.current.inbox.get() + source_rank * m_slot_bytes,
                                                        source.current.outbox.get(), call.wire_bytes(),
                                                        {source.prepare_event}));
      }
    }
  }

  // Events are not reliable dependencies between contexts (DPC++ 2026.2 sometimes crashes on them). The host
  // therefore waits for the copies to and from host memory. All devices send concurrently.
  void copy_through_host(const allreduce_call& call) {
    for (std::size_t source_rank = 0; source_rank < m_devices.size(); ++source_rank) {
      if (!call.is_active(source_rank)) continue;
      device_state& source = m_devices[source_rank];
      for (sycl::event& copy : source.unstaging_copies) copy.wait();
      source.unstaging_copies.clear();
      source.staging_copy =
          source.queue.memcpy(source.current.staging.get(), source.current.outbox.get(), call.wire_bytes());
    }
    for (std::size_t source_rank = 0; source_rank < m_devices.size(); ++source_rank) {
      if (!call.is_active(source_rank)) continue;
      device_state& source = m_devices[source_rank];
      source.staging_copy.wait();
      for (std::size_t i = 1; i < m_devices.size(); ++i) {
        device_state& target = m_devices[(source_rank + i) % m_devices.size()];
        source.unstaging_copies.push_back(
            target.queue.memcpy(target.current.inbox.get() + source_rank * m_slot_bytes,
                                source.current.staging.get(), call.wire_bytes()));
      }
    }
  }

  /// Adds the contributions in rank order in float32, so all devices get the same bits. Reads the device's own
  /// contribution from the outbox.
  void add_contributions(const allreduce_call& call, std::size_t rank) {
    device_state& device = m_devices[rank];
    const bool is_single = m_devices.size() == 1;
    const detail::tensor_sum sum{
        call.pointers[rank],
        is_single ? call.pointers[rank] : static_cast<void*>(device.current.outbox.get()),
        is_single ? call.pointers[rank] : static_cast<void*>(device.current.inbox.get()),
        m_slot_bytes,
        call.count,
        call.active,
        static_cast<std::uint32_t>(rank),
        static_cast<std::uint32_t>(m_devices.size()),
        static_cast<std::uint32_t>(call.wire),
        static_cast<std::uint32_t>(call.format)};
    device.kernels->add(device.queue, sum);
  }

  std::vector<device_state> m_devices;
  std::uint64_t m_slot_bytes = 0;  // capacity for one tensor in wire format; grows
  bool m_is_direct = true;         // no tensor goes through the host
  bool m_is_broken = false;        // commands of a call were submitted only in part
};

/// Returns the engine of tensor_parallel.h for SYCL queues. It is for C programs and for inference engines that
/// load Isthmus. Streams are pointers to sycl::queue objects, which the engine copies. Supports all SYCL
/// devices that can access USM of their own context.
/// @code
/// isthmus_tensor_parallel_options options{};
/// options.engine = isthmus::sycl_tensor_parallel_engine();
/// @endcode
/// @return A static object.
/// Thread safety: any thread.
inline const isthmus_tensor_parallel_engine* sycl_tensor_parallel_engine() {
  static const isthmus_tensor_parallel_engine engine = {
      .struct_bytes = sizeof(isthmus_tensor_parallel_engine),
      .abi_version = ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI,
      .platforms = (1u << ISTHMUS_PLATFORM_COUNT) - 1,
      .name = "sycl",
      .open = [](int n, const isthmus_device*, const isthmus_stream* streams, double, char* reason,
                 std::size_t bytes) -> void* {
        try {
          std::vector<sycl::queue> queues;
          for (int i = 0; i < n; ++i) {
            if (streams[i] == nullptr)
              throw std::invalid_argument("tensor_parallel: streams[" + std::to_string(i) +
                                          "] is NULL; pass a pointer to a sycl::queue");
            queues.push_back(*static_cast<sycl::queue*>(streams[i]));
          }
          return new tensor_parallel(queues);
        } catch (const std::exception& failure) {
          std::snprintf(reason, bytes, "%s", failure.what());
          return nullptr;
        }
      },
      .allreduce =
          [](void* state, void* const* pointers, std::uint64_t count, isthmus_datatype datatype,
             std::uint64_t active, isthmus_tensor_parallel_algorithm, bool bfloat16_wire) {
            return static_cast<tensor_parallel*>(state)->allreduce(pointers, count, datatype, active,
                                                                   bfloat16_wire);
          },
      .close = [](void* state) { delete static_cast<tensor_parallel*>(state); }};
  return &engine;
}

}  // namespace isthmus

#endif
