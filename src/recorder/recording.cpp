#include "recorder/recording.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <fstream>
#include <new>
#include <utility>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "base/internal_mapping.hpp"
#include "base/process.hpp"
#include "base/ticks.hpp"

namespace isthmus::recorder {
namespace {

std::string first_line_of(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::uint64_t realtime_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

// The thread may be preempted between two readings, so use the shortest of several tries.
clock_sample sample_clocks(bool has_counter) noexcept {
  constexpr int max_tries = 3;
  constexpr std::uint64_t short_ticks = 1000;
  clock_sample best{};
  std::uint64_t min_ticks = ~std::uint64_t{0};
  for (int i = 0; i < max_tries && min_ticks > short_ticks; ++i) {
    const std::uint64_t before = read_ticks(has_counter);
    const std::uint64_t monotonic = monotonic_ns();
    const std::uint64_t after = read_ticks(has_counter);
    if (after - before >= min_ticks) continue;
    min_ticks = after - before;
    best = {before + min_ticks / 2, monotonic, 0};
  }
  best.realtime_ns = realtime_ns() - (monotonic_ns() - best.monotonic_ns);
  return best;
}

// Owner of the mapping. Also owns the file, unless the file is persistent.
struct recording::memory {
  explicit memory(std::uint64_t size) : bytes(size) {}
  ~memory() {
    if (mapping != nullptr) unmap_internal(mapping, bytes);
    if (!path.empty() && creator_pid == ::getpid()) ::unlink(path.c_str());
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  // Returns 0 or errno.
  int map_file(const std::string& name) {
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0) return errno;
    path = name;
    // Allocate all pages now, because a missing page would raise SIGBUS in the middle of a call.
    int problem = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    if (problem == 0) problem = map(MAP_SHARED, fd);
    ::close(fd);
    if (problem != 0) ::unlink(std::exchange(path, {}).c_str());
    return problem;
  }
  // Memory without a name, which needs no space in a file system. Peers open it through /proc. Returns 0 or errno.
  int map_unnamed() {
    unnamed_file = file_descriptor(::memfd_create("isthmus-recorder", MFD_CLOEXEC));
    if (unnamed_file.get() < 0 || ::ftruncate(unnamed_file.get(), static_cast<off_t>(bytes)) != 0) return errno;
    return map(MAP_SHARED, unnamed_file.get());
  }
  int map(int flags, int fd) {
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED) return errno;
    mapping = address;
    return 0;
  }

  std::uint64_t bytes;
  void* mapping = nullptr;
  std::string path;
  file_descriptor unnamed_file;  // stays open, so that peers can map it at any time
  bool is_shared = false;
  const pid_t creator_pid = ::getpid();  // a forked child shares the mapping but does not own the file
};

std::shared_ptr<const peer_recording> peer_recording::open(const token& communicator, int rank,
                                                           const recording_address& address) noexcept {
  try {
    const bool is_named = address.descriptor < 0;
    const std::string path = is_named ? path_of_file(communicator, rank)
                                      : fmt::format("/proc/{}/fd/{}", address.pid, address.descriptor);
    const file_descriptor file(
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (is_named ? O_NOFOLLOW : 0)));
    struct stat status{};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != ::geteuid() || status.st_size < static_cast<off_t>(sizeof(header)))
      return nullptr;
    std::shared_ptr<peer_recording> result(new peer_recording);
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* const mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
    if (mapping == MAP_FAILED) return nullptr;
    result->m_header = static_cast<header*>(mapping);
    result->m_bytes = bytes;
    const header& head = *result->m_header;
    if (std::atomic_ref(result->m_header->magic).load(std::memory_order_acquire) != file_magic ||
        head.token != communicator || head.rank != rank || head.entries != ring_entries ||
        file_layout{static_cast<std::uint64_t>(head.size)}.bytes() != bytes)
      return nullptr;
    return result;
  } catch (...) {  // no memory
    return nullptr;
  }
}

peer_recording::~peer_recording() {
  if (m_header != nullptr) unmap_internal(m_header, m_bytes);
}

bool peer_recording::has_completed(std::uint64_t number) const noexcept {
  const file_layout layout{static_cast<std::uint64_t>(m_header->size)};
  const auto* const ring =
      reinterpret_cast<const entry*>(reinterpret_cast<const std::byte*>(m_header) + layout.ring_offset());
  bool has_collective = false;
  for (std::uint64_t i = 0; i < layout.entries; ++i) {
    const call_signature signature = unpack(ring[i].signature.load(std::memory_order_acquire));
    const std::uint64_t version = ring[i].version.load(std::memory_order_acquire);
    const bool is_message = signature.collective == ISTHMUS_SEND || signature.collective == ISTHMUS_RECV;
    if (version == 0 || version % 2 != 0 || is_message) continue;
    has_collective = true;
    const std::uint64_t each = ring[i].number.load(std::memory_order_acquire);
    const bool is_inside =
        ring[i].state.load(std::memory_order_acquire) == static_cast<std::uint64_t>(entry_state::inside);
    if (each > number || (each == number && !is_inside)) return true;
  }
  const bool has_overwritten_entries =
      m_header->health.call_count.load(std::memory_order_acquire) > layout.entries;
  return !has_collective && has_overwritten_entries;  // unknown
}

