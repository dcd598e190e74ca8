// Access to the device, and setup and teardown of the connections.
#include "backends/ucx/ucx_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "failure/wait.hpp"

namespace isthmus::ucx {

// ---- device -------------------------------------------------------------------------------------------

std::unique_ptr<device_access> device_access::make(const isthmus_backend_context& context,
                                                   std::string& reason) {
  if (context.device.platform == ISTHMUS_PLATFORM_HOST) return nullptr;
  device_driver* const driver = device_driver::get(context.device.platform, reason);
  return driver == nullptr ? nullptr : std::make_unique<device_access>(context, *driver);
}

device_access::device_access(const isthmus_backend_context& context, device_driver& driver)
    : m_device(context.device),
      m_driver(driver),
      m_gate(context, driver, "ucx"),
      m_stream(driver, m_device.ordinal),
      m_copied(driver, m_device.ordinal) {}

int device_access::memory_type() const {
  return m_device.platform == ISTHMUS_PLATFORM_HIP ? rocm_memory : cuda_memory;
}

const char* device_access::memory_name() const {
  return m_device.platform == ISTHMUS_PLATFORM_HIP ? "rocm" : "cuda";
}

int device_access::memory_type_of(const void* pointer) const {
  return m_driver.owner_of(pointer) < 0 ? host_memory : memory_type();
}

void device_access::copy(void* destination, const void* source, std::uint64_t bytes) {
  if (bytes == 0) return;
  const device_copy copies[] = {{destination, source, bytes}};
  m_driver.copy_each(m_device.ordinal, copies, m_stream);
  m_driver.record(m_device.ordinal, m_copied, m_stream);
  m_gate.wait_for(m_copied);
}

// ---- set-up -------------------------------------------------------------------------------------------

ucx_state::ucx_state(const isthmus_backend_context& context, const library& ucx, ucx_settings settings,
                     std::unique_ptr<device_access> device)
    : m_context(context),
      m_library(ucx),
      m_settings(std::move(settings)),
      m_device(std::move(device)),
      m_worker(ucx, context.size),
      m_control(m_worker, context.rank, context.size) {
  m_settings.network.uses_device_memory = is_on_devices();
  for (int each = 0; each < context.size; ++each) m_ring.push_back(each);
  std::ranges::stable_sort(m_ring, {}, [&](int each) { return context.node_of[each]; });
  for (std::size_t i = 1; i < m_ring.size(); ++i)
    m_has_shared_nodes |= context.node_of[m_ring[i]] == context.node_of[m_ring[i - 1]];
}

ucx_state::~ucx_state() {
  const auto disconnect = [this] {
    if (!m_is_shut_down) {
      m_control.cancel();
      m_worker.close(2);  // short, because every call ends with a flush
    }
    m_worker.destroy();
    return true;
  };
  try {
    on_device(disconnect);
  } catch (const error& failure) {  // device failure
    m_context.log(m_context.runtime, 2, "%s", failure.info().message);
  }
}

// "" if UCX can access the memory of this rank's device, or if there is no device.
std::string ucx_state::check_memory_support() const {
  if (m_device && m_library.minor < min_minor_for_devices)
    return fmt::format(
        "UCX {} cannot transfer device memory: version {}.{} or newer is needed, in which the registration "
        "cache "
        "can be disabled",
        m_library.description, api_major, min_minor_for_devices);
  if (!m_device || (m_worker.memory_types() >> m_device->memory_type() & 1U) != 0) return {};
  return fmt::format(
      "UCX {} cannot access {} memory on this machine{}", m_library.description, m_device->memory_name(),
      m_settings.network.transports.empty() ? "" : " with the transports in backend.ucx.transports");
}

std::string ucx_state::open(std::vector<std::byte>& address, bool& is_config_error) {
  return on_device([&] {
    std::string reason = m_worker.open(m_settings.network, is_config_error);
    if (reason.empty()) reason = check_memory_support();
    return reason.empty() ? m_worker.read_address(address) : reason;
  });
}

std::string ucx_state::connect(const std::vector<std::byte>& addresses, std::size_t stride) {
  return on_device([&] {
    std::string reason;
    for (int i = 1; i < size() && reason.empty(); ++i) {
      const int peer = (rank() + i) % size();
      reason = m_worker.connect(peer, addresses.data() + static_cast<std::size_t>(peer) * stride);
    }
    return reason;
  });
}

std::string ucx_state::verify_connections() {
  return on_device([this] { return exchange_hellos(); });
}

std::string ucx_state::exchange_hellos() {
  static const std::byte word{};
  const auto n = static_cast<std::size_t>(size());
  std::vector<std::byte> received(n);
  std::vector<ucx_transfer> sends(n), receives(n);
  for (int i = 1; i < size(); ++i) {
    const int source = (rank() + size() - i) % size(), destination = (rank() + i) % size();
    const auto index = static_cast<std::size_t>(source);
    m_worker.receive(receives[index], make_tag(message_kind::hello, source, 0), full_tag_mask, &received[index],
                     1);
    m_worker.send(sends[static_cast<std::size_t>(destination)], destination,
                  make_tag(message_kind::hello, rank(), 0), &word, 1);
  }
  // Half the timeout, so that the subsequent agreement also ends within the timeout.
  const double hello_timeout_s = m_context.timeout_s / 2;
  std::vector<int> missing;
  const auto are_all_connected = [&] {
    missing.clear();
    for (int peer = 0; peer < size(); ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      if (!receives[index].is_done || !sends[index].is_done || sends[index].status != native_status::ok)
        missing.push_back(peer);
    }
    if (missing.empty()) return poll_result::done;
    const bool has_progressed = m_worker.progress();
    if (m_context.is_aborted(m_context.runtime) != 0) return poll_result::done;
    return has_progressed ? poll_result::progress : poll_result::pending;
  };
  poll_until(are_all_connected, deadline_after(hello_timeout_s), yielding);
  if (missing.empty()) return {};
  for (ucx_transfer& each : receives) m_worker.cancel(each);
  m_is_shut_down = true;
  m_worker.close(2);
  return fmt::format("no message over UCX from or to rank{} {} within {} s", missing.size() == 1 ? "" : "s",
                     format_list(missing), hello_timeout_s);
}

}  // namespace isthmus::ucx
