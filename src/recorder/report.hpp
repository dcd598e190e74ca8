// Report on the jobs of this machine, from their flight recorders, for `isthmus doctor`.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus::recorder {

// Returns JSON with the jobs that process `pid` belongs to (0: all) and whose names start with `name_prefix`
// ("": all). Processes that share a communicator, directly or through other processes, belong to the same job.
// A job is named after its oldest communicator. With `trace_folder` ("": none), reports the state at the end of
// the traces in this folder instead. Throws error (INVALID_ARGUMENT) if the folder cannot be read.
std::string report(std::int64_t pid, const std::string& name_prefix, const std::string& trace_folder = "");

}  // namespace isthmus::recorder
