#include "backends/hierarchical/host_staging.hpp"

#include <algorithm>
#include <isthmus/plugin.hpp>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// True if the collective can be divided into chunks of elements, each a separate call.
bool is_elementwise(const collective_row& row) {
  return row.send_extent == extent::count && row.recv_extent == extent::count && row.peer != peer_kind::peer;
}

const void* add_offset(const void* buffer, std::uint64_t bytes) {
  return buffer == nullptr ? nullptr : static_cast<const std::byte*>(buffer) + bytes;
}

constexpr std::array all_collectives = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

}  // namespace

isthmus_status host_staging::detect_platforms(const isthmus_backend_context& context, platforms& result) {
  const std::int32_t own = context.device.platform;
  std::vector<std::int32_t> all(static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, &own, all.data(), sizeof own)) return status;
  result.has_devices = std::ranges::any_of(all, [](auto each) { return each != ISTHMUS_PLATFORM_HOST; });
  result.is_mixed = std::ranges::any_of(all, [&](auto each) { return each != all[0]; });
  return ISTHMUS_SUCCESS;
}

host_staging::device_lane::device_lane(const isthmus_backend_context& context, device_driver& platform_driver)
    : driver(platform_driver),
      ordinal(context.device.ordinal),
      in_stream(driver, ordinal),
      out_stream(driver, ordinal),
      copy_in_event(driver, ordinal),
      gate(context, driver, "hierarchical"),
      copy_out_events{owned_event(driver, ordinal), owned_event(driver, ordinal)} {}

isthmus_status host_staging::open_device() {
  vote<> own_vote;
  try {
    std::string reason;
    if (m_context.device.platform != ISTHMUS_PLATFORM_HOST) {
      if (device_driver* const driver = device_driver::get(m_context.device.platform, reason))
        m_device = std::make_unique<device_lane>(m_context, *driver);
      else
        own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, reason,
                        "install the driver of the device, which copies to and from the host need");
    }
  } catch (const error& failure) {
    own_vote.refuse(failure.info().status, failure.info().message, failure.info().hint,
                    failure.info().native_code);
  }
  votes<> all;
  return agree(m_context, ISTHMUS_HERE, own_vote, all);
}

isthmus_status host_staging::create(std::uint64_t chunk_bytes) {
  m_chunk_bytes = chunk_bytes;
  if (const auto status = open_device()) return status;
  if (const auto status = m_host_comm.create(m_context, isthmus_device{ISTHMUS_PLATFORM_HOST, 0}, 0,
                                             m_context.rank, "inter_node", "host staging"))
    return status;
  vote<> own_vote;
  if (const std::string unsupported = find_unsupported(m_host_comm, all_collectives); !unsupported.empty())
    own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, unsupported, "run isthmus explain to see the rules");
  votes<> all;
  if (const auto status = agree(m_context, ISTHMUS_HERE, own_vote, all)) return status;
  return device_reducer::create(m_context, chunk_bytes, m_reducer);
}

void host_staging::abort() const noexcept {
  m_host_comm.abort();
  if (m_reducer) m_reducer->abort();
}

std::byte* host_staging::reserve(owned_pinned& memory, std::uint64_t bytes) {
  if (memory.bytes() < bytes) memory = owned_pinned(m_device->driver, std::max(bytes, 2 * memory.bytes()));
  return static_cast<std::byte*>(memory.get());
}

void host_staging::copy(void* to, const void* from, std::uint64_t bytes, native_stream stream) {
  if (bytes == 0) return;
  const device_copy copies[] = {{to, from, bytes}};
  m_device->driver.copy_each(m_device->ordinal, copies, stream);
}

std::vector<host_staging::host_step> host_staging::split_into_steps(const isthmus_operation& operation) const {
  const auto step_of = [this](isthmus_operation host_operation) -> host_step {
    host_operation.stream = nullptr;
    return {host_operation, block_map(host_operation, m_context.rank, m_context.size)};
  };
  const collective_row& row = row_of(operation.collective);
  if (operation.count == 0 && has_equal_count(row)) return {};
  if (!is_elementwise(row)) return {step_of(operation)};
  const std::uint64_t width = bytes_of(operation.datatype);
  const std::uint64_t max_elements = chunk_elements(operation.count, width, m_chunk_bytes);
  std::vector<host_step> steps;
  for (std::uint64_t begin = 0; begin < operation.count; begin += max_elements) {
    isthmus_operation chunk = operation;
    chunk.count = std::min(max_elements, operation.count - begin);
    chunk.send_buf = add_offset(operation.send_buf, begin * width);
    chunk.recv_buf = const_cast<void*>(add_offset(operation.recv_buf, begin * width));
    steps.push_back(step_of(chunk));
  }
  return steps;
}

void host_staging::copy_in(const host_step& step, std::size_t slot) {
  const std::uint64_t bytes = step.blocks.send_bytes();
  copy(reserve(m_device->send[slot], bytes), step.operation.send_buf, bytes, m_device->in_stream);
  m_device->driver.record(m_device->ordinal, m_device->copy_in_event, m_device->in_stream);
}

