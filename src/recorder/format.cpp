#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include "base/text.hpp"
#include "recorder/diagnosis.hpp"

namespace isthmus::recorder {
namespace {

bool is_collective(const call_signature& signature) { return signature.collective < ISTHMUS_COLLECTIVE_COUNT; }

const collective_row& row_of_call(const call_signature& signature) {
  return row_of(static_cast<isthmus_collective>(signature.collective));
}

std::string arguments_of(const recorded_call& call) {
  const call_signature& signature = call.signature;
  if (signature.collective == static_cast<std::uint8_t>(setup_step::heap_allocate))
    return fmt::format("{} bytes", call.count);
  if (!is_collective(signature)) return "";
  return arguments_text(row_of_call(signature), signature.datatype, fmt::format("{}", call.count), signature.op,
                        signature.root);
}

}  // namespace

std::string arguments_text(const collective_row& row, int datatype, const std::string& count, int op,
                           int root) {
  const auto name_or_unknown = [](const char* name) { return name == nullptr ? "?" : name; };
  std::string text;
  if (row.send_extent != extent::nothing || row.recv_extent != extent::nothing) {
    text = name_or_unknown(isthmus_datatype_name(static_cast<isthmus_datatype>(datatype)));
    if (!count.empty()) text += " x " + count;
  }
  if (row.is_reduction)
    text +=
        fmt::format(", {}", name_or_unknown(isthmus_reduction_op_name(static_cast<isthmus_reduction_op>(op))));
  if (row.peer == peer_kind::root) text += fmt::format(", root {}", root);
  return text;
}

std::string name_of(const call_signature& signature) {
  if (is_collective(signature)) return row_of_call(signature).name;
  return signature.collective == static_cast<std::uint8_t>(setup_step::split) ? "communicator_split"
                                                                              : "heap_allocate";
}

std::string text_of(const recorded_call& call, bool includes_path) {
  std::string text = (call.signature.is_check ? "check of " : "") + name_of(call.signature);
  if (call.is_message())
    text += fmt::format(" {} rank {}", call.signature.collective == ISTHMUS_SEND ? "to" : "from",
                        call.signature.root);
  else
    text += fmt::format(" #{}", call.number);
  if (const std::string arguments = arguments_of(call); !arguments.empty())
    text += fmt::format(" ({})", arguments);
  if (includes_path && !call.path.empty()) text += fmt::format(" by {}", call.path);
  return text;
}

std::string text_of(setup_step step, std::uint64_t count) {
  recorded_call call;
  call.signature.collective = static_cast<std::uint8_t>(step);
  call.count = count;
  const std::string bytes = arguments_of(call);
  return name_of(call.signature) + (bytes.empty() ? "" : fmt::format(" ({})", bytes));
}

std::string format_seconds(double value) { return fmt::format("{:.{}f} s", value, value < 10 ? 2 : 1); }

std::string list_of(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + format_list(ranks);
}

std::string list_of(const std::vector<const recorded_rank*>& ranks) {
  std::vector<std::string> each;
  for (const recorded_rank* rank : ranks) each.push_back(fmt::format("{} (pid {})", rank->rank, rank->pid));
  return (ranks.size() == 1 ? "rank " : "ranks ") + format_list(each);
}

std::string last_call_of(const recorded_rank& rank) {
  if (rank.calls.empty()) return "it has made no call yet";
  const recorded_call& last = rank.calls.back();
  if (last.state == entry_state::inside)
    return fmt::format("it has been in {} for {}", text_of(last, false), format_seconds(last.begin_age_s));
  const char* const end = last.state == entry_state::failed ? "failed" : last.has_ended ? "ended" : "enqueued";
  return fmt::format("its last call was {}, {} {} ago", text_of(last, false), end,
                     format_seconds(last.end_age_s));
}

bool calls_match(const recorded_call& a, const recorded_call& b) {
  if (a.signature.collective != b.signature.collective || a.signature.is_check != b.signature.is_check)
    return false;
  if (!is_collective(a.signature)) return a.count == b.count;
  const collective_row& row = row_of_call(a.signature);
  const bool moves_data = row.send_extent != extent::nothing || row.recv_extent != extent::nothing;
  if (moves_data && a.signature.datatype != b.signature.datatype) return false;
  if (row.is_reduction && a.signature.op != b.signature.op) return false;
  if (row.peer == peer_kind::root && a.signature.root != b.signature.root) return false;
  if (has_equal_count(row) && a.count != b.count) return false;
  return a.path == b.path;
}

}  // namespace isthmus::recorder
