#include "backends/shm/peer_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <new>
#include <system_error>

#include "backends/shm/node_group.hpp"
#include "base/error.hpp"
#include "base/internal_mapping.hpp"
#include "base/process.hpp"
#include "failure/wait.hpp"

namespace isthmus::shm {
namespace {

using namespace std::chrono_literals;

std::byte* allocate_pages(std::uint64_t bytes) noexcept {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<std::byte*>(pages);
}

bool replace_pages(std::byte* begin, std::uint64_t bytes) noexcept {
  if (bytes == 0) return true;
  std::byte* const copy = allocate_pages(bytes);
  if (copy == nullptr) return false;
  std::memcpy(copy, begin, bytes);
  if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != MAP_FAILED) return true;
  ::munmap(copy, bytes);
  return false;
}

// The kernel cannot copy memory that a driver has mapped, for example memory pinned for a device. The test
// copies the first byte within this process, which takes about a microsecond.
bool is_ordinary(const std::byte* address) {
  std::byte probe;
  const iovec local_iovec{&probe, 1}, remote_iovec{const_cast<std::byte*>(address), 1};
  return ::process_vm_readv(::getpid(), &local_iovec, 1, &remote_iovec, 1, 0) == 1;
}

}  // namespace

write_gate::write_gate() : m_page(allocate_pages(page_bytes)) {
  if (m_page == nullptr) throw std::bad_alloc();
}

// A closed gate keeps its address until the process exits, so that late ranks never write to
// other memory there.
write_gate::~write_gate() {
  if (!m_is_closed) unmap_internal(m_page, page_bytes);
}

void write_gate::close() noexcept {
  m_is_closed = true;
  ::mprotect(m_page, page_bytes, PROT_NONE);
}

// Other threads of the program may write to the first and the last page. Each of these pages is replaced
// separately, to keep the time between copying and replacing it short.
bool make_private(const exposed_range& memory) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.begin);
  std::byte* const begin = memory.begin - address % page_bytes;
  const std::uint64_t bytes = round_up(memory.bytes + address % page_bytes, page_bytes);
  const std::uint64_t first = std::min<std::uint64_t>(bytes, page_bytes);
  const std::uint64_t last = bytes > first ? page_bytes : 0;
  return replace_pages(begin, first) && replace_pages(begin + first, bytes - first - last) &&
         replace_pages(begin + (bytes - last), last);
}

// ---- copies between processes -------------------------------------------------------------------------

bool peer_memory::has_lost_access(int rank) const {
  return m_group.header(rank).has_lost_access.load(std::memory_order_relaxed) != 0;
}

bool peer_memory::is_accessible_by(int peer, const std::byte* address) const {
  return m_group.is_same_process(peer) || (m_can_kernel_copy && !has_lost_access(peer) && is_ordinary(address));
}

bool peer_memory::is_accessible_by_all(const std::byte* address) const {
  return m_group.is_one_process() || (m_can_kernel_copy && is_ordinary(address));
}

void peer_memory::read_from(int peer, std::byte* to, const std::byte* address, std::uint64_t bytes) const {
  if (m_group.is_same_process(peer))
    std::memcpy(to, address, bytes);
  else
    copy_through_kernel(peer, ::process_vm_readv, to, const_cast<std::byte*>(address), bytes);
}

void peer_memory::write_to(int peer, const std::byte* from, std::byte* address, std::uint64_t bytes) const {
  if (m_group.is_same_process(peer))
    std::memcpy(address, from, bytes);
  else
    copy_through_kernel(peer, ::process_vm_writev, const_cast<std::byte*>(from), address, bytes);
}

// Copies in chunks, so that an abort is detected during a long message. A copy into a peer's memory first
// writes to the peer's write gate.
void peer_memory::copy_through_kernel(int peer, kernel_copy_function* copy, std::byte* local, std::byte* remote,
                                      std::uint64_t bytes) const {
  constexpr std::uint64_t max_chunk_bytes = 4 << 20;
  const auto process = m_group.pid_of(peer);
  const bool is_write = copy == ::process_vm_writev;
  const int first = is_write ? 0 : 1;
  const ssize_t key_bytes = is_write ? 1 : 0;
  std::byte key{};
  for (std::uint64_t copied_bytes = 0; copied_bytes < bytes;) {
    m_group.poll_abort();
    if (has_lost_access(m_group.rank()))
      return copy_through_segment(peer, is_write, local + copied_bytes, remote + copied_bytes,
                                  bytes - copied_bytes);
    const std::uint64_t chunk_bytes = std::min(max_chunk_bytes, bytes - copied_bytes);
    const iovec local_iovec[] = {{&key, 1}, {local + copied_bytes, chunk_bytes}};
    const iovec remote_iovec[] = {{m_gate_addresses[static_cast<std::size_t>(peer)], 1},
                                  {remote + copied_bytes, chunk_bytes}};
    const auto n = static_cast<unsigned long>(2 - first);
    const ssize_t result = copy(process, local_iovec + first, n, remote_iovec + first, n, 0);
    if (result <= key_bytes) {
      const int code = result < 0 ? errno : EFAULT;
      if (code == EFAULT || code == ESRCH) fail_copy(peer, is_write ? "into" : "out of", bytes, code);
      lose_access(peer, code);
      continue;
    }
    copied_bytes += static_cast<std::uint64_t>(result - key_bytes);
  }
}

void peer_memory::lose_access(int peer, int code) const {
  m_group.header(m_group.rank()).has_lost_access.store(1, std::memory_order_relaxed);
  m_group.context().log(m_group.context().runtime, 1,
                        "rank %d can no longer copy from or to memory of rank %d (%s): its data is staged",
                        m_group.rank(), peer, std::generic_category().message(code).c_str());
}

