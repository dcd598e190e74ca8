// Fuzz target for data received on a connection of the store: handshake, requests, replies, and ids.
#include "base/error.hpp"
#include "bootstrap/tcp_protocol.hpp"
#include "fuzz/target.hpp"

namespace {

using namespace isthmus;

// Parses consecutive messages, like server and client do.
template <typename Message, typename Parse>
void walk(std::span<const std::byte> bytes, Parse&& parse) {
  Message message;
  while (parse(bytes, message) == tcp::parse_result::complete) {
    fuzz::require(message.bytes > 0 && message.bytes <= bytes.size(),
                  "a message longer than the received data");
    fuzz::require(message.value.size() <= tcp::max_value_bytes, "a value above the limit");
    bytes = bytes.subspan(message.bytes);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  walk<tcp::request>(bytes, tcp::parse_request);
  walk<tcp::reply>(bytes, tcp::parse_reply);
  static_cast<void>(tcp::parse<tcp::protocol_header>(bytes));
  static_cast<void>(tcp::parse<tcp::hello>(bytes));
  static_cast<void>(tcp::parse<tcp::proof>(bytes));
  isthmus_unique_id id{};
  std::memcpy(&id, data, size < sizeof id ? size : sizeof id);
  try {
    const store_address address = parse_unique_id(id);
    fuzz::require(address.host.size() <= 80, "a host name above the limit");
    const isthmus_unique_id again = make_unique_id(address);
    fuzz::require(std::memcmp(&again, &id, sizeof id) == 0, "an id that is written back differently");
  } catch (const error&) {
    return 0;
  }
  return 0;
}
