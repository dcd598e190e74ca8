#include "recorder/reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/descriptor.hpp"
#include "base/ticks.hpp"
#include "recorder/clock.hpp"

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

// A trace has a second moment of its own; else this is one.
tick_scale scale_of(const header& of) {
  const std::uint64_t turns = of.anchored.load(std::memory_order_relaxed);
  const bool counter = of.has_counter != 0;
  return {of.anchors[0], turns > 0 ? of.anchors[turns % 2 + 1] : read_anchor(counter), counter};
}

double ago_s(std::uint64_t ns, std::uint64_t now_ns) {
  return now_ns > ns ? static_cast<double>(now_ns - ns) * 1e-9 : 0;
}

recorded_call call_of(const plain_entry& from, const header& of, const tick_scale& scale, std::uint64_t now_ns) {
  recorded_call call;
  call.number = from.number;
  call.signature = unpack(from.signature);
  call.count = from.count;
  call.state = static_cast<entry_state>(from.state);
  const origin came = origin_of(from.path);
  call.requested_ns = scale.ns_of(from.begun - came.queued_ticks);
  call.begin_ns = scale.ns_of(from.begun);
  call.end_ns = scale.ns_of(from.ended);
  call.begin_age_s = ago_s(call.begin_ns, now_ns);
  if (from.ended != 0) call.end_age_s = ago_s(call.end_ns, now_ns);
  call.reason = came.reason;
  const std::uint32_t path = came.path;
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

// A file's bytes, read once or, while somebody may write it, three times.
using copies = std::vector<std::vector<std::byte>>;

extents parts_of(const header& of) {
  return {static_cast<std::uint64_t>(of.size), of.entries, of.reason_capacity};
}

// Entries that are whole: the version is the same, and even, before and after their bytes were copied.
std::vector<recorded_call> calls_of(const copies& of_file, const header& of, const tick_scale& scale,
                                std::uint64_t now_ns) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;  // version, offset
  const extents parts = parts_of(of);
  for (std::uint64_t index = 0; index < parts.entries; ++index) {
    const std::uint64_t offset = parts.ring_offset() + index * sizeof(entry);
    const auto before = value_at<std::uint64_t>(of_file.front(), offset);
    const auto after = value_at<std::uint64_t>(of_file.back(), offset);
    if (before != 0 && before % 2 == 0 && before == after) found.emplace_back(before, offset);
  }
  std::sort(found.begin(), found.end());
  std::vector<recorded_call> calls;
  calls.reserve(found.size());
  for (const auto& [version, offset] : found)
    calls.push_back(call_of(value_at<plain_entry>(of_file[of_file.size() / 2], offset), of, scale, now_ns));
  return calls;
}

std::vector<std::string> reasons_of(const std::vector<std::byte>& bytes, const header& of) {
  std::vector<std::string> reasons;
  const std::uint64_t known =
      std::min<std::uint64_t>(of.reasons.load(std::memory_order_relaxed), of.reason_capacity);
  for (std::uint64_t index = 0; index < known; ++index) {
    const auto* const text =
        reinterpret_cast<const char*>(bytes.data()) + parts_of(of).reasons_offset() + index * reason_bytes;
    reasons.emplace_back(text, ::strnlen(text, reason_bytes));
  }
  return reasons;
}

void look_at_process_of(const header& of, recorded_rank& record) {
  record.is_elsewhere = of.pid_namespace != own_pid_namespace() || record.boot != own_boot();
  if (!record.is_elsewhere) record.process = look_at_process(of.pid, of.start);
}

std::string text_of(const char* text, std::size_t most) { return {text, ::strnlen(text, most)}; }

// "": it can be read.
std::string why_not(const descriptor& file, int opened, std::uint64_t bytes) {
  if (file.get() < 0) return std::strerror(opened);
  if (bytes == 0) return "it is empty, or no file of this user";
  if (bytes < sizeof file_magic) return fmt::format("it is cut short: {} bytes", bytes);
  std::uint64_t magic = 0;
  if (::pread(file.get(), &magic, sizeof magic, 0) != sizeof magic) return std::strerror(errno);
  constexpr std::uint64_t name = 0xffff'ffff'ffff;  // the digit behind it is the layout's
  if ((magic & name) != (file_magic & name)) return "it was not written by a flight recorder";
  if (magic != file_magic)
    return fmt::format("it was written by another version of Isthmus: layout {}, this version reads {}",
                       static_cast<char>(magic >> 48), static_cast<char>(file_magic >> 48));
  std::vector<std::byte> head(sizeof(header));
  if (!read(file, head)) return fmt::format("it is cut short: {} bytes", bytes);
  const copied_header kept(head);
  const header& of = kept.get();
  if (of.header_bytes != sizeof(header) || of.entry_bytes != sizeof(entry) || of.size <= 0 ||
      of.size > most_ranks || of.rank < 0 || of.rank >= of.size || !std::has_single_bit(of.entries) ||
      of.entries > most_entries || of.reason_capacity > most_reasons)
    return "it is damaged";
  const std::uint64_t whole = parts_of(of).bytes();
  return bytes == whole ? "" : fmt::format("it is cut short: {} of {} bytes", bytes, whole);
}

