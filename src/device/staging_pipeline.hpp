// Runs operations on device buffers through host memory. A transport executes each step on the host. While it
// executes one step, the next step is copied in and the previous one is copied out. Large element-wise collectives
// are divided into chunks for this overlap.
//
// Ordering: the sequence of steps is equal on all ranks. It does not depend on anything that only one rank knows,
//   such as the other operations of its group or whether its buffers are in place. Each rank chooses independently
//   which memory it passes to a step.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/block_map.hpp"
#include "device/driver.hpp"
#include "device/owned.hpp"
#include "device/stream_gate.hpp"

namespace isthmus {

// Elements per chunk. `bytes_per_element` counts the bytes of all blocks together. A sufficiently large message
// is divided into several chunks, because a single chunk overlaps with nothing.
std::uint64_t chunk_elements(std::uint64_t count, std::uint64_t bytes_per_element, std::uint64_t chunk_bytes);

// Reads the option `chunk_bytes` of `backend`. Its value is equal on all ranks, because the runtime compares the
// options of all ranks. Errors: reports a value that is not a number or less than `min_bytes`.
isthmus_status read_chunk_bytes(const isthmus_backend_context& context, const char* backend,
                                std::uint64_t default_bytes, std::uint64_t min_bytes, std::uint64_t& bytes);

// Executes steps on the host. Errors: functions may throw.
class staging_transport {
 public:
  virtual ~staging_transport() = default;
  // Blocking: runs a collective.
  virtual void run(const isthmus_operation& step) = 0;
  // Starts the send and recv operations of a group. finish_messages blocks until they are complete.
  virtual void start_messages(std::span<const isthmus_operation> messages) = 0;
  virtual void finish_messages() = 0;
  // Returns true if steps of this collective, datatype and reduction operation accept device buffers. They are
  // then not divided into chunks. The result must be equal on all ranks.
  virtual bool accepts_device_buffers(const isthmus_operation&) const { return false; }
  // Returns true if this rank's buffers must be staged nevertheless.
  virtual bool needs_staging(const isthmus_operation&, const block_map&) const { return false; }
};

// on_demand: grows if a step needs more memory. never: chunk_bytes are allocated in advance, and larger steps use
// pageable memory, because an allocation of pinned memory can wait for the work of the device.
enum class pinned_growth { on_demand, never };

// Pinned host memory for the data of one step.
class pinned_buffer {
 public:
  pinned_buffer(device_driver& driver, pinned_growth growth, std::uint64_t chunk_bytes);
  // Returns memory for a step. Equal sizes return the same address; a larger size discards the contents.
  std::byte* reserve(std::uint64_t bytes);

 private:
  device_driver* m_driver;
  pinned_growth m_growth;
  owned_pinned m_pinned;
  std::vector<std::byte> m_pageable;
};

// Errors: functions throw isthmus::error, or what the transport throws.
// Thread safety: one thread at a time.
class staging_pipeline {
 public:
  // `driver` is NULL on the platform `host`; the transport then gets the caller's buffers. `backend` is the name
  // in error messages. The transport must outlive the pipeline.
  staging_pipeline(const isthmus_backend_context& context, device_driver* driver, const char* backend,
                   staging_transport& transport, pinned_growth growth, std::uint64_t chunk_bytes);

  ~staging_pipeline() { drain(); }
  staging_pipeline(const staging_pipeline&) = delete;
  staging_pipeline& operator=(const staging_pipeline&) = delete;

  // Precondition: there is a device.
  stream_gate& gate() { return m_device->gate; }
  // Blocking: waits for the earlier work of the stream. Does nothing without a device.
  void enter(isthmus_stream stream);

  // Precondition of the functions below: the streams of the operations have reached them.
  // Blocking: the buffers can be reused, and results are complete.
  void run_collective(const isthmus_operation& operation);
  // Starts the point-to-point operations of a group and ignores all others. Collectives may run before
  // finish_messages, which blocks until the results are complete.
  void start_messages(std::span<const isthmus_operation> operations);
  void finish_messages();
  // After a failure: waits for the copies that have started, because they access the caller's buffers.
  void drain() noexcept;

 private:
  static constexpr std::size_t slots = 2;

  // One call of the transport. The operation contains the caller's pointers.
  struct staging_step {
    isthmus_operation operation;
    block_map blocks;
    bool is_staged = false;
    std::uint64_t in_bytes = 0;   // copied before the call
    std::uint64_t out_bytes = 0;  // copied after the call
    const std::byte* result = nullptr;
  };
  // Streams, events and memory for copies between device and host.
  struct device_lane {
    device_lane(const isthmus_backend_context& context, device_driver& platform_driver, const char* backend,
                pinned_growth growth, std::uint64_t chunk_bytes);
    device_driver& driver;
    int ordinal;
    owned_stream in_stream, out_stream;
    owned_event copy_in_event;
    std::array<owned_event, slots> copy_out_events;
    stream_gate gate;
    std::array<pinned_buffer, slots> send, recv;
    pinned_buffer message_send, message_recv;
  };

  staging_step make_step(const isthmus_operation& operation) const;
  std::vector<staging_step> split_into_steps(const isthmus_operation& operation) const;
  void copy_in(const staging_step& step, std::size_t slot);
  void call_transport(staging_step& step, std::size_t slot);
  void copy_out(const staging_step& step, native_event event);
  void wait_for_copy_out(const staging_step& step, std::size_t slot);
  void copy(void* destination, const void* source, std::uint64_t bytes, native_stream stream);
  std::vector<isthmus_operation> stage_messages();

  const isthmus_backend_context& m_context;
  staging_transport& m_transport;
  std::uint64_t m_chunk_bytes;
  std::unique_ptr<device_lane> m_device;
  std::vector<staging_step> m_messages;
};

}  // namespace isthmus
