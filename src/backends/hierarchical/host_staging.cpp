#include "backends/hierarchical/host_staging.hpp"

#include <algorithm>
#include <isthmus/plugin.hpp>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// May be cut into pieces of elements, each a call of its own.
bool is_elementwise(const collective_row& row) {
  return row.send_extent == extent::count && row.recv_extent == extent::count && row.peer != peer_kind::peer;
}

const void* moved(const void* buffer, std::uint64_t bytes) {
  return buffer == nullptr ? nullptr : static_cast<const std::byte*>(buffer) + bytes;
}

constexpr std::array all_collectives = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, in_place) \
  ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

}  // namespace

isthmus_status host_staging::look(const isthmus_backend_context& context, platforms& found) {
  const std::int32_t own = context.device.platform;
  std::vector<std::int32_t> all(static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, &own, all.data(), sizeof own)) return status;
  found.has_devices = std::ranges::any_of(all, [](auto each) { return each != ISTHMUS_PLATFORM_HOST; });
  found.is_mixed = std::ranges::any_of(all, [&](auto each) { return each != all[0]; });
  return ISTHMUS_SUCCESS;
}

host_staging::lane::lane(const isthmus_backend_context& context, device_driver& of)
    : driver(of),
      device(context.device.ordinal),
      in(of, device),
      out(of, device),
      arrived(of, device),
      gate(context, of, "hierarchical"),
      left{owned_event(of, device), owned_event(of, device)} {}

isthmus_status host_staging::open_lane() {
  vote<> mine;
  try {
    std::string reason;
    if (m_context.device.platform != ISTHMUS_PLATFORM_HOST) {
      if (device_driver* const driver = device_driver::get(m_context.device.platform, reason))
        m_lane = std::make_unique<lane>(m_context, *driver);
      else
        mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, reason, "copies to and from the host need the device's driver");
    }
  } catch (const error& failure) {
    mine.refuse(failure.info().status, failure.info().message, failure.info().hint, failure.info().native_code);
  }
  votes<> all;
  return agree(m_context, ISTHMUS_HERE, mine, all);
}

isthmus_status host_staging::make(std::uint64_t chunk_bytes) {
  m_chunk_bytes = chunk_bytes;
  if (m_context.struct_bytes < sizeof m_context || m_context.create_subcommunicator_on == nullptr)
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr,
                          "this runtime makes no parts on the host");
  if (const auto status = open_lane()) return status;
  if (const auto status = m_host.make(m_context, isthmus_device{ISTHMUS_PLATFORM_HOST, 0}, 0, m_context.rank,
                                      "inter_node", "through the host"))
    return status;
  vote<> mine;
  if (const std::string lack = find_unsupported(m_host, all_collectives); !lack.empty())
    mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, lack, "isthmus explain shows the rules");
  votes<> all;
  if (const auto status = agree(m_context, ISTHMUS_HERE, mine, all)) return status;
  return device_reducer::create(m_context, chunk_bytes, m_sums);
}

void host_staging::abort() const noexcept {
  m_host.abort();
  if (m_sums) m_sums->abort();
}

std::byte* host_staging::reserve(owned_pinned& memory, std::uint64_t bytes) {
  if (memory.bytes() < bytes) memory = owned_pinned(m_lane->driver, std::max(bytes, 2 * memory.bytes()));
  return static_cast<std::byte*>(memory.get());
}

void host_staging::copy(void* to, const void* from, std::uint64_t bytes, native_stream stream) {
  if (bytes == 0) return;
  const device_copy moves[] = {{to, from, bytes}};
  m_lane->driver.copy_each(m_lane->device, moves, stream);
}

std::vector<host_staging::step> host_staging::steps_of(const isthmus_operation& operation) const {
  const auto step_of = [this](isthmus_operation call) -> step {
    call.stream = nullptr;
    return {call, block_map(call, m_context.rank, m_context.size)};
  };
  const collective_row& row = row_of(operation.collective);
  if (operation.count == 0 && has_equal_count(row)) return {};
  if (!is_elementwise(row)) return {step_of(operation)};
  const std::uint64_t width = bytes_of(operation.datatype);
  const std::uint64_t most = chunk_elements(operation.count, width, m_chunk_bytes);
  std::vector<step> steps;
  for (std::uint64_t at = 0; at < operation.count; at += most) {
    isthmus_operation element_range = operation;
    element_range.count = std::min(most, operation.count - at);
    element_range.send_buf = moved(operation.send_buf, at * width);
    element_range.recv_buf = const_cast<void*>(moved(operation.recv_buf, at * width));
    steps.push_back(step_of(element_range));
  }
  return steps;
}

void host_staging::fetch(const step& what, std::size_t slot) {
  const std::uint64_t bytes = what.blocks.send_bytes();
  copy(reserve(m_lane->send[slot], bytes), what.call.send_buf, bytes, m_lane->in);
  m_lane->driver.record(m_lane->device, m_lane->arrived, m_lane->in);
}

