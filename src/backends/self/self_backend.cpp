// The backend for communicators with one rank. Every operation is a copy from the send buffer to the receive buffer,
// so it needs no native library, whose initialization takes long and uses much memory.
#include <isthmus/isthmus.h>

#include <chrono>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <string>
#include <vector>

#include "base/block_map.hpp"
#include "base/error.hpp"
#include "base/location.hpp"
#include "base/tables.hpp"
#include "device/driver.hpp"
#include "device/owned.hpp"
#include "failure/wait.hpp"

namespace isthmus {
namespace {

using namespace std::chrono_literals;

class self_state {
 public:
  // `driver` is null on the host.
  self_state(const isthmus_backend_context& context, device_driver* driver)
      : m_context(context), m_driver(driver), m_version(driver != nullptr ? driver->version() : "") {
    if (driver != nullptr) m_end_event = owned_event(*driver, context.device.ordinal);
  }

  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n) try {
    m_copies.clear();
    std::vector<const isthmus_operation*> sends, receives;
    std::string problem;
    for (std::size_t i = 0; i < n; ++i) {
      const isthmus_operation& operation = operations[i];
      if (is_point_to_point(operation.collective))
        (operation.collective == ISTHMUS_SEND ? sends : receives).push_back(&operation);
      else if (problem.empty())
        problem = add_collective(operation);
    }
    if (problem.empty()) problem = match(sends, receives);
    if (!problem.empty())
      return m_context.fail(m_context.runtime, ISTHMUS_ERROR_INVALID_ARGUMENT, 0, ISTHMUS_HERE,
                            "a rank must receive what it sends to itself, in the same group", "%s",
                            problem.c_str());
    for (const copy& each : m_copies) run(each);
    return ISTHMUS_SUCCESS;
  } catch (const error& exception) {
    const isthmus_error_info& info = exception.info();
    return m_context.fail(m_context.runtime, info.status, info.native_code, info.location, info.hint,
                          "enqueue: %s", info.message);
  }

  isthmus_status synchronize() {
    const auto is_done = [this] { return !m_has_end_event || m_driver->is_done(m_end_event); };
    const auto has_ended = [&] { return is_done() || m_context.is_aborted(m_context.runtime) != 0; };
    if (poll_until(has_ended, deadline_after(m_context.timeout_s), poll_pause(10us, 1000us)))
      return is_done() ? ISTHMUS_SUCCESS
                       : m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                                        "the communicator was aborted");
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_TIMEOUT, 0, ISTHMUS_HERE,
                          "check for kernels that do not end",
                          "synchronize: the stream did not finish within %g s", m_context.timeout_s);
  }

  const char* version() const { return m_version.c_str(); }

 private:
  struct copy {
    void* to;
    const void* from;
    std::uint64_t bytes;
    native_stream stream;
  };

  // Returns the problem, or "".
  std::string add_collective(const isthmus_operation& operation) {
    const block_map blocks(operation, 0, 1);
    const block from = blocks.outgoing_block(0), to = blocks.incoming_block(0);
    if (from.bytes != to.bytes)
      return std::string(row_of(operation.collective).name) + " with one rank sends " +
             std::to_string(from.bytes) + " bytes and receives " + std::to_string(to.bytes);
    add(static_cast<char*>(operation.recv_buf) + to.offset,
        static_cast<const char*>(operation.send_buf) + from.offset, from.bytes, operation.stream);
    return "";
  }

  void add(void* to, const void* from, std::uint64_t bytes, native_stream stream) {
    if (bytes > 0 && to != from) m_copies.push_back({to, from, bytes, stream});
  }

  // Adds the copies of messages from this rank to itself. The k-th send matches the k-th receive. Returns the
  // problem, or "".
  std::string match(const std::vector<const isthmus_operation*>& sends,
                    const std::vector<const isthmus_operation*>& receives) {
    if (sends.size() != receives.size())
      return "a group with one rank has " + std::to_string(sends.size()) + " calls of send and " +
             std::to_string(receives.size()) + " calls of recv";
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const std::uint64_t sent = sends[i]->count * bytes_of(sends[i]->datatype);
      const std::uint64_t received = receives[i]->count * bytes_of(receives[i]->datatype);
      if (sent != received)
        return "send #" + std::to_string(i) + " of a group with one rank has " + std::to_string(sent) +
               " bytes, and its recv has " + std::to_string(received);
      add(receives[i]->recv_buf, sends[i]->send_buf, sent, receives[i]->stream);
    }
    return "";
  }

  void run(const copy& each) {
    if (m_driver == nullptr) {
      std::memmove(each.to, each.from, each.bytes);
      return;
    }
    const int device = m_context.device.ordinal;
    const device_copy request{each.to, each.from, each.bytes};
    m_driver->copy_each(device, {&request, 1}, each.stream);
    if (m_driver->is_capturing(device, each.stream)) return;
    m_driver->record(device, m_end_event, each.stream);
    m_has_end_event = true;
  }

  const isthmus_backend_context& m_context;
  device_driver* const m_driver;
  const std::string m_version;
  owned_event m_end_event;  // after the last call that was not captured
  bool m_has_end_event = false;
  std::vector<copy> m_copies;  // a member so that its memory is reused
};

self_state& self(void* state) { return *static_cast<self_state*>(state); }

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  std::string problem;
  device_driver* driver = nullptr;
  if (context->size > 1)
    problem = "it supports communicators with one rank";
  else if (context->device.platform != ISTHMUS_PLATFORM_HOST)
    driver = device_driver::get(context->device.platform, problem);
  if (problem.empty()) try {
      *state = new self_state(*context, driver);
      return ISTHMUS_SUCCESS;
    } catch (const error& exception) {
      problem = exception.what();
    }
  return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr, "%s",
                       problem.c_str());
}

isthmus_backend make_table() {
  isthmus_backend table{};
  table.struct_bytes = sizeof table;
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = "self";
  table.description = "copies within the device of the only rank";
  table.capabilities = ISTHMUS_BACKEND_BLOCKING_ON_HOST | ISTHMUS_BACKEND_GRAPH_CAPTURE |
                       ISTHMUS_BACKEND_RANK_ORDER | ISTHMUS_BACKEND_EVERY_OPERATION;
  table.platforms = 1u << ISTHMUS_PLATFORM_HOST | 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP;
  table.create = create;
  table.destroy = [](void* state) { delete static_cast<self_state*>(state); };
  table.supports = [](void*, const isthmus_operation*, int) -> const char* { return nullptr; };
  table.enqueue = [](void* state, const isthmus_operation* operations, const int*, std::size_t n) {
    return self(state).enqueue(operations, n);
  };
  table.synchronize = [](void* state) { return self(state).synchronize(); };
  table.version = [](void* state) { return self(state).version(); };
  return table;
}

}  // namespace

const isthmus_backend* self_backend() noexcept {
  static const isthmus_backend table = make_table();
  return &table;
}

}  // namespace isthmus
