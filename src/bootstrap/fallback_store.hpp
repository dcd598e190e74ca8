// What survives the process that holds a TCP store: every rank keeps a socket on which it can serve another
// one. Nobody answers there before that rank serves; until then the kernel queues whoever dials. The ranks hear
// each other's addresses when they meet, and know the secret from their own id (handshake.hpp).
#pragma once

#include <memory>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/unique_id.hpp"

namespace isthmus {

class fallback_store {
 public:
  // Listens on the address of this machine that the socket `connected` has. nullptr, with a warning, where that
  // is impossible: the communicator works, but does not survive its store.
  static std::unique_ptr<fallback_store> create(int connected_socket, const store_secret& secret);

  const fallback_address& address() const { return m_address; }
  // Serves from now on, until no rank has been connected for `idle_timeout_s`. Once. Throws error (SYSTEM).
  void serve(double idle_timeout_s);

 private:
  fallback_store(file_descriptor listener, const tcp::endpoint& address, const store_secret& secret);

  file_descriptor m_listener;
  fallback_address m_address;
  store_secret m_secret;
};

}  // namespace isthmus
