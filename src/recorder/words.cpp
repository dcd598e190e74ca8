#include "recorder/words.hpp"

#include <fmt/format.h>
#include <isthmus/isthmus.h>

#include "base/text.hpp"

namespace isthmus::recorder {
namespace {

bool is_of_table(const signature& asked) { return asked.collective < ISTHMUS_COLLECTIVE_COUNT; }

const collective_row& row_of_call(const signature& asked) {
  return row_of(static_cast<isthmus_collective>(asked.collective));
}

std::string what_of(const seen_call& call) {
  const signature& asked = call.asked;
  if (asked.collective == static_cast<std::uint8_t>(step::heap_allocate))
    return fmt::format("{} bytes", call.count);
  if (!is_of_table(asked)) return "";
  return arguments_text(row_of_call(asked), asked.datatype, fmt::format("{}", call.count), asked.op,
                        asked.root);
}

}  // namespace

std::string arguments_text(const collective_row& row, int datatype, const std::string& count, int op,
                           int root) {
  const auto known = [](const char* name) { return name == nullptr ? "?" : name; };
  std::string text;
  if (row.send_extent != extent::nothing || row.recv_extent != extent::nothing) {
    text = known(isthmus_datatype_name(static_cast<isthmus_datatype>(datatype)));
    if (!count.empty()) text += " x " + count;
  }
  if (row.reduces)
    text += fmt::format(", {}", known(isthmus_reduction_op_name(static_cast<isthmus_reduction_op>(op))));
  if (row.peer == peer_kind::root) text += fmt::format(", root {}", root);
  return text;
}

std::string name_of(const signature& asked) {
  if (is_of_table(asked)) return row_of_call(asked).name;
  return asked.collective == static_cast<std::uint8_t>(step::split) ? "communicator_split" : "heap_allocate";
}

std::string text_of(const seen_call& call, bool with_path) {
  std::string text = (call.asked.checking ? "check of " : "") + name_of(call.asked);
  if (call.is_message())
    text += fmt::format(" {} rank {}", call.asked.collective == ISTHMUS_SEND ? "to" : "from", call.asked.root);
  else
    text += fmt::format(" #{}", call.number);
  if (const std::string what = what_of(call); !what.empty()) text += fmt::format(" ({})", what);
  if (with_path && !call.path.empty()) text += fmt::format(" by {}", call.path);
  return text;
}

std::string text_of(step what, std::uint64_t count) {
  seen_call call;
  call.asked.collective = static_cast<std::uint8_t>(what);
  call.count = count;
  const std::string bytes = what_of(call);
  return name_of(call.asked) + (bytes.empty() ? "" : fmt::format(" ({})", bytes));
}

std::string seconds(double value) { return fmt::format("{:.{}f} s", value, value < 10 ? 2 : 1); }

std::string list_of(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + enumerate(ranks);
}

std::string list_of(const std::vector<const seen_rank*>& ranks) {
  std::vector<std::string> each;
  for (const seen_rank* rank : ranks) each.push_back(fmt::format("{} (pid {})", rank->rank, rank->pid));
  return (ranks.size() == 1 ? "rank " : "ranks ") + enumerate(each);
}

std::string last_call_of(const seen_rank& rank) {
  if (rank.calls.empty()) return "it has called nothing yet";
  const seen_call& last = rank.calls.back();
  if (last.state == entry_state::inside)
    return fmt::format("it is in {} since {}", text_of(last, false), seconds(last.begun_s));
  const char* const end = last.state == entry_state::failed ? "failed"
                          : last.has_ended                  ? "ended"
                                                            : "handed over";
  return fmt::format("its last call was {}, {} {} ago", text_of(last, false), end, seconds(last.ended_s));
}

bool agree(const seen_call& a, const seen_call& b) {
  if (a.asked.collective != b.asked.collective || a.asked.checking != b.asked.checking) return false;
  if (!is_of_table(a.asked)) return a.count == b.count;
  const collective_row& row = row_of_call(a.asked);
  const bool moves = row.send_extent != extent::nothing || row.recv_extent != extent::nothing;
  if (moves && a.asked.datatype != b.asked.datatype) return false;
  if (row.reduces && a.asked.op != b.asked.op) return false;
  if (row.peer == peer_kind::root && a.asked.root != b.asked.root) return false;
  if (has_equal_count(row) && a.count != b.count) return false;
  return a.path == b.path;
}

}  // namespace isthmus::recorder
