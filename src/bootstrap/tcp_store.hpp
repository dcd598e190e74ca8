// Key-value store over TCP. One process serves it and every rank connects to it. Each side proves to the other
// that it has the id's secret.
#pragma once

#include <isthmus/types.h>

#include <memory>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/tcp_server.hpp"

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

// Fallback for a TCP store whose process has exited: every rank keeps a listening socket on which it can serve
// a new store. Until that rank serves, the kernel queues incoming connections. The ranks exchange the addresses
// during set-up, and each rank derives the secret from its own id (fallback_secret).
class fallback_store {
 public:
  // Listens on the local address of `connected_socket`. If this fails, logs a warning and returns nullptr.
  // The communicator then works, but does not survive the loss of its store.
  static std::unique_ptr<fallback_store> create(int connected_socket, const store_secret& secret);

  const fallback_address& address() const { return m_address; }
  // Serves a store. The store closes when no rank has been connected for `idle_timeout_s`. Call it at most
  // once. Throws error (SYSTEM).
  void serve(double idle_timeout_s);

 private:
  fallback_store(file_descriptor listener, const tcp::endpoint& address, const store_secret& secret);

  file_descriptor m_listener;
  fallback_address m_address;
  store_secret m_secret;
};

}  // namespace isthmus
