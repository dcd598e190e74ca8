#include "recorder/flight_recorder.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "recorder/files.hpp"

namespace isthmus::recorder {
namespace {

std::string name_of_program() {
  std::string name;
  std::ifstream file("/proc/self/comm");
  std::getline(file, name);
  return name;
}

}  // namespace

// The mapping, and the file's name as long as there is one.
struct flight_recorder::memory {
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

flight_recorder::flight_recorder(const membership& ranks, double timeout_s)
    : m_memory(std::make_unique<memory>(file_bytes(static_cast<std::uint64_t>(ranks.size)))) {
  static const bool swept = (sweep(), true);
  static_cast<void>(swept);
  if (const int problem = m_memory->map_file(path_of_file(ranks.token, ranks.rank)); problem != 0) {
    log(log_level::warning,
        "rank {}: no file for the flight recorder in {} ({}): isthmus doctor and other ranks' timeouts can't "
        "see this rank",
        ranks.rank, folder, std::strerror(problem));
    if (m_memory->map(MAP_PRIVATE | MAP_ANONYMOUS, -1) != 0) throw std::bad_alloc();
  }
  auto* const bytes = static_cast<std::byte*>(m_memory->mapping);
  m_header = new (bytes) header{};
  m_ring = reinterpret_cast<entry*>(bytes + ring_offset(static_cast<std::uint64_t>(ranks.size)));
  auto* const pids = reinterpret_cast<std::int64_t*>(bytes + pids_offset);
  const int node = ranks.node_of[static_cast<std::size_t>(ranks.rank)];
  for (std::size_t rank = 0; rank < ranks.pid_of.size(); ++rank)
    pids[rank] = ranks.node_of[rank] == node ? ranks.pid_of[rank] : 0;
  header& made = *m_header;
  made.header_bytes = sizeof(header);
  made.entry_bytes = sizeof(entry);
  made.token = ranks.token;
  made.rank = ranks.rank;
  made.size = ranks.size;
  made.pid = ::getpid();
  made.start = start_of_process(made.pid);
  made.pid_namespace = own_pid_namespace();
  made.has_counter = m_counter ? 1 : 0;
  made.made_ticks = read_ticks(m_counter);
  made.made_ns = monotonic_ns();
  made.timeout_s = timeout_s;
  copy_text(made.program, sizeof made.program, name_of_program());
  copy_text(made.path[0], path_bytes, "");  // of steps
  made.paths.store(1, std::memory_order_release);
  std::atomic_ref(made.magic).store(file_magic, std::memory_order_release);  // complete
}

flight_recorder::~flight_recorder() = default;

void flight_recorder::add_backend(std::size_t index, const std::string& name, bool blocking) {
  if (index >= most_backends) return;
  m_names[index] = name;
  if (blocking) m_header->blocking |= std::uint64_t{1} << index;
}

std::uint64_t flight_recorder::find_path(std::size_t backend, const char* algorithm) {
  const std::uint32_t known = m_header->paths.load(std::memory_order_relaxed);
  for (std::uint64_t index = 1; index < known; ++index)
    if (m_paths[index].backend == backend && m_paths[index].algorithm == algorithm) {
      m_last_path = m_paths[index];
      return index;
    }
  if (known == most_paths || backend >= most_backends) return 0;  // a call without a path's name
  const std::string text = m_names[backend] + (algorithm == nullptr ? "" : fmt::format(":{}", algorithm));
  copy_text(m_header->path[known], path_bytes, text);
  m_header->backend_of_path[known] = static_cast<std::uint8_t>(backend);
  m_paths[known] = m_last_path = {backend, algorithm, known};
  m_header->paths.store(known + 1, std::memory_order_release);
  return known;
}

void flight_recorder::begin(step what, std::uint64_t count) {
  m_open = 1;
  signature asked;
  asked.collective = static_cast<std::uint8_t>(what);
  write(++m_collectives, asked, count, 0, read_ticks(m_counter));
}

void flight_recorder::begin_check(const isthmus_operation& of) {
  m_open = 1;
  const signature asked{static_cast<std::uint8_t>(of.collective),
                        static_cast<std::uint8_t>(of.datatype),
                        static_cast<std::uint8_t>(of.op),
                        is_in_place(of),
                        true,
                        of.root};
  write(++m_collectives, asked, of.count, 0, read_ticks(m_counter));
}

void flight_recorder::fail(const char* message) noexcept {
  if (m_header->state.load(std::memory_order_relaxed) != static_cast<std::uint32_t>(life::healthy)) return;
  std::strncpy(m_header->failure, message, sizeof m_header->failure - 1);
  m_header->state.store(static_cast<std::uint32_t>(life::failed), std::memory_order_release);
}

in_flight flight_recorder::latest() const noexcept {
  for (;;) {
    const std::uint64_t written = m_header->written.load(std::memory_order_acquire);
    if (written == 0) return {};
    const entry& at = m_ring[(written - 1) % ring_entries];
    const std::uint64_t version = at.version.load(std::memory_order_acquire);
    const signature asked = unpack(at.signature.load(std::memory_order_acquire));
    in_flight found{
        written, static_cast<isthmus_collective>(asked.collective),
        static_cast<isthmus_datatype>(asked.datatype), at.count.load(std::memory_order_acquire),
        at.state.load(std::memory_order_acquire) == static_cast<std::uint64_t>(entry_state::inside)};
    // Steps and checks wait within the bootstrap, which bounds them.
    if (asked.collective >= ISTHMUS_COLLECTIVE_COUNT || asked.checking) found.busy = false;
    if (version == 2 * written && at.version.load(std::memory_order_relaxed) == version) return found;
  }
}

}  // namespace isthmus::recorder
