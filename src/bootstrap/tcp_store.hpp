// Key-value store over TCP. One process serves it and every rank connects to it. Each side proves to the other
// that it has the id's secret.
#pragma once

#include <isthmus/types.h>

#include <memory>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/tcp_server.hpp"
#include "bootstrap/unique_id.hpp"

namespace isthmus {

// Starts a store in this process and returns its id. `address` is "host", "host:port", "[v6]:port", or NULL for
// loopback and a free port.
// Lifetime: the store closes when all ranks have joined and left, when no rank has been connected for
// limits.idle_timeout_s, or when the process exits.
isthmus_unique_id start_tcp_store(const char* address, const tcp::server_limits& limits = {});

// Connects a rank to the store.
// Errors: TIMEOUT if the store does not accept this rank in time; REMOTE if no process listens or the
// server cannot prove that it is the id's store; MISMATCH if the store refuses this rank or uses
// another protocol version.
std::shared_ptr<store> connect_tcp_store(const store_address& address, int rank, int size, double timeout_s);

}  // namespace isthmus
