// What the flight recorders of this machine tell about jobs: for `isthmus doctor`.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus::recorder {

// JSON: the jobs that the process belongs to (0: all), or whose name starts with `job` ("": all). Processes
// that share a communicator are of one job, also through others; it is named after its oldest communicator.
std::string report(std::int64_t pid, const std::string& name_prefix);

}  // namespace isthmus::recorder
