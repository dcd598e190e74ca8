#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "base/tables.hpp"
#include "recorder/format.hpp"
#include "recorder/trace.hpp"

namespace isthmus::recorder {
namespace {

error cannot_write(const std::string& path, int problem) {
  return make_error(
      ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
      fmt::format("trace: {} cannot be written: {}", path, std::strerror(problem)),
      problem == EEXIST ? "choose a file that does not exist; existing files are not overwritten" : "");
}

// Buffered writer for a new text file.
class writer {
 public:
  explicit writer(const std::string& path)
      : m_path(path),
        m_file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR)) {
    if (m_file.get() < 0) throw cannot_write(path, errno);
  }

  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    constexpr std::size_t flush_bytes = 1u << 20;
    fmt::format_to(std::back_inserter(m_text), format, std::forward<Arguments>(arguments)...);
    if (m_text.size() > flush_bytes) flush();
  }
  void flush() {
    for (std::size_t done = 0; done < m_text.size();) {
      const ssize_t n = ::write(m_file.get(), m_text.data() + done, m_text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw cannot_write(m_path, errno);
      done += static_cast<std::size_t>(n);
    }
    m_text.clear();
  }

 private:
  std::string m_path;
  file_descriptor m_file;
  fmt::memory_buffer m_text;
};

std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Returns the size of the call as defined by nccl-tests. For collectives with counts, this is the size of the
// rank's own block. The count of a set-up step is in bytes.
std::uint64_t bytes_of_call(const recorded_call& call, int size) {
  if (call.signature.collective >= ISTHMUS_COLLECTIVE_COUNT) return call.count;
  isthmus_operation operation{};
  operation.collective = static_cast<isthmus_collective>(call.signature.collective);
  operation.datatype = static_cast<isthmus_datatype>(call.signature.datatype);
  operation.count = call.count;
  if (call.signature.datatype >= ISTHMUS_DATATYPE_COUNT) return 0;
  if (has_counts(row_of(operation.collective))) return call.count * bytes_of(operation.datatype);
  return selection_bytes(operation, size).value_or(0);
}

const char* category_of(const recorded_call& call) {
  if (call.signature.collective >= ISTHMUS_COLLECTIVE_COUNT || call.signature.is_check) return "set-up";
  return call.is_message() ? "message" : "collective";
}

class timeline_writer {
 public:
  timeline_writer(const trace& merged_trace, const std::string& path) : m_trace(merged_trace), m_out(path) {
    m_start = std::numeric_limits<std::uint64_t>::max();
    for (const traced_communicator& each : merged_trace.communicators)
      for (const traced_rank& rank : each.ranks)
        for (const recorded_call& call : rank.record.calls) m_start = std::min(m_start, call.requested_ns);
  }

  void write() {
    m_out.add("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (const traced_communicator& each : m_trace.communicators) {
      std::unordered_map<const recorded_call*, const matched_call*> match_of;
      for (const matched_call& collective : each.calls)
        for (const recorded_call* call : collective.rank_calls) match_of[call] = &collective;
      for (const traced_rank& rank : each.ranks) {
        name_track(rank.record);
        for (const recorded_call& call : rank.record.calls) {
          const auto collective = match_of.find(&call);
          add(each, rank.record, call, collective == match_of.end() ? nullptr : collective->second);
        }
      }
    }
    m_out.add("\n]}}\n");
    m_out.flush();
  }

 private:
  double to_us(std::uint64_t ns) const {
    return static_cast<double>(static_cast<std::int64_t>(ns - m_start)) * 1e-3;
  }

  // The timeline has one process per boot and pid, with one thread per rank of each communicator. The file uses
  // its own numbers because processes of two machines can have the same pid.
  void name_track(const recorded_rank& record) {
    const auto [process, is_new] = m_processes.try_emplace({record.boot, record.pid}, m_processes.size() + 1);
    m_process = process->second;
    ++m_thread;
    if (is_new) {
      const std::string name =
          fmt::format("rank {}: {} (pid {}) on {}", record.rank, record.program, record.pid, record.machine);
      m_out.add("{}{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":{}}}}}",
                m_process == 1 ? "\n" : ",\n", m_process, quote(name));
      m_out.add(",\n{{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{},\"args\":{{\"sort_index\":{}}}}}",
                m_process, record.rank);
    }
    const std::string name = fmt::format("rank {} of {}, communicator {:08x}", record.rank, record.size,
                                         record.communicator[0] >> 32);
    m_out.add(",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}",
              m_process, m_thread, quote(name));
  }

  void add(const traced_communicator& communicator, const recorded_rank& record, const recorded_call& call,
           const matched_call* collective) {
    const bool is_open = call.end_ns == 0;  // the rank was still in the call at the end
    m_out.add(",\n{{\"ph\":\"{}\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f}",
              is_open ? "B" : "X", quote(name_of(call.signature)), category_of(call), m_process, m_thread,
              to_us(call.begin_ns));
    if (!is_open) m_out.add(",\"dur\":{:.3f}", std::max(0.0, to_us(call.end_ns) - to_us(call.begin_ns)));
    m_out.add(",\"args\":{{\"call\":{},\"bytes\":{},\"enqueued_us\":{:.3f},\"path\":{}",
              quote(text_of(call, false)), bytes_of_call(call, record.size), to_us(call.requested_ns),
              quote(call.path));
    if (call.reason > 0 && call.reason < record.reasons.size())
      m_out.add(",\"reason\":{}", quote(record.reasons[call.reason]));
    if (call.state == entry_state::failed) m_out.add(",\"failed\":{}", quote(record.failure));
    if (!call.is_blocking) m_out.add(",\"end\":\"enqueued on the stream\"");
    if (collective != nullptr)
      m_out.add(",\"last_rank\":{},\"last_behind_us\":{:.3f},\"others_waited_us\":{:.3f}",
                communicator.ranks[collective->last].record.rank,
                static_cast<double>(collective->delay_ns) * 1e-3,
                static_cast<double>(collective->waited_ns) * 1e-3);
    m_out.add("}}}}");
  }

  const trace& m_trace;
  writer m_out;
  std::uint64_t m_start = 0;
  std::map<std::pair<std::string, std::int64_t>, std::size_t> m_processes;
  std::size_t m_process = 0, m_thread = 0;
};

}  // namespace

void write_timeline(const trace& merged_trace, const std::string& path) {
  timeline_writer(merged_trace, path).write();
}

}  // namespace isthmus::recorder
