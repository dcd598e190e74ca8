// Service thread for all TCP stores of this process, including stores whose id no rank has used. It starts with
// the first store and ends with the last.
#pragma once

#include "bootstrap/tcp_server.hpp"

namespace isthmus::tcp {

// Adds a store to the service of this process.
// Lifetime: at process exit, connected ranks have a few seconds to finish. A forked child serves no stores.
// Thread safety: any thread.
// Errors: SYSTEM.
void serve_store(std::unique_ptr<server> store);

}  // namespace isthmus::tcp