// Once where nobody writes it any more.
copies copies_of(const descriptor& file, std::uint64_t bytes) {
  copies made(1, std::vector<std::byte>(bytes));
  if (!read(file, made[0])) return {};
  if (copied_header(made[0]).get().closed.load(std::memory_order_relaxed) != 0) return made;
  for (int again = 0; again < 2; ++again)
    if (!read(file, made.emplace_back(bytes))) return {};
  return made;
}

recorded_rank rank_of(const copies& of_file, std::uint64_t now_ns) {
  const std::vector<std::byte>& bytes = of_file[of_file.size() / 2];
  const copied_header kept(bytes);
  const header& of = kept.get();
  const std::uint64_t turns = of.anchored.load(std::memory_order_relaxed);
  const tick_scale scale = scale_of(of);
  recorded_rank record;
  record.communicator = of.token;
  record.rank = of.rank;
  record.size = of.size;
  record.pid = of.pid;
  record.timeout_s = of.timeout_s;
  record.program = text_of(of.program, sizeof of.program);
  record.machine = text_of(of.machine, sizeof of.machine);
  record.boot = text_of(of.boot, sizeof of.boot);
  record.is_closed = of.closed.load(std::memory_order_relaxed) != 0;
  record.written = of.written.load(std::memory_order_relaxed);
  record.clocks = of.anchors[turns > 0 ? turns % 2 + 1 : 0];
  record.reasons = reasons_of(bytes, of);
  if (of.state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(life::failed))
    record.failure = text_of(of.failure, sizeof of.failure);
  for (std::int32_t rank = 0; rank < of.size; ++rank)
    record.pids.push_back(
        value_at<std::int64_t>(bytes, pids_offset + static_cast<std::uint64_t>(rank) * sizeof(std::int64_t)));
  look_at_process_of(of, record);
  record.calls = calls_of(of_file, of, scale, now_ns);
  record.age_s = record.created_s = ago_s(of.anchors[0].monotonic_ns, now_ns);
  if (!record.calls.empty()) {
    const recorded_call& last = record.calls.back();
    record.age_s = last.state == entry_state::inside ? last.begin_age_s : last.end_age_s;
  }
  return record;
}

}  // namespace

std::optional<recorded_rank> read_file(const std::string& path, std::uint64_t now_ns, std::string* problem) {
  const descriptor file = open_file(path);
  const int opened = errno;
  const std::uint64_t bytes = bytes_of(file);
  std::string wrong = why_not(file, opened, bytes);
  copies of_file;
  if (wrong.empty()) of_file = copies_of(file, bytes);
  if (wrong.empty() && of_file.empty()) wrong = "it is cut short";
  if (problem != nullptr) *problem = wrong;
  if (!wrong.empty()) return std::nullopt;
  return rank_of(of_file, now_ns);
}

std::vector<recorded_rank> read_communicator(const token& communicator, int size) {
  std::vector<recorded_rank> ranks;
  const std::uint64_t now = monotonic_ns();
  for (int rank = 0; rank < size; ++rank)
    if (auto record = read_file(path_of_file(communicator, rank), now)) ranks.push_back(std::move(*record));
  return ranks;
}

const recorded_call* recorded_rank::last_collective() const {
  for (auto call = calls.rbegin(); call != calls.rend(); ++call)
    if (!call->is_message()) return &*call;
  return nullptr;
}

const recorded_call* recorded_rank::collective(std::uint64_t number) const {
  for (const recorded_call& call : calls)
    if (!call.is_message() && call.number == number) return &call;
  return nullptr;
}

std::uint64_t recorded_rank::collectives() const {
  const recorded_call* last = last_collective();
  return last == nullptr ? 0 : last->number;
}

}  // namespace isthmus::recorder
