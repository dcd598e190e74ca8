// Tensor parallelism on any SYCL devices: what isthmus/tensor_parallel.h does with peer-memory kernels, done
// with copies and one adding kernel that are chained by events. SYCL 2020; header-only.
//
//   isthmus::tensor_parallel sum(queues);                       // one in-order queue for each device
//   sum.allreduce(pointers, count);                             // true: enqueued on every queue
//
// or, from C, as the engine of the trio: options.engine = isthmus::sycl_tensor_parallel_engine(), streams are
// sycl::queue pointers.
//
// Every device fetches the tensors of all others, then adds all of them in rank order in float32: sums are
// bit-identical everywhere. Devices of one context that reach each other's memory copy directly and the host
// does not wait. Between contexts a copy of raw memory does nothing and says nothing, and between devices
// without peer access it fails or hangs: there the tensors go through host memory and the host waits for them,
// so give the queues one context where the platform allows it.
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

/// Sums a tensor over the SYCL devices of one process, for engines that hold one in-order queue for each
/// device.
///
/// Every device fetches the tensors of all others and adds all of them in rank order in float32, so sums are
/// bit-identical everywhere and the same in every run. Devices of one context that reach each other's memory
/// (peer access) copy directly and the host does not wait; elsewhere the tensors go through host memory and the
/// host waits.
///
/// Threads. One thread at a time for one object; objects are independent. Memory: on each device one slot for
/// each device and one for the own tensor, of the size of the largest call so far.
/// @code
/// isthmus::tensor_parallel sum(queues);
/// if (!sum.allreduce(pointers, count)) use_another_way();
/// queues[0].memcpy(result, pointers[0], bytes).wait();   // later work of every queue sees the sum
/// @endcode
class tensor_parallel {
 public:
  /// Compiles the kernels; under a compiler that is no SYCL compiler at run time, which takes DPC++ two seconds
  /// for each context (SYCL_CACHE_PERSISTENT=1 keeps the result).
  /// @param queues One in-order queue for each device, at most 16; copies of a queue are the same queue.
  /// @throws std::invalid_argument For no or more than 16 queues and for one that is not in order.
  /// @throws sycl::exception What the runtime reports while it compiles.
  explicit tensor_parallel(const std::vector<sycl::queue>& queues) {
    if (queues.empty() || queues.size() > 16)
      throw std::invalid_argument("tensor_parallel: 1 to 16 queues are possible");
    for (const sycl::queue& queue : queues) {
      if (!queue.is_in_order()) throw std::invalid_argument("tensor_parallel: every queue must be in order");
      m_devices.emplace_back(queue, kernels_for(queue));
    }
    m_is_direct = enable_direct_copies();
  }

  /// Waits for what was enqueued, then frees the slots.
  ~tensor_parallel() {
    for (device_state& device : m_devices) try {
        device.queue.wait();
      } catch (const sycl::exception&) {  // NOLINT(bugprone-empty-catch): the queue's owner hears of it, too
      }
  }
  tensor_parallel(const tensor_parallel&) = delete;
  tensor_parallel& operator=(const tensor_parallel&) = delete;