void host_staging::run_on_host(const host_step& step, std::size_t slot) {
  isthmus_operation operation = step.operation;
  operation.send_buf = m_device->send[slot].get();
  operation.recv_buf = reserve(m_device->recv[slot], step.blocks.recv_bytes());
  m_host_comm.run(operation);
}

// Gaps between the blocks of a v-collective are not written.
void host_staging::copy_out(const host_step& step, std::size_t slot) {
  const auto* const from = static_cast<const std::byte*>(m_device->recv[slot].get());
  const auto copy_block = [&](const block& source) {
    copy(static_cast<std::byte*>(step.operation.recv_buf) + source.offset, from + source.offset, source.bytes,
         m_device->out_stream);
  };
  if (step.blocks.recv.shape != extent::counts)
    copy_block({0, step.blocks.recv_bytes()});
  else
    for (int peer = 0; peer < m_context.size; ++peer) copy_block(step.blocks.incoming_block(peer));
  m_device->driver.record(m_device->ordinal, m_device->copy_out_events[slot], m_device->out_stream);
}

void host_staging::run_collective(const isthmus_operation& operation) {
  const std::vector<host_step> steps = split_into_steps(operation);
  if (!m_device) {
    for (const host_step& step : steps) m_host_comm.run(step.operation);
    return;
  }
  if (steps.empty()) return;
  copy_in(steps[0], 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    m_device->gate.wait_for(m_device->copy_in_event);
    if (i + 1 < steps.size()) copy_in(steps[i + 1], (i + 1) % 2);
    if (i >= 2) m_device->gate.wait_for(m_device->copy_out_events[i % 2]);
    run_on_host(steps[i], i % 2);
    copy_out(steps[i], i % 2);
  }
  for (std::size_t slot = 0; slot < std::min<std::size_t>(2, steps.size()); ++slot)
    m_device->gate.wait_for(m_device->copy_out_events[slot]);
}

void host_staging::run_messages(const isthmus_operation* operations, std::size_t n) {
  std::vector<host_step> messages;
  std::uint64_t in = 0, out = 0;
  for (std::size_t i = 0; i < n; ++i)
    if (is_point_to_point(operations[i].collective)) {
      messages.push_back({operations[i], block_map(operations[i], m_context.rank, m_context.size)});
      messages.back().operation.stream = nullptr;
      in += messages.back().blocks.send_bytes();
      out += messages.back().blocks.recv_bytes();
    }
  std::vector<void*> results;
  if (m_device) {
    std::byte* send = reserve(m_device->send[0], in);
    std::byte* recv = reserve(m_device->recv[0], out);
    for (host_step& message : messages) {
      copy(send, message.operation.send_buf, message.blocks.send_bytes(), m_device->in_stream);
      results.push_back(message.operation.recv_buf);
      message.operation.send_buf = send;
      message.operation.recv_buf = recv;
      send += message.blocks.send_bytes();
      recv += message.blocks.recv_bytes();
    }
    m_device->driver.record(m_device->ordinal, m_device->copy_in_event, m_device->in_stream);
    m_device->gate.wait_for(m_device->copy_in_event);
  }
  message_batch group;
  for (const host_step& message : messages) m_host_comm.run(message.operation);
  group.finish();
  if (!m_device) return;
  for (std::size_t i = 0; i < messages.size(); ++i)
    copy(results[i], messages[i].operation.recv_buf, messages[i].blocks.recv_bytes(), m_device->out_stream);
  m_device->driver.record(m_device->ordinal, m_device->copy_out_events[0], m_device->out_stream);
  m_device->gate.wait_for(m_device->copy_out_events[0]);
}

void host_staging::run(const isthmus_operation* operations, const int* algorithms, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    if (m_device && (i == 0 || operations[i].stream != operations[i - 1].stream))
      m_device->gate.enter(operations[i].stream);
  const auto is_message_operation = [](const isthmus_operation& each) {
    return is_point_to_point(each.collective);
  };
  // On all ranks, the messages of a group run before its collectives.
  if (std::any_of(operations, operations + n, is_message_operation)) run_messages(operations, n);
  for (std::size_t i = 0; i < n; ++i) {
    if (is_message_operation(operations[i])) continue;
    if (m_reducer && m_reducer->supports(operations[i]))
      m_reducer->run(operations[i], m_shard_mode_of(algorithms[i]));
    else
      run_collective(operations[i]);
  }
}

std::string host_staging::plan(const isthmus_operation& operation, int algorithm) const {
  if (m_reducer && m_reducer->supports(operation))
    return m_reducer->plan(operation, m_shard_mode_of(algorithm));
  isthmus_operation host_operation = operation;
  host_operation.stream = nullptr;
  std::string text;
  m_host_comm.explain(host_operation, text);
  const auto explanation = nlohmann::json::parse(text);
  const nlohmann::json step = {{"subcommunicator", m_host_comm.name()},
                               {"collective", row_of(operation.collective).name},
                               {"bytes", selection_bytes(operation, m_context.size).value_or(0)},
                               {"backend", explanation.at("backend")},
                               {"algorithm", explanation.at("algorithm")},
                               {"rule", explanation.at("reason")}};
  return nlohmann::json::array({step}).dump();
}

}  // namespace isthmus::hierarchical
