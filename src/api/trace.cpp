// C entry point of `isthmus trace merge`.
#include "recorder/trace.hpp"

#include <isthmus/isthmus.h>

#include "base/arguments.hpp"

isthmus_status isthmus_trace_merge(const char* folder, const char* path, char* json, size_t capacity,
                                   size_t* required_bytes) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "trace_merge", "folder", folder,
                              "pass the folder that ISTHMUS_TRACE named");
    const isthmus::recorder::trace merged_trace = isthmus::recorder::read_traces(folder);
    if (path != nullptr) isthmus::recorder::write_timeline(merged_trace, path);
    isthmus::write_json(ISTHMUS_HERE, "trace_merge", isthmus::recorder::summary_of(merged_trace), json,
                        capacity, required_bytes);
  });
}
