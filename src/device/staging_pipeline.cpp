#include "device/staging_pipeline.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus {
namespace {

// True if the collective can be divided into chunks of elements, each a separate call.
bool is_elementwise(const collective_row& row) {
  return row.send_extent == extent::count && row.recv_extent == extent::count && row.peer != peer_kind::peer;
}

const void* add_offset(const void* buffer, std::uint64_t bytes) {
  return buffer == nullptr ? nullptr : static_cast<const std::byte*>(buffer) + bytes;
}

}  // namespace

std::uint64_t chunk_elements(std::uint64_t count, std::uint64_t bytes_per_element, std::uint64_t chunk_bytes) {
  constexpr std::uint64_t min_chunks = 4,
                          min_bytes = 1 << 20;  // with smaller chunks, the overhead exceeds the gain
  const std::uint64_t bytes = std::max(min_bytes, count * bytes_per_element / min_chunks);
  return std::max<std::uint64_t>(1, std::min(chunk_bytes, bytes) / bytes_per_element);
}

isthmus_status read_chunk_bytes(const isthmus_backend_context& context, const char* backend,
                                std::uint64_t default_bytes, std::uint64_t min_bytes, std::uint64_t& bytes) {
  const char* const text = context.option(context.runtime, "chunk_bytes");
  bytes = default_bytes;
  if (text == nullptr) return ISTHMUS_SUCCESS;
  const std::string_view digits(text);
  const auto [end, failure] = std::from_chars(digits.begin(), digits.end(), bytes);
  if (failure == std::errc{} && end == digits.end() && bytes >= min_bytes) return ISTHMUS_SUCCESS;
  return context.fail(context.runtime, ISTHMUS_ERROR_CONFIG, 0, ISTHMUS_HERE,
                      fmt::format("write a number of bytes, {} or more", min_bytes).c_str(),
                      "backend.%s.chunk_bytes = \"%s\" is not a valid size", backend, text);
}

pinned_buffer::pinned_buffer(device_driver& driver, pinned_growth growth, std::uint64_t chunk_bytes)
    : m_driver(&driver),
      m_growth(growth),
      m_pinned(growth == pinned_growth::never ? owned_pinned(driver, chunk_bytes) : owned_pinned()) {}

std::byte* pinned_buffer::reserve(std::uint64_t bytes) {
  if (bytes > m_pinned.bytes() && m_growth == pinned_growth::never) {
    if (bytes > m_pageable.size()) m_pageable.resize(bytes);
    return m_pageable.data();
  }
  if (bytes > m_pinned.bytes()) m_pinned = owned_pinned(*m_driver, std::max(bytes, 2 * m_pinned.bytes()));
  return static_cast<std::byte*>(m_pinned.get());
}

staging_pipeline::device_lane::device_lane(const isthmus_backend_context& context,
                                           device_driver& platform_driver, const char* backend,
                                           pinned_growth growth, std::uint64_t chunk_bytes)
    : driver(platform_driver),
      ordinal(context.device.ordinal),
      in_stream(driver, ordinal),
      out_stream(driver, ordinal),
      copy_in_event(driver, ordinal),
      copy_out_events{owned_event(driver, ordinal), owned_event(driver, ordinal)},
      gate(context, driver, backend),
      send{pinned_buffer(driver, growth, chunk_bytes), pinned_buffer(driver, growth, chunk_bytes)},
      recv{pinned_buffer(driver, growth, chunk_bytes), pinned_buffer(driver, growth, chunk_bytes)},
      message_send(driver, growth, chunk_bytes),
      message_recv(driver, growth, chunk_bytes) {}

staging_pipeline::staging_pipeline(const isthmus_backend_context& context, device_driver* driver,
                                   const char* backend, staging_transport& transport, pinned_growth growth,
                                   std::uint64_t chunk_bytes)
    : m_context(context), m_transport(transport), m_chunk_bytes(chunk_bytes) {
  if (driver != nullptr)
    m_device = std::make_unique<device_lane>(context, *driver, backend, growth, chunk_bytes);
}

void staging_pipeline::enter(isthmus_stream stream) {
  if (m_device) m_device->gate.enter(stream);
}

void staging_pipeline::copy(void* destination, const void* source, std::uint64_t bytes, native_stream stream) {
  if (bytes == 0) return;
  const device_copy copies[] = {{destination, source, bytes}};
  m_device->driver.copy_each(m_device->ordinal, copies, stream);
}

staging_pipeline::staging_step staging_pipeline::make_step(const isthmus_operation& operation) const {
  staging_step step{operation, block_map(operation, m_context.rank, m_context.size)};
  step.operation.stream = nullptr;
  if (!m_device) return step;
  step.is_staged =
      !m_transport.accepts_device_buffers(operation) || m_transport.needs_staging(operation, step.blocks);
  // A broadcast of device buffers runs in place, so the root first copies its data to the result.
  const collective_row& row = row_of(operation.collective);
  const bool is_broadcast = row.send_ranks == buffer_ranks::root && row.send_extent == row.recv_extent;
  const bool copies_root = is_broadcast && operation.send_buf != operation.recv_buf;
  if (step.is_staged || copies_root) step.in_bytes = step.blocks.send_bytes();
  if (step.is_staged) step.out_bytes = step.blocks.recv_bytes();
  return step;
}