  /// pointers[i][0..count) becomes the sum over the devices whose bit is set in `active`; the others count as
  /// zeros whatever they hold. Starts after the earlier work of each queue. The host does not wait where the
  /// devices copy directly.
  /// @param pointers One tensor for each queue: USM that device i can use; in place.
  /// @param count Elements, equal on all devices; 0 is true at once.
  /// @param datatype float32, float16 or bfloat16; 16-bit sums are added in float32 and rounded once.
  /// @param active Bit i: device i has something to add; ISTHMUS_ALL_ACTIVE for all.
  /// @param bfloat16_wire float32 travels as bfloat16: half the bytes. Every contribution, the own one too, and
  ///   the sum are rounded to nearest even.
  /// @return True: enqueued on every queue, later work of it sees the sum. False: nothing was or will be
  ///   touched, because of no memory, another datatype, or an exception of the runtime in an earlier call,
  ///   after which every further call gives false.
  bool allreduce(void* const* pointers, std::uint64_t count, isthmus_datatype datatype = ISTHMUS_FLOAT32,
                 std::uint64_t active = ISTHMUS_ALL_ACTIVE, bool bfloat16_wire = false) {
    const auto format = detail::tensor_format_of(datatype);
    if (!format || m_is_broken) return false;
    if (count == 0) return true;
    const bool narrow = bfloat16_wire && *format == detail::tensor_format::float32 && m_devices.size() > 1;
    const allreduce_call call{pointers, count, *format, narrow ? detail::tensor_format::bfloat16 : *format, active};
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

  /// What one device has for calls of up to m_slot_bytes.
  struct buffers {
    memory_handle inbox, outbox;  // one slot for each rank; the own tensor as it is sent
    memory_handle staging;        // on the host; null where devices copy directly
  };
  /// One device: its queue, its kernels, its buffers, and what the next call must come after.
  struct device_state {
    device_state(const sycl::queue& device_queue, std::shared_ptr<detail::tensor_kernels> shared_kernels)
        : queue(device_queue), kernels(std::move(shared_kernels)) {}
    sycl::queue queue;
    std::shared_ptr<detail::tensor_kernels> kernels;  // one for each context
    buffers current;
    std::vector<buffers> retired;  // of smaller calls that may be in flight
    bool is_prepared = false;
    sycl::event prepared;
    std::vector<sycl::event> peer_reads;  // copies out of the outbox that the next call must not overtake
    sycl::event staging_copy;                       // the copy into the staging
    std::vector<sycl::event> unstaging_copies;        // copies out of it
  };
  /// One allreduce: what every step of it needs to know.
  struct allreduce_call {
    void* const* pointers;  // one for each device
    std::uint64_t count;    // elements
    detail::tensor_format format, wire;
    std::uint64_t active;  // bit i: device i adds something
    bool is_active(std::size_t rank) const { return (active >> rank & 1u) != 0; }
    std::uint64_t wire_bytes() const { return count * detail::bytes_of(wire); }
  };

  /// Compiled once for each context, which takes seconds.
  std::shared_ptr<detail::tensor_kernels> kernels_for(const sycl::queue& queue) const {
    for (const device_state& device : m_devices)
      if (device.queue.get_context() == queue.get_context()) return device.kernels;
    return std::make_shared<detail::tensor_kernels>(queue);
  }
  /// Whether every device can copy from every other; makes it so. A context in common is not enough: without
  /// peer access such a copy ends in an error on Level Zero, and DPC++'s OpenCL makes it through host memory
  /// which it frees in a callback, where the free waits for the very queue that calls back
  /// (docs/notes/2026-11-23-llama-sycl.md).
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

  // Makes room for slots of `bytes`, on all devices or on none. Earlier calls go on using what they had.
  bool reserve(std::uint64_t bytes) {
    if (bytes <= m_slot_bytes || m_devices.size() == 1) return true;
    const std::uint64_t slot = std::max(bytes, 2 * m_slot_bytes);
    std::vector<buffers> new_buffers;
    for (device_state& device : m_devices) try {
        buffers device_buffers;
        device_buffers.inbox = allocate(device, slot * m_devices.size());
        device_buffers.outbox = allocate(device, slot);
        if (!m_is_direct) device_buffers.staging = allocate_on_host(device, slot);
        if (!device_buffers.inbox || !device_buffers.outbox || (!m_is_direct && !device_buffers.staging)) return false;
        new_buffers.push_back(std::move(device_buffers));
      } catch (const std::exception&) {
        return false;
      }
    for (std::size_t rank = 0; rank < m_devices.size(); ++rank) {
      m_devices[rank].retired.push_back(std::move(m_devices[rank].current));
      m_devices[rank].current = std::move(new_buffers[rank]);
    }
    m_slot_bytes = slot;
    return true;
  }
  /// A block with its context, which frees it; null where there is no memory.
  static memory_handle allocate(const device_state& device, std::uint64_t bytes) {
    const sycl::context context = device.queue.get_context();
    auto* block = static_cast<std::byte*>(sycl::malloc_device(bytes, device.queue.get_device(), context));
    if (block == nullptr) return nullptr;
    return memory_handle(block, [context](std::byte* pointer) { sycl::free(pointer, context); });
  }

  /// Pinned where every queue's context knows it: elsewhere a copy of it might do nothing, and plain memory is
  /// right.
  memory_handle allocate_on_host(const device_state& device, std::uint64_t bytes) const {
    if (!share_context()) return memory_handle(new std::byte[bytes], [](std::byte* pointer) { delete[] pointer; });
    const sycl::context context = device.queue.get_context();
    auto* block = static_cast<std::byte*>(sycl::malloc_host(bytes, context));
    if (block == nullptr) return nullptr;
    return memory_handle(block, [context](std::byte* pointer) { sycl::free(pointer, context); });
  }

  /// Three steps, each on all devices before the next: prepare the outboxes, move, add.
  void enqueue(const allreduce_call& call) {
    for (std::size_t rank = 0; rank < m_devices.size(); ++rank) prepare(call, rank);
    if (m_devices.size() > 1) m_is_direct ? copy_directly(call) : copy_through_host(call);
    for (std::size_t rank = 0; rank < m_devices.size(); ++rank) add_contributions(call, rank);
  }

  // The tensor as it travels, in the outbox: what is sent must not change while the own sum is written.
  // Nothing overwrites the outbox before all have read it for the call before.
  void prepare(const allreduce_call& call, std::size_t rank) {
    device_state& device = m_devices[rank];
    device.is_prepared = m_devices.size() > 1 && call.is_active(rank);
    if (!device.is_prepared) return;
    std::vector<sycl::event> wait_events = std::exchange(device.peer_reads, {});
    device.prepared =
        call.wire == call.format
            ? device.queue.memcpy(device.current.outbox.get(), call.pointers[rank], call.wire_bytes(), wait_events)
            : device.kernels->narrow(device.queue, device.current.outbox.get(), call.pointers[rank], call.count, wait_events);
  }

  // Each device fetches on its own queue, so that a slot of its inbox is free: the sum before has been added.
  void copy_directly(const allreduce_call& call) {
    for (std::size_t source_rank = 0; source_rank < m_devices.size(); ++source_rank) {
      if (!call.is_active(source_rank)) continue;
      device_state& source = m_devices[source_rank];
      for (std::size_t i = 1; i < m_devices.size(); ++i) {
        device_state& target = m_devices[(source_rank + i) % m_devices.size()];
        source.peer_reads.push_back(target.queue.memcpy(target.current.inbox.get() + source_rank * m_slot_bytes,
                                                            source.current.outbox.get(), call.wire_bytes(),
                                                            {source.prepared}));
      }
    }
  }

  // Between contexts events are no safe dependencies either (DPC++ 2026.2 crashes on them now and then), so
  // here the host waits for the tensors to be in its memory, and for the copies out of it. All devices send at
  // a time.
  void copy_through_host(const allreduce_call& call) {
    for (std::size_t source_rank = 0; source_rank < m_devices.size(); ++source_rank) {
      if (!call.is_active(source_rank)) continue;
      device_state& source = m_devices[source_rank];
      for (sycl::event& copied : source.unstaging_copies) copied.wait();
      source.unstaging_copies.clear();
      source.staging_copy = source.queue.memcpy(source.current.staging.get(), source.current.outbox.get(), call.wire_bytes());
    }
    for (std::size_t source_rank = 0; source_rank < m_devices.size(); ++source_rank) {
      if (!call.is_active(source_rank)) continue;
      device_state& source = m_devices[source_rank];
      source.staging_copy.wait();
      for (std::size_t i = 1; i < m_devices.size(); ++i) {
        device_state& target = m_devices[(source_rank + i) % m_devices.size()];
        source.unstaging_copies.push_back(target.queue.memcpy(target.current.inbox.get() + source_rank * m_slot_bytes,
                                                      source.current.staging.get(), call.wire_bytes()));
      }
    }
  }

  /// Slots in rank order in float32, the own one from the outbox: the same bits on every device.
  void add_contributions(const allreduce_call& call, std::size_t rank) {
    device_state& device = m_devices[rank];
    const bool is_single = m_devices.size() == 1;
    const detail::tensor_sum sum{call.pointers[rank],
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
  std::uint64_t m_slot_bytes = 0;  // room for one tensor on the wire; grows
  bool m_is_direct = true;         // so nothing goes through the host
  bool m_is_broken = false;           // commands of a call were only partly submitted
};

/// The engine of tensor_parallel.h for SYCL queues, for C and for engines that load Isthmus: streams are
/// pointers to sycl::queue objects, of which it keeps copies. Devices of any SYCL platform that reach USM of
/// their own context.
/// @code
/// isthmus_tensor_parallel_options options{};
/// options.engine = isthmus::sycl_tensor_parallel_engine();
/// @endcode
/// @return A static object; any thread.
inline const isthmus_tensor_parallel_engine* sycl_tensor_parallel_engine() {
  static const isthmus_tensor_parallel_engine engine = {
      sizeof(isthmus_tensor_parallel_engine),
      ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI,
      (1u << ISTHMUS_PLATFORM_COUNT) - 1,
      "sycl",
      [](int n, const isthmus_device*, const isthmus_stream* streams, double, char* reason,
         std::size_t bytes) -> void* {
        try {
          std::vector<sycl::queue> queues;
          for (int i = 0; i < n; ++i) {
            if (streams[i] == nullptr)
              throw std::invalid_argument("a stream is NULL; it must point to a sycl::queue");
            queues.push_back(*static_cast<sycl::queue*>(streams[i]));
          }
          return new tensor_parallel(queues);
        } catch (const std::exception& failure) {
          std::snprintf(reason, bytes, "%s", failure.what());
          return nullptr;
        }
      },
      [](void* state, void* const* pointers, std::uint64_t count, isthmus_datatype datatype,
         std::uint64_t active, isthmus_shots, bool bfloat16_wire) {
        return static_cast<tensor_parallel*>(state)->allreduce(pointers, count, datatype, active,
                                                               bfloat16_wire);
      },
      [](void* state) { delete static_cast<tensor_parallel*>(state); }};
  return &engine;
}

}  // namespace isthmus

#endif
