#include "bootstrap/tcp_protocol.hpp"

#include <cstring>

namespace isthmus::tcp {

parse_result parse_request(std::span<const std::byte> bytes, request& message) {
  request_header& header = message.header;
  if (bytes.size() < sizeof header) return parse_result::incomplete;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.kind < request_kind::set || header.kind > request_kind::set_if_absent)
    return parse_result::malformed;
  if (header.key_bytes > max_key_bytes || header.value_bytes > max_value_bytes) return parse_result::malformed;
  message.bytes = sizeof header + header.key_bytes + header.value_bytes;
  if (bytes.size() < message.bytes) return parse_result::incomplete;
  message.key = {reinterpret_cast<const char*>(bytes.data() + sizeof header), header.key_bytes};
  message.value = bytes.subspan(sizeof header + header.key_bytes, header.value_bytes);
  return parse_result::complete;
}

parse_result parse_reply(std::span<const std::byte> bytes, reply& message) {
  reply_header& header = message.header;
  if (bytes.size() < sizeof header) return parse_result::incomplete;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.value_bytes > max_value_bytes) return parse_result::malformed;
  message.bytes = sizeof header + header.value_bytes;
  if (bytes.size() < message.bytes) return parse_result::incomplete;
  message.value = bytes.subspan(sizeof header, header.value_bytes);
  return parse_result::complete;
}

}  // namespace isthmus::tcp
