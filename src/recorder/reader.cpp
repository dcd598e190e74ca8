#include "recorder/reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/file_descriptor.hpp"
#include "base/ticks.hpp"

namespace isthmus::recorder {
namespace {

constexpr std::int32_t max_ranks = 1 << 20;  // limit for the value in a file

file_descriptor open_file(const std::string& path) {
  return file_descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// Returns the size if this is a regular file of this user (root: of any user), otherwise 0.
std::uint64_t file_bytes(const file_descriptor& file) {
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  if (status.st_uid != ::geteuid() && ::geteuid() != 0) return 0;
  return static_cast<std::uint64_t>(status.st_size);
}

// Reads the file instead of mapping it. If the file is truncated in the meantime, a read returns fewer bytes,
// but an access to a mapping raises SIGBUS.
bool read(const file_descriptor& file, std::vector<std::byte>& destination) {
  return ::pread(file.get(), destination.data(), destination.size(), 0) ==
         static_cast<ssize_t>(destination.size());
}

template <typename Value>
Value value_at(const std::vector<std::byte>& bytes, std::uint64_t offset) {
  Value value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The words of an entry in a copy of the file.
struct entry_copy {
  std::uint64_t version, number, signature, count, path, begin_ticks, end_ticks, state;
};
static_assert(sizeof(entry_copy) == sizeof(entry));

// Copy of a header. The atomic members are also read from the copy.
struct header_copy {
  explicit header_copy(const std::vector<std::byte>& bytes) { std::memcpy(raw, bytes.data(), sizeof raw); }
  const header& get() const { return *reinterpret_cast<const header*>(raw); }
  alignas(header) std::byte raw[sizeof(header)];
};

// A trace contains a second clock sample. If there is none, take one now.
tick_scale scale_of(const header& head) {
  const std::uint64_t sample_count = head.clock_sample_count.load(std::memory_order_relaxed);
  const bool has_counter = head.has_counter != 0;
  return {head.clock_samples[0],
          sample_count > 0 ? head.clock_samples[sample_count % 2 + 1] : sample_clocks(has_counter),
          has_counter};
}

double age_in_s(std::uint64_t ns, std::uint64_t now_ns) {
  return now_ns > ns ? static_cast<double>(now_ns - ns) * 1e-9 : 0;
}

recorded_call decode_call(const entry_copy& source, const header& head, const tick_scale& scale,
                          std::uint64_t now_ns) {
  recorded_call call;
  call.number = source.number;
  call.signature = unpack(source.signature);
  call.count = source.count;
  call.state = static_cast<entry_state>(source.state);
  call.begin_ns = scale.ns_of(source.begin_ticks);
  call.end_ns = scale.ns_of(source.end_ticks);
  call.begin_age_s = age_in_s(call.begin_ns, now_ns);
  if (source.end_ticks != 0) call.end_age_s = age_in_s(call.end_ns, now_ns);
  const std::uint32_t path = origin_of(source.path).path;
  if (path == 0 || path >= max_paths) {
    call.has_ended = call.state == entry_state::returned;
    return call;
  }
  call.path = std::string(head.path[path], ::strnlen(head.path[path], path_bytes));
  const std::size_t backend = head.backend_of_path[path] % max_backends;
  call.is_blocking = (head.blocking_backends >> backend & 1) != 0;
  call.has_ended = call.is_blocking && call.state == entry_state::returned;
  return call;
}

// Contents of a file. The file is read three times if a process may still write to it, and once otherwise.
using copy_list = std::vector<std::vector<std::byte>>;

file_layout layout_of(const header& head) {
  return {static_cast<std::uint64_t>(head.size), head.entries, head.reason_capacity};
}

// Decodes the complete entries: those whose version is even and equal before and after the copy.
std::vector<recorded_call> decode_calls(const copy_list& file_copies, const header& head,
                                        const tick_scale& scale, std::uint64_t now_ns) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> versions;  // version, offset
  const file_layout layout = layout_of(head);
  for (std::uint64_t index = 0; index < layout.entries; ++index) {
    const std::uint64_t offset = layout.ring_offset() + index * sizeof(entry);
    const auto before = value_at<std::uint64_t>(file_copies.front(), offset);
    const auto after = value_at<std::uint64_t>(file_copies.back(), offset);
    if (before != 0 && before % 2 == 0 && before == after) versions.emplace_back(before, offset);
  }
  std::sort(versions.begin(), versions.end());
  std::vector<recorded_call> calls;
  calls.reserve(versions.size());
  for (const auto& [version, offset] : versions)
    calls.push_back(
        decode_call(value_at<entry_copy>(file_copies[file_copies.size() / 2], offset), head, scale, now_ns));
  return calls;
}

void check_process(const header& head, recorded_rank& record) {
  record.is_remote = head.pid_namespace != current_pid_namespace() || record.boot != current_boot_id();
  if (record.is_remote) return;
  const bool is_exiting = head.health.closing.load(std::memory_order_relaxed) == health_record::exiting;
  record.process = is_exiting ? process_state::exited : read_process_state(head.pid, head.start);
}

std::string text_of(const char* text, std::size_t capacity) { return {text, ::strnlen(text, capacity)}; }

bool is_readable(const file_descriptor& file, std::uint64_t bytes) {
  std::vector<std::byte> header_bytes_read(sizeof(header));
  if (bytes < sizeof(header) || !read(file, header_bytes_read)) return false;
  const header_copy copy(header_bytes_read);
  const header& head = copy.get();
  return head.magic == file_magic && head.header_bytes == sizeof(header) && head.entry_bytes == sizeof(entry) &&
         head.size > 0 && head.size <= max_ranks && head.rank >= 0 && head.rank < head.size &&
         std::has_single_bit(head.entries) && head.entries <= max_entries &&
         head.reason_capacity <= max_reasons && bytes == layout_of(head).bytes();
}

// Reads a file once if its writer has closed it, otherwise three times.
copy_list read_copies(const file_descriptor& file, std::uint64_t bytes) {
  copy_list result(1, std::vector<std::byte>(bytes));
  if (!read(file, result[0])) return {};
  if (header_copy(result[0]).get().health.closing.load(std::memory_order_relaxed) == health_record::destroyed)
    return result;
  for (int attempt = 0; attempt < 2; ++attempt)
    if (!read(file, result.emplace_back(bytes))) return {};
  return result;
}

recorded_rank decode_rank(const copy_list& file_copies, std::uint64_t now_ns) {
  const std::vector<std::byte>& bytes = file_copies[file_copies.size() / 2];
  const header_copy copy(bytes);
  const header& head = copy.get();
  const std::uint64_t sample_count = head.clock_sample_count.load(std::memory_order_relaxed);
  const tick_scale scale = scale_of(head);
  recorded_rank record;
  record.communicator = head.token;
  record.rank = head.rank;
  record.size = head.size;
  record.pid = head.pid;
  record.pid_namespace = head.pid_namespace;
  record.start = head.start;
  record.timeout_s = head.timeout_s;
  record.program = text_of(head.program, sizeof head.program);
  record.machine = text_of(head.machine, sizeof head.machine);
  record.boot = text_of(head.boot, sizeof head.boot);
  record.is_closed = head.health.closing.load(std::memory_order_relaxed) == health_record::destroyed;
  record.call_count = head.health.call_count.load(std::memory_order_relaxed);
  record.clocks = head.clock_samples[sample_count > 0 ? sample_count % 2 + 1 : 0];
  if (head.health.has_failed()) {
    const failure_info failure = head.health.failure();
    record.failure = text_of(failure.message, sizeof failure.message);
  }
  record.awaited_rank = static_cast<int>(head.health.awaited_rank.load(std::memory_order_relaxed)) - 1;
  for (std::int32_t rank = 0; rank < head.size; ++rank)
    record.pids.push_back(
        value_at<std::int64_t>(bytes, pids_offset + static_cast<std::uint64_t>(rank) * sizeof(std::int64_t)));
  check_process(head, record);
  record.calls = decode_calls(file_copies, head, scale, now_ns);
  record.age_s = record.created_s = age_in_s(head.clock_samples[0].monotonic_ns, now_ns);
  if (!record.calls.empty()) {
    const recorded_call& last = record.calls.back();
    record.age_s = last.state == entry_state::inside ? last.begin_age_s : last.end_age_s;
  }
  return record;
}

}  // namespace

std::optional<recorded_rank> read_file(const std::string& path, std::uint64_t now_ns) {
  const file_descriptor file = open_file(path);
  const std::uint64_t bytes = file_bytes(file);
  if (!is_readable(file, bytes)) return std::nullopt;
  const copy_list file_copies = read_copies(file, bytes);
  if (file_copies.empty()) return std::nullopt;
  return decode_rank(file_copies, now_ns);
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
