// One operation on its way from the user's call to the core.
#ifndef ISTHMUS_SYCL_REQUEST_HPP
#define ISTHMUS_SYCL_REQUEST_HPP

#include <isthmus/sycl/operand.hpp>
#include <isthmus/sycl/rank.hpp>
#include <isthmus/sycl/table.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::detail {

/// One operation on its way from the user's call to the core. Owns what the call may not outlive: counts,
/// dependencies, copies of queue and buffers, a share of the rank.
struct collective_request {
  std::shared_ptr<rank_state> rank;  // lives as long as its last request
  sycl::queue queue;
  isthmus_operation operation{};  // pointers of buffers are filled in when they are known
  erased_operand send, recv;
  std::vector<std::uint64_t> send_counts, send_displs, recv_counts, recv_displs;  // owned: groups run later
  std::vector<sycl::event> dependencies;                                          // what the caller passed

  const table_row& row() const { return collective_table[operation.collective]; }
  /// Whether this rank's send operand is read; what is not read may be nullptr.
  bool is_sender() const { return uses_buffer(row().send_ranks, rank->rank(), operation.root); }
  /// Whether this rank's receive operand is written.
  bool is_receiver() const { return uses_buffer(row().recv_ranks, rank->rank(), operation.root); }
  /// Whether a sycl::buffer takes part, whose address is only known in a command or behind a host accessor.
  bool uses_buffers() const { return (is_sender() && send.buffer) || (is_receiver() && recv.buffer); }

  /// The exception of a refused call, with collective and rank.
  exception error(isthmus_status status, std::string message, std::string hint) const {
    return make_exception({.status = status,
                           .message = std::move(message),
                           .hint = std::move(hint),
                           .collective = operation.collective,
                           .rank = rank->rank()});
  }

  // The vectors may have moved with the request.
  void point_to_counts() {
    const auto data = [](const std::vector<std::uint64_t>& values) {
      return values.empty() ? nullptr : values.data();
    };
    operation.send_counts = data(send_counts);
    operation.send_displs = data(send_displs);
    operation.recv_counts = data(recv_counts);
    operation.recv_displs = data(recv_displs);
  }

  // Elements from the operand's start that the operation reads or writes on this rank.
  std::uint64_t send_elements() const {
    return extent_elements(row().send_extent, operation.count, rank->size(), send_counts, send_displs);
  }
  std::uint64_t recv_elements() const {
    return extent_elements(row().recv_extent, operation.count, rank->size(), recv_counts, recv_displs);
  }
};

// The datatype of a call: what its operands are, which must agree.
inline element_layout elements_of(const collective_request& request) {
  const auto &send = request.send.elements, &recv = request.recv.elements;
  if (send && recv && (send->type != recv->type || send->units != recv->units)) {
    throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                        std::string("send and receive buffers are ") + isthmus_datatype_name(send->type) +
                            " and " + isthmus_datatype_name(recv->type) + "; the rule is one datatype",
                        "give both operands the same datatype with as_datatype(datatype, ...)");
  }
  if (send) return *send;
  if (recv) return *recv;
  return {};
}

/// Offset and count must lie in the buffer. The sum is not formed: it may wrap.
inline void check_extent(const collective_request& request, const char* name, const erased_operand& operand,
                         std::uint64_t elements) {
  if (!operand.buffer) return;  // the core checks pointers
  const std::uint64_t size = operand.buffer->byte_size();
  const std::uint64_t element_bytes = datatype_bytes[request.operation.datatype];
  const std::uint64_t available_bytes = operand.offset_bytes > size ? 0 : size - operand.offset_bytes;
  if (operand.offset_bytes <= size && elements <= available_bytes / element_bytes) return;
  throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                      std::string(name) + ": offset " + std::to_string(operand.offset_bytes) + " bytes + " +
                          std::to_string(elements) + " elements of " + std::to_string(element_bytes) +
                          " bytes; the rule is at most the buffer's " + std::to_string(size) + " bytes",
                      "check offset and count (they are in elements) against the buffer's size");
}

// Device USM is only legible to the host where the device is the host.
inline void check_host_pointer(const collective_request& request, const char* name, const erased_operand& operand) {
  if (operand.buffer || operand.pointer == nullptr || request.rank->device().is_cpu()) return;
  if (sycl::get_pointer_type(operand.pointer, request.queue.get_context()) != sycl::usm::alloc::device) return;
  throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                      std::string(name) + " is device USM of a device whose platform was set to host",
                      "use malloc_shared or malloc_host, or give the device its own platform in sycl_backends");
}

// Everything that can be known before anything starts.
inline void validate(const collective_request& request) {
  if (request.queue.get_device() != request.rank->device()) {
    throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                        "queue is on device '" +
                            request.queue.get_device().get_info<sycl::info::device::name>() +
                            "', which is not the communicator's device '" +
                            request.rank->device().get_info<sycl::info::device::name>() + "'",
                        "make the queue from communicator.device()");
  }
  const bool host = request.rank->native().platform == ISTHMUS_PLATFORM_HOST;
  if (request.is_sender()) {
    check_extent(request, "send buffer", request.send, request.send_elements());
    if (host) check_host_pointer(request, "send buffer", request.send);
  }
  if (request.is_receiver()) {
    check_extent(request, "receive buffer", request.recv, request.recv_elements());
    if (host) check_host_pointer(request, "receive buffer", request.recv);
  }
}

}  // namespace isthmus::detail

#endif
