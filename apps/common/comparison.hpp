// Runs one application on several transports, in turns.
#pragma once

#include "common/application.hpp"

namespace apps {

// Verifies, measures, verifies again, tells. Collective over MPI_COMM_WORLD; returns the wrong elements of all
// ranks and transports.
std::uint64_t compare_transports(const program_options& options, const application_entry& entry);

}  // namespace apps
