#include "backends/hierarchical/device_staging.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/error.hpp"

namespace isthmus::hierarchical {

device_staging::device_staging(const isthmus_backend_context& context, device_driver& driver, const subcommunicator& intra_node)
    : m_context(context),
      m_driver(driver),
      m_intra_node(intra_node),
      m_stream(driver, context.device.ordinal),
      m_done(driver, context.device.ordinal) {}

void device_staging::reserve(std::uint64_t scratch_bytes, std::uint64_t pinned_bytes) {
  for (owned_memory& each : m_scratch)
    if (each.bytes() < scratch_bytes) {
      each.reset();
      each = owned_memory(m_driver, m_context.device.ordinal, scratch_bytes);
    }
  for (owned_pinned& each : m_pinned)
    if (each.bytes() < pinned_bytes) each = owned_pinned(m_driver, std::max(pinned_bytes, 2 * each.bytes()));
}

void device_staging::move(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes == 0) return;
  const device_copy copies[] = {{to, from, bytes}};
  m_driver.copy_each(m_context.device.ordinal, copies, m_stream);
}

void device_staging::fetch(int slot, const std::byte* from, std::uint64_t bytes) {
  move(pinned(slot), from, bytes);
  wait();
}

void device_staging::upload(std::byte* to, const std::byte* from_pinned, std::uint64_t bytes) {
  move(to, from_pinned, bytes);
}

void device_staging::finish() { wait(); }

void device_staging::wait() {
  constexpr int poll_interval = 64;
  using clock = std::chrono::steady_clock;
  const auto deadline = clock::now() + std::chrono::duration<double>(m_context.timeout_s);
  m_driver.record(m_context.device.ordinal, m_done, m_stream);
  for (int spins = 1; !m_driver.done(m_done); ++spins) {
    ::sched_yield();
    if (spins % poll_interval != 0) continue;
    if (m_context.is_aborted(m_context.runtime) != 0)
      throw make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE, "the communicator was poisoned",
                       "destroy it on every rank and create a new one");
    m_intra_node.check();
    if (clock::now() > deadline)
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("{}: sums on the device took longer than the timeout of {:g} s",
                                   m_intra_node.name(), m_context.timeout_s),
                       "a rank is missing or stuck; raise the timeout if the ranks are only slow");
  }
  m_intra_node.check();  // a kernel that was released has ended, too
}

}  // namespace isthmus::hierarchical