void host_staging::call(const step& what, std::size_t slot) {
  isthmus_operation call = what.call;
  call.send_buf = m_lane->send[slot].get();
  call.recv_buf = reserve(m_lane->recv[slot], what.blocks.recv_bytes());
  m_host.run(call);
}

// What lies between blocks of their own lengths stays as it was.
void host_staging::bring_back(const step& what, std::size_t slot) {
  const auto* const from = static_cast<const std::byte*>(m_lane->recv[slot].get());
  const auto upload = [&](const block& part) {
    copy(static_cast<std::byte*>(what.call.recv_buf) + part.offset, from + part.offset, part.bytes, m_lane->out);
  };
  if (what.blocks.recv.shape != extent::counts)
    upload({0, what.blocks.recv_bytes()});
  else
    for (int peer = 0; peer < m_context.size; ++peer) upload(what.blocks.incoming_block(peer));
  m_lane->driver.record(m_lane->device, m_lane->left[slot], m_lane->out);
}

void host_staging::run_collective(const isthmus_operation& operation) {
  const std::vector<step> steps = steps_of(operation);
  if (!m_lane) {
    for (const step& each : steps) m_host.run(each.call);
    return;
  }
  if (steps.empty()) return;
  fetch(steps[0], 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    m_lane->gate.wait_for(m_lane->arrived);
    if (i + 1 < steps.size()) fetch(steps[i + 1], (i + 1) % 2);
    if (i >= 2) m_lane->gate.wait_for(m_lane->left[i % 2]);
    call(steps[i], i % 2);
    bring_back(steps[i], i % 2);
  }
  for (std::size_t slot = 0; slot < std::min<std::size_t>(2, steps.size()); ++slot)
    m_lane->gate.wait_for(m_lane->left[slot]);
}

void host_staging::run_messages(const isthmus_operation* operations, std::size_t n) {
  std::vector<step> messages;
  std::uint64_t in = 0, out = 0;
  for (std::size_t i = 0; i < n; ++i)
    if (is_point_to_point(operations[i].collective)) {
      messages.push_back({operations[i], block_map(operations[i], m_context.rank, m_context.size)});
      messages.back().call.stream = nullptr;
      in += messages.back().blocks.send_bytes();
      out += messages.back().blocks.recv_bytes();
    }
  std::vector<void*> results;
  if (m_lane) {
    std::byte* send = reserve(m_lane->send[0], in);
    std::byte* recv = reserve(m_lane->recv[0], out);
    for (step& each : messages) {
      copy(send, each.call.send_buf, each.blocks.send_bytes(), m_lane->in);
      results.push_back(each.call.recv_buf);
      each.call.send_buf = send;
      each.call.recv_buf = recv;
      send += each.blocks.send_bytes();
      recv += each.blocks.recv_bytes();
    }
    m_lane->driver.record(m_lane->device, m_lane->arrived, m_lane->in);
    m_lane->gate.wait_for(m_lane->arrived);
  }
  message_batch group;
  for (const step& each : messages) m_host.run(each.call);
  group.finish();
  if (!m_lane) return;
  for (std::size_t i = 0; i < messages.size(); ++i)
    copy(results[i], messages[i].call.recv_buf, messages[i].blocks.recv_bytes(), m_lane->out);
  m_lane->driver.record(m_lane->device, m_lane->left[0], m_lane->out);
  m_lane->gate.wait_for(m_lane->left[0]);
}

void host_staging::run(const isthmus_operation* operations, const char* const* algorithms, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    if (m_lane && (i == 0 || operations[i].stream != operations[i - 1].stream))
      m_lane->gate.enter(operations[i].stream);
  const auto is_one = [](const isthmus_operation& each) { return is_point_to_point(each.collective); };
  // All ranks of a group have their messages before its collectives.
  if (std::any_of(operations, operations + n, is_one)) run_messages(operations, n);
  for (std::size_t i = 0; i < n; ++i) {
    if (is_one(operations[i])) continue;
    if (m_sums && m_sums->serves(operations[i]))
      m_sums->run(operations[i], m_shard_mode_of(algorithms[i]));
    else
      run_collective(operations[i]);
  }
}

std::string host_staging::plan(const isthmus_operation& operation, const char* algorithm) const {
  if (m_sums && m_sums->serves(operation)) return m_sums->plan(operation, m_shard_mode_of(algorithm));
  isthmus_operation call = operation;
  call.stream = nullptr;
  std::string text;
  m_host.explain(call, text);
  const auto told = nlohmann::json::parse(text);
  const nlohmann::json step = {{"subcommunicator", m_host.name()},
                               {"collective", row_of(operation.collective).name},
                               {"bytes", selection_bytes(operation, m_context.size).value_or(0)},
                               {"backend", told.at("backend")},
                               {"algorithm", told.at("algorithm")},
                               {"rule", told.at("reason")}};
  return nlohmann::json::array({step}).dump();
}

}  // namespace isthmus::hierarchical
