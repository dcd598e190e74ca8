#include "backend/host/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "backend/host/layout.hpp"

namespace isthmus::host {
namespace {

constexpr std::uint64_t segment_magic = 0x31304853544d5349;
constexpr const char* memfd_name = "isthmus";

[[noreturn]] void fail_with_errno(const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

// Segments that are mapped in this process, by cookie. What ranks of one process share they see at one address.
struct registry {
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<segment>> segments;
};

registry& local_segments() {
  static registry* const instance = new registry;  // never destroyed: segments may outlive static objects
  return *instance;
}

class file_descriptor {
 public:
  explicit file_descriptor(int value) : m_value(value) {}
  file_descriptor(const file_descriptor&) = delete;
  file_descriptor& operator=(const file_descriptor&) = delete;
  ~file_descriptor() {
    if (m_value >= 0) ::close(m_value);
  }
  int get() const { return m_value; }
  int release() { return std::exchange(m_value, -1); }

 private:
  int m_value;
};

std::byte* map(int descriptor, std::uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) fail_with_errno(fmt::format("mmap of a shared segment of {} bytes", bytes));
  ::madvise(data, bytes, MADV_HUGEPAGE);  // a wish: fewer TLB misses where the kernel allows it for shmem
  return static_cast<std::byte*>(data);
}

}  // namespace

std::shared_ptr<segment> segment::create(std::uint64_t bytes) {
  file_descriptor file(::memfd_create(memfd_name, MFD_CLOEXEC));
  if (file.get() < 0) fail_with_errno("memfd_create");
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    fail_with_errno(fmt::format("ftruncate of a shared segment to {} bytes", bytes));
  segment_address address{::getpid(), file.get(), {}, bytes};
  if (::getrandom(address.cookie, sizeof(address.cookie), 0) != sizeof(address.cookie))
    fail_with_errno("getrandom");
  std::shared_ptr<segment> created(new segment(map(file.get(), bytes), address));
  file.release();
  auto* header = new (created->m_data) segment_header{};
  header->magic = segment_magic;
  std::memcpy(header->cookie, address.cookie, sizeof(address.cookie));
  const std::lock_guard lock(local_segments().mutex);
  local_segments().segments[{address.cookie[0], address.cookie[1]}] = created;
  return created;
}

std::shared_ptr<segment> segment::open(const segment_address& address) {
  const std::pair cookie{address.cookie[0], address.cookie[1]};
  {
    const std::lock_guard lock(local_segments().mutex);
    const auto found = local_segments().segments.find(cookie);
    if (found != local_segments().segments.end())
      if (auto mapped = found->second.lock()) return mapped;
  }
  std::shared_ptr<segment> opened = open_of_process(address);
  const std::lock_guard lock(local_segments().mutex);
  std::weak_ptr<segment>& known = local_segments().segments[cookie];
  if (auto mapped = known.lock()) return mapped;  // another rank of this process was faster
  known = opened;
  return opened;
}

std::shared_ptr<segment> segment::open_of_process(const segment_address& address) {
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.descriptor);
  // In another pid namespace the path may name anything: look before opening, for opening can block or act.
  char target[64] = {};
  if (::readlink(path.c_str(), target, sizeof(target) - 1) < 0) fail_with_errno("readlink of " + path);
  if (!std::string_view(target).starts_with(fmt::format("/memfd:{} ", memfd_name)))
    throw std::runtime_error(fmt::format("{} is {}, not a segment of Isthmus (another pid namespace?)", path,
                                         static_cast<const char*>(target)));
  const file_descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) fail_with_errno("open of " + path);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail_with_errno("fstat of " + path);
  if (static_cast<std::uint64_t>(status.st_size) != address.bytes)
    throw std::runtime_error(fmt::format("{} has {} bytes, expected {} (another pid namespace?)", path,
                                         status.st_size, address.bytes));
  std::shared_ptr<segment> opened(new segment(map(file.get(), address.bytes), address));
  opened->m_address.descriptor = -1;
  const auto* header = reinterpret_cast<const segment_header*>(opened->m_data);
  if (header->magic != segment_magic ||
      std::memcmp(header->cookie, address.cookie, sizeof(address.cookie)) != 0)
    throw std::runtime_error(path + " is a segment of somebody else (another pid namespace?)");
  return opened;
}

segment::~segment() {
  close_descriptor();
  {
    const std::lock_guard lock(local_segments().mutex);
    const auto found = local_segments().segments.find({m_address.cookie[0], m_address.cookie[1]});
    if (found != local_segments().segments.end() && found->second.expired())
      local_segments().segments.erase(found);
  }
  ::munmap(m_data, m_address.bytes);
}

void segment::close_descriptor() noexcept {
  if (m_address.descriptor >= 0) ::close(static_cast<int>(m_address.descriptor));
  m_address.descriptor = -1;
}

}  // namespace isthmus::host
