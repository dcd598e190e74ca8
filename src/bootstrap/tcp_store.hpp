// A key-value store over TCP. One process serves it; every rank connects, and each side proves to the other
// that it holds the id's secret.
#pragma once

#include <isthmus/types.h>

#include <memory>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/tcp_server.hpp"
#include "bootstrap/unique_id.hpp"

namespace isthmus {

// Starts a store in this process and returns the id that leads to it. `address` is "host", "host:port",
// "[v6]:port" or NULL for loopback and a free port. The store ends when all ranks have come and gone, when no
// rank was there for limits.unused_s, else with the process.
isthmus_unique_id start_tcp_store(const char* address, const tcp::server_limits& limits = {});

// Throws error: TIMEOUT when the store does not let this rank in in time, REMOTE when nobody listens or whoever
// answers can't prove that it is the id's store, MISMATCH when the store refuses this rank or speaks another
// version of the protocol.
std::shared_ptr<store> connect_tcp_store(const store_address& address, int rank, int size, double timeout_s);

}  // namespace isthmus
