#include "frontends/mpi/tallies.hpp"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace isthmus::mpi_shim {
namespace {

constexpr const char* reason_texts[reason_count] = {
    "nothing to move",
    "an argument that MPI is to check",
    "a datatype that Isthmus does not reduce",
    "an operation other than sum, prod, min and max",
    "MPI_Reduce_scatter with uneven counts",
    "a communicator of one rank",
    "an intercommunicator",
    "MPI_Init was not called, or MPI is finalised",
    "an MPI that takes device memory",
    "its ranks do not reach each other's memory",
    "no backend for it",
    "a rank was lost",
    "the first calls of a communicator",
};

// Never destroyed: calls may come until the very end.
struct books {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, tally> taken;
  std::atomic<std::uint64_t> passed[call_count][reason_count] = {};
};
books& all_books() {
  static books* const only = new books;
  return *only;
}

bool says_nothing() {
  const char* const level = std::getenv("ISTHMUS_LOG");
  return level != nullptr && (std::string_view(level) == "off" || std::string_view(level) == "error");
}

}  // namespace

bool is_reporting() noexcept {
  static const bool asked = [] {
    const char* const value = std::getenv("ISTHMUS_MPI_REPORT");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  return asked;
}

void count_passed(call which, reason why) noexcept {
  if (is_reporting())
    all_books().passed[static_cast<int>(which)][static_cast<int>(why)].fetch_add(1, std::memory_order_relaxed);
}

tally& tally_of(call which, const char* path) {
  const std::lock_guard lock(all_books().mutex);
  return all_books().taken[{static_cast<int>(which), path}];
}

void print_report(int rank, int size) {
  const std::lock_guard lock(all_books().mutex);
  std::string text =
      "isthmus: mpi: calls of rank " + std::to_string(rank) + " of " + std::to_string(size) + "\n";
  char line[256];
  std::snprintf(line, sizeof line, "  %-26s %-24s %12s %16s %12s\n", "call", "path", "calls", "bytes", "ms");
  text += line;
  for (const auto& [what, count] : all_books().taken) {
    std::snprintf(line, sizeof line, "  %-26s %-24s %12llu %16llu %12.3f\n", call_names[what.first],
                  what.second.c_str(), static_cast<unsigned long long>(count.calls.load()),
                  static_cast<unsigned long long>(count.bytes.load()),
                  static_cast<double>(count.nanoseconds.load()) / 1e6);
    text += line;
  }
  for (int which = 0; which < call_count; ++which)
    for (int why = 0; why < reason_count; ++why) {
      const std::uint64_t calls = all_books().passed[which][why].load();
      if (calls == 0) continue;
      std::snprintf(line, sizeof line, "  %-26s %-24s %12llu  %s\n", call_names[which], "passed to MPI",
                    static_cast<unsigned long long>(calls), reason_texts[why]);
      text += line;
    }
  std::fputs(text.c_str(), stderr);
}

void warn_once(const char* text) noexcept try {
  if (says_nothing()) return;
  static std::mutex mutex;
  static auto* const said = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (said->insert(text).second) std::fprintf(stderr, "isthmus: mpi: warning: %s\n", text);
} catch (...) {
  std::fputs("isthmus: mpi: warning: no memory for a warning\n", stderr);
}

}  // namespace isthmus::mpi_shim
