// Tensor parallelism on any SYCL devices: what isthmus/tensor_parallel.h does with peer-memory kernels, done
// with copies and one adding kernel that are chained by events. SYCL 2020; header-only.
//
//   isthmus::tensor_parallel sum(queues);                       // one in-order queue for each device
//   sum.allreduce(pointers, count);                             // true: enqueued on every queue
//
// or, from C, as the engine of the trio: options.engine = isthmus::sycl_tensor_parallel_engine(), streams are
// sycl::queue pointers.
//
// Every device sends its tensor to all others, then adds all of them in rank order in float32: sums are
// bit-identical everywhere. The host does not wait. Devices of one context copy directly; between contexts a
// copy of raw memory does nothing and says nothing, so those go through host memory, in two steps.
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
#include <vector>

namespace isthmus {

class tensor_parallel {
 public:
  // Throws std::invalid_argument for no or more than 16 queues and for one that is not in order; compiles the
  // kernels. Copies of queues are the same queues.
  explicit tensor_parallel(const std::vector<sycl::queue>& queues) {
    if (queues.empty() || queues.size() > 16)
      throw std::invalid_argument("tensor_parallel: 1 to 16 queues are possible");
    for (const sycl::queue& queue : queues) {
      if (!queue.is_in_order()) throw std::invalid_argument("tensor_parallel: every queue must be in order");
      m_seats.emplace_back(queue);
    }
  }

  // Waits for what was enqueued.
  ~tensor_parallel() {
    for (seat& seat : m_seats) try {
        seat.queue.wait();
        seat.copies.wait();
      } catch (const sycl::exception&) {  // the queue's owner hears of it, too
      }
  }
  tensor_parallel(const tensor_parallel&) = delete;
  tensor_parallel& operator=(const tensor_parallel&) = delete;

  // pointers[i][0..count), USM that device i can use, becomes the sum over the devices whose bit is set in
  // `active`; the others count as zeros whatever they hold. float32, float16 and bfloat16. On true, later work
  // on each queue sees the sum. On false nothing was or will be touched: no memory, or another datatype.
  // After an exception of the runtime while commands were being submitted every further call gives false.
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

  struct buffers {
    memory inbox, outbox;            // one slot for each rank; the own tensor as it is sent
    std::vector<std::byte> staging;  // on the host; empty where all devices share a context
  };
  struct seat {
    explicit seat(const sycl::queue& given)
        : queue(given),
          copies(given.get_context(), given.get_device(), sycl::property::queue::in_order{}),
          kernels(given) {}
    sycl::queue queue, copies;
    detail::tensor_kernels kernels;
    buffers now;
    std::vector<buffers> retired;  // of smaller calls that may be in flight
    sycl::event added;             // the latest sum here: what it read and sent may be overwritten after it
    std::vector<sycl::event> received, sent;
  };
  struct call {
    void* const* pointers;
    std::uint64_t count;
    detail::tensor_format format, wire;
    std::uint64_t active;
    bool is_active(std::size_t rank) const { return (active >> rank & 1u) != 0; }
    std::uint64_t wire_bytes() const { return count * detail::bytes_of(wire); }
  };

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
    const bool staged = !share_context();
    for (seat& seat : m_seats) try {
        buffers fresh;
        fresh.inbox = allocate(seat, slot * m_seats.size());
        fresh.outbox = allocate(seat, slot);
        if (!fresh.inbox || !fresh.outbox) return false;
        if (staged) fresh.staging.resize(slot);
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
  static memory allocate(const seat& seat, std::uint64_t bytes) {
    const sycl::context context = seat.queue.get_context();
    auto* made = static_cast<std::byte*>(sycl::malloc_device(bytes, seat.queue.get_device(), context));
    if (made == nullptr) return nullptr;
    return memory(made, [context](std::byte* pointer) { sycl::free(pointer, context); });
  }

  void enqueue(const call& what) {
    std::vector<sycl::event> ready;
    for (std::size_t rank = 0; rank < m_seats.size(); ++rank) ready.push_back(prepare(what, rank));
    if (m_seats.size() > 1)
      for (std::size_t from = 0; from < m_seats.size(); ++from)
        if (what.is_active(from)) send(what, from, ready[from]);
    for (std::size_t rank = 0; rank < m_seats.size(); ++rank) add(what, rank);
  }

  // The tensor as it travels, in the outbox: what is sent must not change while the own sum is written.
  sycl::event prepare(const call& what, std::size_t rank) {
    seat& seat = m_seats[rank];
    seat.received.clear();
    seat.sent.clear();
    if (m_seats.size() == 1 || !what.is_active(rank)) return {};
    if (what.wire == what.format)
      return seat.queue.memcpy(seat.now.outbox.get(), what.pointers[rank], what.wire_bytes());
    return seat.kernels.narrow(seat.queue, seat.now.outbox.get(), what.pointers[rank], what.count);
  }

  void send(const call& what, std::size_t from, const sycl::event& ready) {
    seat& source = m_seats[from];
    sycl::event staged;
    bool is_staged = false;
    for (std::size_t i = 1; i < m_seats.size(); ++i) {
      const std::size_t to = (from + i) % m_seats.size();
      seat& target = m_seats[to];
      std::byte* slot = target.now.inbox.get() + from * m_slot_bytes;
      sycl::event copied;
      if (source.queue.get_context() == target.queue.get_context()) {
        copied = source.copies.memcpy(slot, source.now.outbox.get(), what.wire_bytes(), {ready, target.added});
      } else {
        if (!is_staged) {
          std::vector<sycl::event> before{ready};  // the last call's staging must have been read everywhere
          for (const seat& each : m_seats) before.push_back(each.added);
          staged = source.copies.memcpy(source.now.staging.data(), source.now.outbox.get(), what.wire_bytes(),
                                        before);
          is_staged = true;
        }
        copied =
            target.copies.memcpy(slot, source.now.staging.data(), what.wire_bytes(), {staged, target.added});
      }
      target.received.push_back(copied);
      source.sent.push_back(copied);
    }
  }

  // Also waits for what this device sent, so that the next call may fill the outbox.
  void add(const call& what, std::size_t rank) {
    seat& seat = m_seats[rank];
    std::vector<sycl::event> before = seat.received;
    before.insert(before.end(), seat.sent.begin(), seat.sent.end());
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
    seat.added = seat.kernels.add(seat.queue, sum, before);
  }

  std::vector<seat> m_seats;
  std::uint64_t m_slot_bytes = 0;
  bool m_broken = false;
};

// The engine of tensor_parallel.h for SYCL queues: streams are pointers to sycl::queue objects, of which it
// keeps copies. Devices of any SYCL platform that reach USM of their own context.
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