void peer_memory::copy_through_segment(int peer, bool is_write, std::byte* local, std::byte* remote,
                                       std::uint64_t bytes) const {
  copy_request& request = m_group.request_of(m_group.rank());
  for (std::uint64_t copied_bytes = 0; copied_bytes < bytes; copied_bytes += request.bytes) {
    request.address = remote + copied_bytes;
    request.bytes = std::min(copy_request::capacity, bytes - copied_bytes);
    request.is_write = is_write;
    if (is_write) std::memcpy(request.data, local + copied_bytes, request.bytes);
    const std::uint64_t previous = request.posted.load(std::memory_order_relaxed);
    const std::uint64_t posted = ((previous >> 32) + 1) << 32 | static_cast<std::uint64_t>(peer);
    request.posted.store(posted, std::memory_order_release);
    m_group.header(peer).has_copy_requests.store(1, std::memory_order_release);
    waiter wait(m_group);
    while (request.served.load(std::memory_order_acquire) != posted) wait.pause(peer);
    if (request.is_denied) fail_copy(peer, is_write ? "into" : "out of", request.bytes, EFAULT);
    if (!is_write) std::memcpy(local + copied_bytes, request.data, request.bytes);
  }
}

bool peer_memory::serve_copy_requests() const {
  flag& has_requests = m_group.header(m_group.rank()).has_copy_requests;
  if (has_requests.load(std::memory_order_relaxed) == 0) return false;
  has_requests.exchange(0, std::memory_order_acq_rel);
  for (int r = 0; r < m_group.size(); ++r) {
    copy_request& request = m_group.request_of(r);
    const std::uint64_t posted = request.posted.load(std::memory_order_acquire);
    const bool is_for_this_rank =
        static_cast<std::uint32_t>(posted) == static_cast<std::uint32_t>(m_group.rank());
    if (!is_for_this_rank || request.served.load(std::memory_order_relaxed) == posted) continue;
    const auto is_published = [&](const exposed_range& each) {
      const auto offset =
          reinterpret_cast<std::uintptr_t>(request.address) - reinterpret_cast<std::uintptr_t>(each.begin);
      return (each.is_writable || !request.is_write) && offset <= each.bytes &&
             request.bytes <= each.bytes - offset;
    };
    request.is_denied = std::ranges::none_of(m_exposed_ranges, is_published);
    if (!request.is_denied)
      std::memcpy(request.is_write ? request.address : request.data,
                  request.is_write ? request.data : request.address, request.bytes);
    request.served.store(posted, std::memory_order_release);
  }
  return true;
}

// The peer has aborted or exited. A process loses its memory slightly before its exit becomes visible.
void peer_memory::fail_copy(int peer, const char* direction, std::uint64_t bytes, int code) const {
  const auto is_exit_visible = [&] {
    if (m_group.has_exited(peer)) return true;
    m_group.check_abort();
    return false;
  };
  const bool has_ended = poll_until(is_exit_visible, deadline_after(100ms), 50us);
  if (has_ended) m_group.publish_failed_rank(peer);
  throw operation_failure{fail_with_ranks(
      m_group.context(), has_ended ? std::vector{peer} : std::vector<int>(),
      has_ended ? ISTHMUS_ERROR_REMOTE : ISTHMUS_ERROR_SYSTEM, code, ISTHMUS_HERE,
      has_ended ? "look for a crash or an early exit of that rank"
                : "check that the buffers of both ranks are as long as their calls say",
      fmt::format("copying {} bytes {} a buffer of rank {} failed{}: {}", bytes, direction, peer,
                  has_ended ? ", because that rank exited" : "", std::generic_category().message(code)))};
}

void peer_memory::revoke_write_access() noexcept {
  std::erase_if(m_exposed_ranges, [](const exposed_range& each) { return !each.is_writable; });
  if (m_exposed_ranges.empty()) return;
  m_gate->close();
  bool is_peer_late = false, is_protected = true;
  for (int r = 0; r < m_group.size(); ++r) {
    if (r == m_group.rank()) continue;
    const writer_state state = wait_for_writer(r);
    is_peer_late |= state != writer_state::finished && !m_group.is_same_process(r);
    is_protected &= state != writer_state::unknown;
  }
  for (const exposed_range& each : m_exposed_ranges)
    if (is_peer_late && each.is_mapped) is_protected &= make_private(each);
  m_exposed_ranges.clear();
  if (!is_protected)
    m_group.context().log(
        m_group.context().runtime, 2,
        "rank %d could not block writes of a late rank after %s failed: that rank may still write into its "
        "buffers until it detects the failure",
        m_group.rank(), m_group.activity());
}

// finished: the peer does not write to other ranks. stopped: it can write only to memory that it has mapped.
peer_memory::writer_state peer_memory::wait_for_writer(int peer) const noexcept {
  constexpr auto grace_period = 2s;  // a chunk takes milliseconds, longer on an oversubscribed machine
  const flag& write_flag = m_group.header(peer).write_flag;
  const auto limit = m_group.is_same_process(peer)
                         ? std::max<std::chrono::duration<double>>(
                               grace_period, std::chrono::duration<double>(m_group.context().timeout_s))
                         : std::chrono::duration<double>(grace_period);
  auto state = writer_state::unknown;
  const auto is_known = [&] {
    if (write_flag.load(std::memory_order_seq_cst) == 0 || m_group.has_exited(peer))
      state = writer_state::finished;
    else if (!m_group.is_same_process(peer) &&
             read_process_state(m_group.pid_of(peer)) == process_state::stopped)
      state = writer_state::stopped;
    return state != writer_state::unknown;
  };
  poll_until(is_known, deadline_after(limit), 50us);
  return state;
}

}  // namespace isthmus::shm