recording::recording() = default;

bool recording::is_shared() const noexcept { return m_memory && m_memory->is_shared; }
int recording::descriptor() const noexcept { return m_memory->unnamed_file.get(); }
bool recording::is_own() const noexcept { return m_header != nullptr && m_memory->creator_pid == ::getpid(); }

recording::~recording() {
  if (is_own()) add_clock_sample(sample_clocks(m_header->has_counter != 0).ticks);
  mark(health_record::destroyed);
}

bool recording::mark(std::uint32_t closing) noexcept {
  if (!is_own()) return false;
  m_header->health.closing.store(closing, std::memory_order_release);
  return true;
}

int recording::open(const std::string& path, bool is_persistent, const file_layout& layout) {
  auto target = std::make_unique<memory>(layout.bytes());
  if (const int problem = target->map_file(path); problem != 0) return problem;
  target->is_shared = true;
  if (is_persistent) target->path.clear();
  m_memory = std::move(target);
  attach(layout);
  return 0;
}

void recording::open_unnamed(const file_layout& layout) {
  auto target = std::make_unique<memory>(layout.bytes());
  target->is_shared = target->map_unnamed() == 0;
  if (!target->is_shared && target->map(MAP_PRIVATE | MAP_ANONYMOUS, -1) != 0) throw std::bad_alloc();
  m_memory = std::move(target);
  attach(layout);
}

void recording::attach(const file_layout& layout) {
  auto* const bytes = static_cast<std::byte*>(m_memory->mapping);
  m_header = new (bytes) header{};
  m_ring = reinterpret_cast<entry*>(bytes + layout.ring_offset());
  m_mask = layout.entries - 1;
  m_header->entries = layout.entries;
  m_header->reason_capacity = layout.reasons;
}

void recording::publish(const membership& ranks, double timeout_s, bool has_counter) {
  header& target = *m_header;
  auto* const pids = reinterpret_cast<std::int64_t*>(static_cast<std::byte*>(m_memory->mapping) + pids_offset);
  const int node = ranks.node_of[static_cast<std::size_t>(ranks.rank)];
  for (std::size_t rank = 0; rank < ranks.pid_of.size(); ++rank)
    pids[rank] = ranks.node_of[rank] == node ? ranks.pid_of[rank] : 0;
  target.header_bytes = sizeof(header);
  target.entry_bytes = sizeof(entry);
  target.token = ranks.token;
  target.rank = ranks.rank;
  target.size = ranks.size;
  target.pid = ::getpid();
  target.start = process_start_time(target.pid);
  target.pid_namespace = current_pid_namespace();
  target.has_counter = has_counter ? 1 : 0;
  target.clock_samples[0] = sample_clocks(has_counter);
  target.timeout_s = timeout_s;
  copy_text(target.program, sizeof target.program, first_line_of("/proc/self/comm"));
  copy_text(target.machine, sizeof target.machine, first_line_of("/proc/sys/kernel/hostname"));
  copy_text(target.boot, sizeof target.boot, current_boot_id());
  copy_text(target.path[0], path_bytes, "");  // set-up steps have no path
  target.paths.store(1, std::memory_order_release);
  target.reasons.store(1, std::memory_order_release);  // index 0 means no reason
  std::atomic_ref(target.magic).store(file_magic, std::memory_order_release);
}

void recording::add_path(std::size_t backend, const std::string& name) {
  const std::uint32_t count_before = m_header->paths.load(std::memory_order_relaxed);
  copy_text(m_header->path[count_before], path_bytes, name);
  m_header->backend_of_path[count_before] = static_cast<std::uint8_t>(backend);
  m_header->paths.store(count_before + 1, std::memory_order_release);
}

std::uint32_t recording::add_reason(const std::string& reason) {
  const std::uint32_t count_before = m_header->reasons.load(std::memory_order_relaxed);
  const file_layout layout{static_cast<std::uint64_t>(m_header->size), m_header->entries,
                           m_header->reason_capacity};
  auto* const texts = static_cast<char*>(m_memory->mapping) + layout.reasons_offset();
  std::string truncated_reason = reason.substr(0, reason_bytes - 1);
  for (std::uint32_t index = 1; index < count_before; ++index)
    if (truncated_reason == texts + index * reason_bytes) return index;
  if (count_before >= layout.reasons) return 0;
  copy_text(texts + count_before * reason_bytes, reason_bytes, truncated_reason);
  m_header->reasons.store(count_before + 1, std::memory_order_release);
  return count_before;
}

void recording::add_clock_sample(std::uint64_t now) noexcept {
  const clock_sample read = sample_clocks(m_header->has_counter != 0);
  const std::uint64_t count = m_header->clock_sample_count.load(std::memory_order_relaxed) + 1;
  m_header->clock_samples[count % 2 + 1] = read;
  m_header->clock_sample_count.store(count, std::memory_order_release);
  m_next_sample = now + (now - m_header->clock_samples[0].ticks) / 8;
}

}  // namespace isthmus::recorder
