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
      m_seats.emplace_back(queue, kernels_for(queue));
    }
    m_is_direct = reach_each_other();
  }

  /// Waits for what was enqueued, then frees the slots.
  ~tensor_parallel() {
    for (seat& seat : m_seats) try {
        seat.queue.wait();
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
    if (!format || m_broken) return false;
    if (count == 0) return true;
    const bool narrow = bfloat16_wire && *format == detail::tensor_format::float32 && m_seats.size() > 1;
    const call what{pointers, count, *format, narrow ? detail::tensor_format::bfloat16 : *format, active};
    if (!reserve(count * detail::bytes_of(what.wire))) return false;
    try {
      enqueue(what);
    } catch (const sycl::exception&) {
      m_broken = true;
      return false;
    }
    return true;
  }

 private:
  using memory = std::shared_ptr<std::byte>;

  /// What one device has for calls of up to m_slot_bytes.
  struct buffers {
    memory inbox, outbox;  // one slot for each rank; the own tensor as it is sent
    memory staging;        // on the host; null where devices copy directly
  };
  /// One device: its queue, its kernels, its buffers, and what the next call must come after.
  struct seat {
    seat(const sycl::queue& given, std::shared_ptr<detail::tensor_kernels> shared)
        : queue(given), kernels(std::move(shared)) {}
    sycl::queue queue;
    std::shared_ptr<detail::tensor_kernels> kernels;  // one for each context
    buffers now;
    std::vector<buffers> retired;  // of smaller calls that may be in flight
    bool is_prepared = false;
    sycl::event prepared;
    std::vector<sycl::event> read_by_others;  // copies out of the outbox that the next call must not overtake
    sycl::event staged;                       // the copy into the staging
    std::vector<sycl::event> unstaged;        // copies out of it
  };
  /// One allreduce: what every step of it needs to know.
  struct call {
    void* const* pointers;  // one for each device
    std::uint64_t count;    // elements
    detail::tensor_format format, wire;
    std::uint64_t active;  // bit i: device i adds something
    bool is_active(std::size_t rank) const { return (active >> rank & 1u) != 0; }
    std::uint64_t wire_bytes() const { return count * detail::bytes_of(wire); }
  };

  /// Compiled once for each context, which takes seconds.
  std::shared_ptr<detail::tensor_kernels> kernels_for(const sycl::queue& queue) const {
    for (const seat& each : m_seats)
      if (each.queue.get_context() == queue.get_context()) return each.kernels;
    return std::make_shared<detail::tensor_kernels>(queue);
  }
  /// Whether every device can copy from every other; makes it so. A context in common is not enough: without
  /// peer access such a copy ends in an error on Level Zero, and DPC++'s OpenCL makes it through host memory
  /// which it frees in a callback, where the free waits for the very queue that calls back
  /// (docs/notes/2026-11-23-llama-sycl.md).
  bool reach_each_other() const {
    if (!share_context()) return false;
    for (const seat& seat : m_seats)
      for (const auto& other : m_seats)
        if (!detail::has_peer_access(seat.queue.get_device(), other.queue.get_device())) return false;
    for (const seat& seat : m_seats)
      for (const auto& other : m_seats)
        detail::enable_peer_access(seat.queue.get_device(), other.queue.get_device());
    return true;
  }
  bool share_context() const {
    return std::all_of(m_seats.begin(), m_seats.end(), [&](const seat& each) {
      return each.queue.get_context() == m_seats[0].queue.get_context();
    });
  }

  // Makes room for slots of `bytes`, on all devices or on none. Earlier calls go on using what they had.
  bool reserve(std::uint64_t bytes) {
    if (bytes <= m_slot_bytes || m_seats.size() == 1) return true;
    const std::uint64_t slot = std::max(bytes, 2 * m_slot_bytes);
    std::vector<buffers> made;
    for (seat& seat : m_seats) try {
        buffers fresh;
        fresh.inbox = allocate(seat, slot * m_seats.size());
        fresh.outbox = allocate(seat, slot);
        if (!m_is_direct) fresh.staging = allocate_on_host(seat, slot);
        if (!fresh.inbox || !fresh.outbox || (!m_is_direct && !fresh.staging)) return false;
        made.push_back(std::move(fresh));
      } catch (const std::exception&) {
        return false;
      }
    for (std::size_t rank = 0; rank < m_seats.size(); ++rank) {
      m_seats[rank].retired.push_back(std::move(m_seats[rank].now));
      m_seats[rank].now = std::move(made[rank]);
    }
    m_slot_bytes = slot;
    return true;
  }
  /// A block with its context, which frees it; null where there is no memory.
  static memory allocate(const seat& seat, std::uint64_t bytes) {
    const sycl::context context = seat.queue.get_context();
    auto* made = static_cast<std::byte*>(sycl::malloc_device(bytes, seat.queue.get_device(), context));
    if (made == nullptr) return nullptr;
    return memory(made, [context](std::byte* pointer) { sycl::free(pointer, context); });
  }

  /// Pinned where every queue's context knows it: elsewhere a copy of it might do nothing, and plain memory is
  /// right.
  memory allocate_on_host(const seat& seat, std::uint64_t bytes) const {
    if (!share_context()) return memory(new std::byte[bytes], [](std::byte* pointer) { delete[] pointer; });
    const sycl::context context = seat.queue.get_context();
    auto* made = static_cast<std::byte*>(sycl::malloc_host(bytes, context));
    if (made == nullptr) return nullptr;
    return memory(made, [context](std::byte* pointer) { sycl::free(pointer, context); });
  }

  /// Three steps, each on all devices before the next: prepare the outboxes, move, add.
  void enqueue(const call& what) {
    for (std::size_t rank = 0; rank < m_seats.size(); ++rank) prepare(what, rank);
    if (m_seats.size() > 1) m_is_direct ? send(what) : send_through_host(what);
    for (std::size_t rank = 0; rank < m_seats.size(); ++rank) add(what, rank);
  }

  // The tensor as it travels, in the outbox: what is sent must not change while the own sum is written.
  // Nothing overwrites the outbox before all have read it for the call before.
  void prepare(const call& what, std::size_t rank) {
    seat& seat = m_seats[rank];
    seat.is_prepared = m_seats.size() > 1 && what.is_active(rank);
    if (!seat.is_prepared) return;
    std::vector<sycl::event> before = std::exchange(seat.read_by_others, {});
    seat.prepared =
        what.wire == what.format
            ? seat.queue.memcpy(seat.now.outbox.get(), what.pointers[rank], what.wire_bytes(), before)
            : seat.kernels->narrow(seat.queue, seat.now.outbox.get(), what.pointers[rank], what.count, before);
  }

  // Each device fetches on its own queue, so that a slot of its inbox is free: the sum before has been added.
  void send(const call& what) {
    for (std::size_t from = 0; from < m_seats.size(); ++from) {
      if (!what.is_active(from)) continue;
      seat& source = m_seats[from];
      for (std::size_t i = 1; i < m_seats.size(); ++i) {
        seat& target = m_seats[(from + i) % m_seats.size()];
        source.read_by_others.push_back(target.queue.memcpy(target.now.inbox.get() + from * m_slot_bytes,
                                                            source.now.outbox.get(), what.wire_bytes(),
                                                            {source.prepared}));
      }
    }
  }

  // Between contexts events are no safe dependencies either (DPC++ 2026.2 crashes on them now and then), so
  // here the host waits for the tensors to be in its memory, and for the copies out of it. All devices send at
  // a time.
  void send_through_host(const call& what) {
    for (std::size_t from = 0; from < m_seats.size(); ++from) {
      if (!what.is_active(from)) continue;
      seat& source = m_seats[from];
      for (sycl::event& copied : source.unstaged) copied.wait();
      source.unstaged.clear();
      source.staged = source.queue.memcpy(source.now.staging.get(), source.now.outbox.get(), what.wire_bytes());
    }
    for (std::size_t from = 0; from < m_seats.size(); ++from) {
      if (!what.is_active(from)) continue;
      seat& source = m_seats[from];
      source.staged.wait();
      for (std::size_t i = 1; i < m_seats.size(); ++i) {
        seat& target = m_seats[(from + i) % m_seats.size()];
        source.unstaged.push_back(target.queue.memcpy(target.now.inbox.get() + from * m_slot_bytes,
                                                      source.now.staging.get(), what.wire_bytes()));
      }
    }
  }

  /// Slots in rank order in float32, the own one from the outbox: the same bits on every device.
  void add(const call& what, std::size_t rank) {
    seat& seat = m_seats[rank];
    const bool alone = m_seats.size() == 1;
    const detail::tensor_sum sum{what.pointers[rank],
                                 alone ? what.pointers[rank] : static_cast<void*>(seat.now.outbox.get()),
                                 alone ? what.pointers[rank] : static_cast<void*>(seat.now.inbox.get()),
                                 m_slot_bytes,
                                 what.count,
                                 what.active,
                                 static_cast<std::uint32_t>(rank),
                                 static_cast<std::uint32_t>(m_seats.size()),
                                 static_cast<std::uint32_t>(what.wire),
                                 static_cast<std::uint32_t>(what.format)};
    seat.kernels->add(seat.queue, sum);
  }

  std::vector<seat> m_seats;
  std::uint64_t m_slot_bytes = 0;  // room for one tensor on the wire; grows
  bool m_is_direct = true;         // so nothing goes through the host
  bool m_broken = false;           // commands of a call were only partly submitted
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
