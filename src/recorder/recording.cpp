#include "recorder/recording.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <new>
#include <utility>

#include "base/error.hpp"
#include "base/process.hpp"
#include "recorder/clock.hpp"

namespace isthmus::recorder {
namespace {

std::string first_line_of(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace

// The mapping, and the file's name as long as it is to go with it.
struct recording::memory {
  explicit memory(std::uint64_t wanted) : bytes(wanted) {}
  ~memory() {
    if (mapping != nullptr) ::munmap(mapping, bytes);
    if (!path.empty() && maker == ::getpid()) ::unlink(path.c_str());
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  // 0, or errno.
  int map_file(const std::string& name) {
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0) return errno;
    path = name;
    // All of it now: a page that is missing later is a SIGBUS in the middle of a call.
    int problem = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    if (problem == 0) problem = map(MAP_SHARED, fd);
    ::close(fd);
    if (problem != 0) ::unlink(std::exchange(path, {}).c_str());
    return problem;
  }
  int map(int flags, int fd) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED) return errno;
    mapping = at;
    return 0;
  }

  std::uint64_t bytes;
  void* mapping = nullptr;
  std::string path;
  const pid_t maker = ::getpid();  // a forked child has the mapping, too, but the file is not its own
};

recording::recording() = default;

recording::~recording() {
  if (m_header == nullptr || m_memory->maker != ::getpid()) return;
  add_anchor(read_anchor(m_header->has_counter != 0).ticks);
  m_header->closed.store(1, std::memory_order_release);
}

int recording::open(const std::string& path, bool stays, const extents& parts) {
  auto made = std::make_unique<memory>(parts.bytes());
  if (const int problem = made->map_file(path); problem != 0) return problem;
  if (stays) made->path.clear();
  m_memory = std::move(made);
  use(parts);
  return 0;
}

void recording::open_privately(const extents& parts) {
  auto made = std::make_unique<memory>(parts.bytes());
  if (made->map(MAP_PRIVATE | MAP_ANONYMOUS, -1) != 0) throw std::bad_alloc();
  m_memory = std::move(made);
  use(parts);
}

void recording::use(const extents& parts) {
  auto* const bytes = static_cast<std::byte*>(m_memory->mapping);
  m_header = new (bytes) header{};
  m_ring = reinterpret_cast<entry*>(bytes + parts.ring_offset());
  m_mask = parts.entries - 1;
  m_header->entries = parts.entries;
  m_header->reason_capacity = parts.reasons;
}

void recording::complete(const membership& ranks, double timeout_s, bool counter) {
  header& made = *m_header;
  auto* const pids = reinterpret_cast<std::int64_t*>(static_cast<std::byte*>(m_memory->mapping) + pids_offset);
  const int node = ranks.node_of[static_cast<std::size_t>(ranks.rank)];
  for (std::size_t rank = 0; rank < ranks.pid_of.size(); ++rank)
    pids[rank] = ranks.node_of[rank] == node ? ranks.pid_of[rank] : 0;
  made.header_bytes = sizeof(header);
  made.entry_bytes = sizeof(entry);
  made.token = ranks.token;
  made.rank = ranks.rank;
  made.size = ranks.size;
  made.pid = ::getpid();
  made.start = start_of_process(made.pid);
  made.pid_namespace = own_pid_namespace();
  made.has_counter = counter ? 1 : 0;
  made.anchors[0] = read_anchor(counter);
  made.timeout_s = timeout_s;
  copy_text(made.program, sizeof made.program, first_line_of("/proc/self/comm"));
  copy_text(made.machine, sizeof made.machine, first_line_of("/proc/sys/kernel/hostname"));
  copy_text(made.boot, sizeof made.boot, own_boot());
  copy_text(made.path[0], path_bytes, "");  // of steps
  made.paths.store(1, std::memory_order_release);
  made.reasons.store(1, std::memory_order_release);  // 0: none is known
  std::atomic_ref(made.magic).store(file_magic, std::memory_order_release);
}

void recording::add_path(std::size_t backend, const std::string& name) {
  const std::uint32_t known = m_header->paths.load(std::memory_order_relaxed);
  copy_text(m_header->path[known], path_bytes, name);
  m_header->backend_of_path[known] = static_cast<std::uint8_t>(backend);
  m_header->paths.store(known + 1, std::memory_order_release);
}

std::uint32_t recording::add_reason(const std::string& reason) {
  const std::uint32_t known = m_header->reasons.load(std::memory_order_relaxed);
  const extents parts{static_cast<std::uint64_t>(m_header->size), m_header->entries, m_header->reason_capacity};
  auto* const texts = static_cast<char*>(m_memory->mapping) + parts.reasons_offset();
  std::string cut = reason.substr(0, reason_bytes - 1);
  for (std::uint32_t index = 1; index < known; ++index)
    if (cut == texts + index * reason_bytes) return index;
  if (known >= parts.reasons) return 0;
  copy_text(texts + known * reason_bytes, reason_bytes, cut);
  m_header->reasons.store(known + 1, std::memory_order_release);
  return known;
}

void recording::add_anchor(std::uint64_t now) noexcept {
  const anchor read = read_anchor(m_header->has_counter != 0);
  const std::uint64_t turn = m_header->anchored.load(std::memory_order_relaxed) + 1;
  m_header->anchors[turn % 2 + 1] = read;
  m_header->anchored.store(turn, std::memory_order_release);
  m_next_anchor = now + (now - m_header->anchors[0].ticks) / 8;
}

}  // namespace isthmus::recorder
