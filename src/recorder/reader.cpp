#include "recorder/reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/descriptor.hpp"
#include "base/ticks.hpp"

namespace isthmus::recorder {
namespace {

constexpr std::int32_t most_ranks = 1 << 20;  // what a file may claim

descriptor open_file(const std::string& path) {
  return descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// Its own user's, or root's look at another's; 0 where it is no such file.
std::uint64_t bytes_of(const descriptor& file) {
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  if (status.st_uid != ::geteuid() && ::geteuid() != 0) return 0;
  return static_cast<std::uint64_t>(status.st_size);
}

// By read, not by mapping: a file that is cut meanwhile gives less, not SIGBUS.
bool read(const descriptor& file, std::vector<std::byte>& into) {
  return ::pread(file.get(), into.data(), into.size(), 0) == static_cast<ssize_t>(into.size());
}

template <typename Value>
Value value_at(const std::vector<std::byte>& bytes, std::uint64_t offset) {
  Value value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The words of an entry as they are in a copy.
struct plain_entry {
  std::uint64_t version, number, signature, count, path, begun, ended, state;
};
static_assert(sizeof(plain_entry) == sizeof(entry));

// The header's fields that are written later are read as words of the copy, too.
struct copied_header {
  explicit copied_header(const std::vector<std::byte>& bytes) { std::memcpy(raw, bytes.data(), sizeof raw); }
  const header& get() const { return *reinterpret_cast<const header*>(raw); }
  alignas(header) std::byte raw[sizeof(header)];
};

// A file's ticks, in seconds before the moment `now_ns`.
class tick_scale {
 public:
  tick_scale(const header& made, std::uint64_t now_ns)
      : m_ticks(read_ticks(made.has_counter != 0)), m_ns(monotonic_ns()), m_now_ns(now_ns) {
    if (made.has_counter != 0 && m_ticks > made.made_ticks)
      m_ns_per_tick = static_cast<double>(m_ns - made.made_ns) / static_cast<double>(m_ticks - made.made_ticks);
  }
  double ago_s(std::uint64_t ticks) const {
    const double before_read = (static_cast<double>(m_ticks) - static_cast<double>(ticks)) * m_ns_per_tick;
    return std::max(0.0, before_read - static_cast<double>(m_ns - m_now_ns)) * 1e-9;
  }

 private:
  std::uint64_t m_ticks, m_ns, m_now_ns;
  double m_ns_per_tick = 1;
};

seen_call call_of(const plain_entry& from, const header& of, const tick_scale& scale) {
  seen_call call;
  call.number = from.number;
  call.asked = unpack(from.signature);
  call.count = from.count;
  call.state = static_cast<entry_state>(from.state);
  call.begun_s = scale.ago_s(from.begun);
  if (from.ended != 0) call.ended_s = scale.ago_s(from.ended);
  const std::uint64_t path = from.path;
  if (path == 0 || path >= most_paths) {
    call.has_ended = call.state == entry_state::returned;
    return call;
  }
  call.path = std::string(of.path[path], ::strnlen(of.path[path], path_bytes));
  const std::size_t backend = of.backend_of_path[path] % most_backends;
  call.is_blocking = (of.blocking >> backend & 1) != 0;
  call.has_ended = call.is_blocking && call.state == entry_state::returned;
  return call;
}

// Entries that are whole: the version is the same, and even, before and after their bytes were copied.
std::vector<seen_call> calls_of(const std::array<std::vector<std::byte>, 3>& copies, const header& of,
                                const tick_scale& scale) {
  std::vector<std::pair<std::uint64_t, seen_call>> found;
  const std::uint64_t ring = ring_offset(static_cast<std::uint64_t>(of.size));
  for (std::uint64_t index = 0; index < ring_entries; ++index) {
    const std::uint64_t offset = ring + index * sizeof(entry);
    const auto before = value_at<std::uint64_t>(copies[0], offset);
    const auto after = value_at<std::uint64_t>(copies[2], offset);
    if (before == 0 || before % 2 != 0 || before != after) continue;
    found.emplace_back(before, call_of(value_at<plain_entry>(copies[1], offset), of, scale));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<seen_call> calls;
  for (auto& [version, call] : found) calls.push_back(std::move(call));
  return calls;
}

void look_at_process_of(const header& of, seen_rank& seen) {
  seen.is_elsewhere = of.pid_namespace != own_pid_namespace();
  if (!seen.is_elsewhere) seen.process = look_at_process(of.pid, of.start);
}

bool is_whole(const header& of, std::uint64_t bytes) {
  return of.magic == file_magic && of.header_bytes == sizeof(header) && of.entry_bytes == sizeof(entry) &&
         of.size > 0 && of.size <= most_ranks && of.rank >= 0 && of.rank < of.size &&
         bytes == file_bytes(static_cast<std::uint64_t>(of.size));
}

}  // namespace

std::optional<seen_rank> read_file(const std::string& path, std::uint64_t now_ns) {
  const descriptor file = open_file(path);
  const std::uint64_t bytes = bytes_of(file);
  if (bytes < sizeof(header) || bytes > file_bytes(most_ranks)) return std::nullopt;
  std::array<std::vector<std::byte>, 3> copies;
  for (auto& copy : copies) {
    copy.resize(bytes);
    if (!read(file, copy)) return std::nullopt;
  }
  const copied_header kept(copies[1]);
  const header& of = kept.get();
  if (!is_whole(of, bytes)) return std::nullopt;
  const tick_scale scale(of, now_ns);
  seen_rank seen;
  seen.communicator = of.token;
  seen.rank = of.rank;
  seen.size = of.size;
  seen.pid = of.pid;
  seen.timeout_s = of.timeout_s;
  seen.program = std::string(of.program, ::strnlen(of.program, sizeof of.program));
  if (of.state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(life::failed))
    seen.failure = std::string(of.failure, ::strnlen(of.failure, sizeof of.failure));
  for (std::int32_t rank = 0; rank < of.size; ++rank)
    seen.pids.push_back(value_at<std::int64_t>(
        copies[1], pids_offset + static_cast<std::uint64_t>(rank) * sizeof(std::int64_t)));
  look_at_process_of(of, seen);
  seen.calls = calls_of(copies, of, scale);
  seen.age_s = seen.made_s = scale.ago_s(of.made_ticks);
  if (!seen.calls.empty()) {
    const seen_call& last = seen.calls.back();
    seen.age_s = last.state == entry_state::inside ? last.begun_s : last.ended_s;
  }
  return seen;
}

std::vector<seen_rank> read_communicator(const token& communicator, int size) {
  std::vector<seen_rank> ranks;
  const std::uint64_t now = monotonic_ns();
  for (int rank = 0; rank < size; ++rank)
    if (auto seen = read_file(path_of_file(communicator, rank), now)) ranks.push_back(std::move(*seen));
  return ranks;
}

const seen_call* seen_rank::last_collective() const {
  for (auto call = calls.rbegin(); call != calls.rend(); ++call)
    if (!call->is_message()) return &*call;
  return nullptr;
}

const seen_call* seen_rank::collective(std::uint64_t number) const {
  for (const seen_call& call : calls)
    if (!call.is_message() && call.number == number) return &call;
  return nullptr;
}

std::uint64_t seen_rank::collectives() const {
  const seen_call* last = last_collective();
  return last == nullptr ? 0 : last->number;
}

}  // namespace isthmus::recorder
