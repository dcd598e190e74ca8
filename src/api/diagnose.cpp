// C entry point of `isthmus doctor`, which reads the flight recorders of this machine, and of
// `isthmus trace merge`.
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include "base/arguments.hpp"
#include "recorder/report.hpp"

isthmus_status isthmus_diagnose(int64_t pid, const char* job, const char* trace_folder, char* json,
                                size_t capacity, size_t* required_bytes) {
  return isthmus::guard([&] {
    if (pid < 0)
      throw isthmus::invalid_argument(ISTHMUS_HERE, fmt::format("diagnose: pid = {} must not be negative", pid),
                                      "pass 0 for all processes");
    const std::string text =
        isthmus::recorder::report(pid, job == nullptr ? "" : job, trace_folder == nullptr ? "" : trace_folder);
    isthmus::write_json(ISTHMUS_HERE, "diagnose", text, json, capacity, required_bytes);
  });
}
