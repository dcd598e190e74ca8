#include "memory/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/internal_mapping.hpp"

namespace isthmus {
namespace {

constexpr std::uint64_t header_bytes = 4096;  // holds the cookie; the data that follows is page-aligned
constexpr const char* memfd_name = "isthmus";
constexpr std::uint64_t huge_page_bytes = 2u << 20;

error system_error(const char* location, const std::string& action, int code) {
  const auto status = code == ENOMEM || code == ENOSPC ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_ERROR_SYSTEM;
  return make_error(status, location, fmt::format("{}: {}", action, std::strerror(code)),
                    status == ISTHMUS_ERROR_OUT_OF_MEMORY
                        ? "check RAM, the memory cgroup and RLIMIT_AS, which limit shared memory"
                    : is_shortage(code) ? shortage_hint
                                        : "",
                    code);
}

// Segments that are mapped in this process. The ranks of the process share one mapping.
struct local_segments {
  std::mutex mutex;
  std::map<std::array<std::uint64_t, 2>, std::weak_ptr<shared_segment>> by_cookie;
};

local_segments& local() {
  static auto* segments = new local_segments;
  return *segments;
}

}  // namespace

std::shared_ptr<shared_segment> shared_segment::create(std::uint64_t bytes, segment_use use) {
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - header_bytes)
    throw system_error(ISTHMUS_HERE, fmt::format("a shared segment of {} bytes", bytes), ENOMEM);
  std::shared_ptr<shared_segment> segment(new shared_segment(use));
  segment->m_fd = memfd_create(memfd_name, MFD_CLOEXEC);
  if (segment->m_fd < 0) throw system_error(ISTHMUS_HERE, "memfd_create", errno);
  if (ftruncate(segment->m_fd, static_cast<off_t>(bytes + header_bytes)) != 0)
    throw system_error(ISTHMUS_HERE, fmt::format("a shared segment of {} bytes", bytes), errno);
  segment->m_address = {getpid(), segment->m_fd, 0, bytes, {}};
  if (getrandom(&segment->m_address.cookie, sizeof segment->m_address.cookie, 0) < 0)
    throw system_error(ISTHMUS_HERE, "getrandom", errno);
  segment->map(segment->m_fd);
  std::memcpy(segment->m_mapping, &segment->m_address.cookie, sizeof segment->m_address.cookie);
  const std::lock_guard lock(local().mutex);
  local().by_cookie[segment->m_address.cookie] = segment;
  return segment;
}

std::shared_ptr<shared_segment> shared_segment::open(const segment_address& address, segment_use use) {
  {
    const std::lock_guard lock(local().mutex);
    const auto position = local().by_cookie.find(address.cookie);
    if (position != local().by_cookie.end())
      if (auto segment = position->second.lock()) return segment;
  }
  auto segment_from_peer = open_by_descriptor(address, use);
  const std::lock_guard lock(local().mutex);
  auto& shared_entry = local().by_cookie[address.cookie];
  if (auto segment = shared_entry.lock()) return segment;  // another rank of this process opened it first
  shared_entry = segment_from_peer;
  return segment_from_peer;
}

std::shared_ptr<shared_segment> shared_segment::open_by_descriptor(const segment_address& address,
                                                                   segment_use use) {
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
  // In another pid namespace the path can refer to any file. Check the file before opening it, because opening
  // can block or have side effects.
  std::array<char, 64> target{};
  if (::readlink(path.c_str(), target.data(), target.size() - 1) < 0)
    throw system_error(ISTHMUS_HERE, "readlink of " + path, errno);
  if (!std::string_view(target.data()).starts_with(fmt::format("/memfd:{} ", memfd_name)))
    throw system_error(
        ISTHMUS_HERE,
        fmt::format("{} is {}, not an Isthmus segment (another pid namespace?)", path, target.data()), EINVAL);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw system_error(ISTHMUS_HERE, "open of " + path, errno);
  std::shared_ptr<shared_segment> segment(new shared_segment(use));
  segment->m_fd = fd;
  segment->m_address = address;
  struct stat status{};
  if (fstat(fd, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != address.bytes + header_bytes)
    throw system_error(
        ISTHMUS_HERE,
        fmt::format("{} does not have the size that its rank reported (another pid namespace?)", path), EINVAL);
  segment->map(fd);
  if (std::memcmp(segment->m_mapping, &address.cookie, sizeof address.cookie) != 0)
    throw system_error(
        ISTHMUS_HERE, fmt::format("{} is a segment of another process (another pid namespace?)", path), EINVAL);
  segment->close_descriptor();
  return segment;
}

void shared_segment::map(int fd) {
  m_mapped_bytes = m_address.bytes + header_bytes;
  void* mapping = mmap(nullptr, m_mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED)
    throw system_error(ISTHMUS_HERE, fmt::format("mapping {} bytes", m_mapped_bytes), errno);
  m_mapping = mapping;
  // Only a hint: the kernel may not support huge pages for shared memory.
  if (m_mapped_bytes >= huge_page_bytes) madvise(m_mapping, m_mapped_bytes, MADV_HUGEPAGE);
}

std::byte* shared_segment::data() const { return static_cast<std::byte*>(m_mapping) + header_bytes; }

void shared_segment::close_descriptor() {
  if (m_fd >= 0) ::close(std::exchange(m_fd, -1));
}

shared_segment::~shared_segment() {
  close_descriptor();
  if (m_mapping != nullptr && m_use == segment_use::internal)
    unmap_internal(m_mapping, m_mapped_bytes);
  else if (m_mapping != nullptr)
    munmap(m_mapping, m_mapped_bytes);
  const std::lock_guard lock(local().mutex);
  const auto position = local().by_cookie.find(m_address.cookie);
  if (position != local().by_cookie.end() && position->second.expired()) local().by_cookie.erase(position);
}

}  // namespace isthmus
