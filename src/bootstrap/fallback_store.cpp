#include "bootstrap/fallback_store.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/store_service.hpp"

namespace isthmus {
namespace {

std::string local_host(int connected_socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = "";
  if (getsockname(connected_socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, nullptr, 0,
                  NI_NUMERICHOST) != 0)
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     "communicator_create: the local address of the store connection is unknown");
  return host;
}

}  // namespace

fallback_store::fallback_store(file_descriptor listener, const tcp::endpoint& address,
                               const store_secret& secret)
    : m_listener(std::move(listener)), m_secret(secret) {
  copy_text(m_address.host, sizeof m_address.host, address.host);
  m_address.port = address.port;
}

std::unique_ptr<fallback_store> fallback_store::create(int connected_socket, const store_secret& secret) {
  try {
    tcp::endpoint address{local_host(connected_socket), 0};
    file_descriptor listener = tcp::listen_on(address);
    return std::unique_ptr<fallback_store>(new fallback_store(std::move(listener), address, secret));
  } catch (const error& failure) {
    log(log_level::warning, "this rank cannot serve a fallback store if the store is lost: {}", failure.what());
    return nullptr;
  }
}

std::unique_ptr<fallback_store> store::make_fallback_store() { return nullptr; }

std::shared_ptr<store> store::connect_fallback_store(const fallback_address&, int, int, double) {
  return nullptr;
}

void fallback_store::serve(double idle_timeout_s) {
  tcp::server_limits limits;
  limits.idle_timeout_s = idle_timeout_s;
  tcp::serve_store(std::make_unique<tcp::server>(std::move(m_listener), m_secret, limits));
}

}  // namespace isthmus
