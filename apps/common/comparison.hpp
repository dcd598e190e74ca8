// Runs one application on several transports, which alternate.
#pragma once

#include "common/application.hpp"

namespace apps {

// Verifies, measures, verifies again and reports. Collective over MPI_COMM_WORLD. Returns the wrong elements of
// all ranks and transports.
std::uint64_t compare_transports(const program_options& options, const application_entry& entry);

}  // namespace apps