std::vector<staging_pipeline::staging_step> staging_pipeline::split_into_steps(
    const isthmus_operation& operation) const {
  const collective_row& row = row_of(operation.collective);
  if (operation.count == 0 && has_equal_count(row)) return {};
  if (!is_elementwise(row) || m_transport.accepts_device_buffers(operation)) return {make_step(operation)};
  const std::uint64_t width = bytes_of(operation.datatype);
  const std::uint64_t max_elements = chunk_elements(operation.count, width, m_chunk_bytes);
  std::vector<staging_step> steps;
  for (std::uint64_t begin = 0; begin < operation.count; begin += max_elements) {
    isthmus_operation chunk = operation;
    chunk.count = std::min(max_elements, operation.count - begin);
    chunk.send_buf = add_offset(operation.send_buf, begin * width);
    chunk.recv_buf = const_cast<void*>(add_offset(operation.recv_buf, begin * width));
    steps.push_back(make_step(chunk));
  }
  return steps;
}

void staging_pipeline::copy_in(const staging_step& step, std::size_t slot) {
  if (step.in_bytes == 0) return;
  void* const destination =
      step.is_staged ? m_device->send[slot].reserve(step.in_bytes) : step.operation.recv_buf;
  copy(destination, step.operation.send_buf, step.in_bytes, m_device->in_stream);
  m_device->driver.record(m_device->ordinal, m_device->copy_in_event, m_device->in_stream);
}

void staging_pipeline::call_transport(staging_step& step, std::size_t slot) {
  isthmus_operation call = step.operation;
  if (step.is_staged) {
    call.send_buf = m_device->send[slot].reserve(step.in_bytes);
    call.recv_buf = m_device->recv[slot].reserve(step.out_bytes);
    step.result = static_cast<const std::byte*>(call.recv_buf);
  } else if (step.in_bytes != 0) {
    call.send_buf = call.recv_buf;
  }
  m_transport.run(call);
}

// Gaps between the blocks of a v-collective are not written.
void staging_pipeline::copy_out(const staging_step& step, native_event event) {
  if (step.out_bytes == 0) return;
  const auto copy_block = [&](const block& source) {
    copy(static_cast<std::byte*>(step.operation.recv_buf) + source.offset, step.result + source.offset,
         source.bytes, m_device->out_stream);
  };
  if (step.blocks.recv.shape != extent::counts)
    copy_block({0, step.out_bytes});
  else
    for (int peer = 0; peer < m_context.size; ++peer) copy_block(step.blocks.incoming_block(peer));
  m_device->driver.record(m_device->ordinal, event, m_device->out_stream);
}

void staging_pipeline::wait_for_copy_out(const staging_step& step, std::size_t slot) {
  if (step.out_bytes != 0) m_device->gate.wait_for(m_device->copy_out_events[slot]);
}

void staging_pipeline::run_collective(const isthmus_operation& operation) {
  std::vector<staging_step> steps = split_into_steps(operation);
  if (steps.empty()) return;
  copy_in(steps[0], 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::size_t slot = i % slots;
    if (steps[i].in_bytes != 0) m_device->gate.wait_for(m_device->copy_in_event);
    if (i + 1 < steps.size()) copy_in(steps[i + 1], (i + 1) % slots);
    if (i >= slots) wait_for_copy_out(steps[i - slots], slot);
    call_transport(steps[i], slot);
    if (m_device) copy_out(steps[i], m_device->copy_out_events[slot]);
  }
  for (std::size_t i = steps.size() - std::min(slots, steps.size()); i < steps.size(); ++i)
    wait_for_copy_out(steps[i], i % slots);
}

// Copies the messages in. The messages of a group share one buffer per direction.
std::vector<isthmus_operation> staging_pipeline::stage_messages() {
  std::vector<isthmus_operation> calls;
  std::uint64_t in_bytes = 0, out_bytes = 0;
  for (const staging_step& message : m_messages) in_bytes += message.in_bytes, out_bytes += message.out_bytes;
  std::byte* send = m_device ? m_device->message_send.reserve(in_bytes) : nullptr;
  std::byte* recv = m_device ? m_device->message_recv.reserve(out_bytes) : nullptr;
  for (staging_step& message : m_messages) {
    isthmus_operation& call = calls.emplace_back(message.operation);
    if (!message.is_staged) continue;
    copy(send, message.operation.send_buf, message.in_bytes, m_device->in_stream);
    call.send_buf = send;
    call.recv_buf = recv;
    message.result = recv;
    send += message.in_bytes;
    recv += message.out_bytes;
  }
  if (in_bytes != 0) {
    m_device->driver.record(m_device->ordinal, m_device->copy_in_event, m_device->in_stream);
    m_device->gate.wait_for(m_device->copy_in_event);
  }
  return calls;
}

void staging_pipeline::start_messages(std::span<const isthmus_operation> operations) {
  m_messages.clear();
  for (const isthmus_operation& operation : operations)
    if (is_point_to_point(operation.collective) && operation.count != 0)
      m_messages.push_back(make_step(operation));
  if (!m_messages.empty()) m_transport.start_messages(stage_messages());
}

void staging_pipeline::finish_messages() {
  if (m_messages.empty()) return;
  m_transport.finish_messages();
  if (m_device)
    for (const staging_step& message : m_messages) copy_out(message, m_device->copy_out_events[0]);
  // The copies are on one stream, so the last one that was recorded is the last one to complete.
  if (std::ranges::any_of(m_messages, [](const staging_step& message) { return message.out_bytes != 0; }))
    m_device->gate.wait_for(m_device->copy_out_events[0]);
}

void staging_pipeline::drain() noexcept {
  if (!m_device) return;
  for (const native_stream stream : {m_device->in_stream.get(), m_device->out_stream.get()}) try {
      m_device->driver.synchronize(m_device->ordinal, stream);
    } catch (...) {  // NOLINT(bugprone-empty-catch): after a fault of the device, no copy runs
    }
}

}  // namespace isthmus
