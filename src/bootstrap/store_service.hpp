// The one thread that serves all TCP stores of this process. It starts with the first store and ends with the
// last; ids that nobody uses share it.
#pragma once

#include "bootstrap/tcp_server.hpp"

namespace isthmus::tcp {

// Hands a store to the service of this process. Any thread. Throws error (SYSTEM).
// When the process ends, ranks that are still connected get a few seconds to finish. A process that was forked
// from this one serves none of them.
void serve_store(std::unique_ptr<server> store);

}  // namespace isthmus::tcp
