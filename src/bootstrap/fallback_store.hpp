// Fallback for a TCP store whose process has exited: every rank keeps a listening socket on which it can serve
// a new store. Until that rank serves, the kernel queues incoming connections. The ranks exchange the addresses
// during set-up, and each rank derives the secret from its own id (handshake.hpp).
#pragma once

#include <memory>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/unique_id.hpp"

namespace isthmus {

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
