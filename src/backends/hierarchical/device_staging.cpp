#include "backends/hierarchical/device_staging.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "failure/wait.hpp"

namespace isthmus::hierarchical {

device_staging::device_staging(const isthmus_backend_context& context, device_driver& driver,
                               const subcommunicator& intra_node)
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

void device_staging::move(std::byte* destination, const std::byte* source, std::uint64_t bytes) {
  if (bytes == 0) return;
  const device_copy copies[] = {{destination, source, bytes}};
  m_driver.copy_each(m_context.device.ordinal, copies, m_stream);
}

void device_staging::fetch(int slot, const std::byte* source, std::uint64_t bytes) {
  move(pinned(slot), source, bytes);
  wait();
}

void device_staging::upload(std::byte* destination, const std::byte* from_pinned, std::uint64_t bytes) {
  move(destination, from_pinned, bytes);
}

void device_staging::finish() { wait(); }

void device_staging::wait() {
  constexpr int polls_per_check = 64;
  m_driver.record(m_context.device.ordinal, m_done, m_stream);
  int polls = 0;
  const auto is_done = [&] {
    if (m_driver.is_done(m_done)) return true;
    if (++polls % polls_per_check != 0) return false;
    if (m_context.is_aborted(m_context.runtime) != 0)
      throw make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE, "the communicator was aborted",
                       "destroy it on every rank and create a new one");
    m_intra_node.check();
    return false;
  };
  if (!poll_until(is_done, deadline_after(m_context.timeout_s), yielding))
    throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                     fmt::format("{}: reductions on the device exceeded the timeout of {:g} s",
                                 m_intra_node.name(), m_context.timeout_s),
                     "look for a missing or stuck rank; raise timeout_s if the ranks are only slow");
  m_intra_node.check();  // an abort also ends the kernels, so completion does not imply success
}

}  // namespace isthmus::hierarchical
