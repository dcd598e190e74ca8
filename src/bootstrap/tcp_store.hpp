// A key-value store over TCP. One process serves it; every rank connects and shows the id's secret.
#pragma once

#include <isthmus/types.h>

#include <memory>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/unique_id.hpp"

namespace isthmus {

// Starts a server thread in this process and returns the id that leads to it. `address` is "host",
// "host:port", "[v6]:port" or NULL for loopback and a free port. The server ends when all ranks have come
// and gone, else with the process.
isthmus_unique_id start_tcp_store(const char* address);

// Throws error (TIMEOUT, REMOTE or MISMATCH) when the server can't be reached or refuses this rank.
std::shared_ptr<store> connect_tcp_store(const store_address& address, int rank, int size, double timeout_s);

}  // namespace isthmus
