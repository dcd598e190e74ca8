// One operation between the user's call and the core.
#ifndef ISTHMUS_SYCL_REQUEST_HPP
#define ISTHMUS_SYCL_REQUEST_HPP

#include <algorithm>
#include <cstdint>
#include <functional>
#include <isthmus/sycl/operand.hpp>
#include <isthmus/sycl/rank.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::detail {

// ---- the collective table: the buffers that a rank uses in a collective, and their sizes ------------------

/// The ranks on which a buffer is used.
enum class buffer_ranks { NONE, ROOT, ALL };
/// The size of a buffer: none, count, count per rank, or counts and displacements.
enum class buffer_extent { NOTHING, COUNT, COUNT_X_SIZE, COUNTS };

/// The buffers of one collective; collective_table[collective] is its row.
struct table_row {
  buffer_ranks send_ranks;
  buffer_extent send_extent;
  buffer_ranks recv_ranks;
  buffer_extent recv_extent;
};

inline constexpr table_row collective_table[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {buffer_ranks::send_ranks, buffer_extent::send_extent, buffer_ranks::recv_ranks, buffer_extent::recv_extent},
#include <isthmus/collectives.def>
};

/// Returns whether `rank` uses a buffer of these ranks.
inline bool uses_buffer(buffer_ranks ranks, int rank, int root) {
  return ranks == buffer_ranks::ALL || (ranks == buffer_ranks::ROOT && rank == root);
}

// Returns the number of elements from the start of the operand that a collective may access.
inline std::uint64_t extent_elements(buffer_extent extent, std::uint64_t count, int size,
                                     std::span<const std::uint64_t> counts,
                                     std::span<const std::uint64_t> displs) {
  switch (extent) {
    case buffer_extent::NOTHING: return 0;
    case buffer_extent::COUNT: return count;
    case buffer_extent::COUNT_X_SIZE: return count * static_cast<std::uint64_t>(size);
    case buffer_extent::COUNTS: {
      std::uint64_t end = 0;
      for (std::size_t r = 0; r < counts.size() && r < displs.size(); ++r) {
        if (counts[r] > 0) end = std::max(end, displs[r] + counts[r]);
      }
      return end;
    }
  }
  return 0;
}

// ---- requests ----------------------------------------------------------------------------------------

/// One operation between the user's call and the core. Owns everything that must outlive the call: counts, wait
/// events, copies of the queue and the buffers, and a reference to the rank.
struct collective_request {
  std::shared_ptr<rank_state> rank;  // lives as long as its last request
  sycl::queue queue;
  isthmus_operation operation{};  // addresses of buffers are filled in later
  erased_operand send, recv;
  std::vector<std::uint64_t> send_counts, send_displs, recv_counts, recv_displs;  // owned: groups run later
  std::vector<sycl::event> dependencies;                                          // passed by the caller
  // Calls the core for an operation that is not in the collective table; replaces isthmus_enqueue().
  std::function<isthmus_status(isthmus_communicator, isthmus_stream)> call = {};

  const table_row& row() const { return collective_table[operation.collective]; }
  /// Returns whether this rank's send operand is read. If not, the operand may be nullptr.
  bool is_sender() const { return uses_buffer(row().send_ranks, rank->rank(), operation.root); }
  /// Returns whether this rank's receive operand is written.
  bool is_receiver() const { return uses_buffer(row().recv_ranks, rank->rank(), operation.root); }
  /// Returns whether this rank uses a sycl::buffer, whose address is known only inside a command or through
  /// a host accessor.
  bool uses_buffers() const { return (is_sender() && send.buffer) || (is_receiver() && recv.buffer); }

  /// Returns the exception for a rejected call, with its collective and rank.
  exception error(isthmus_status status, std::string message, std::string hint) const {
    return make_exception({.status = status,
                           .message = std::move(message),
                           .hint = std::move(hint),
                           .collective = operation.collective,
                           .rank = rank->rank()});
  }

  // Updates the pointers of the operation, because the vectors move with the request.
  void set_count_pointers() {
    const auto data = [](const std::vector<std::uint64_t>& values) {
      return values.empty() ? nullptr : values.data();
    };
    operation.send_counts = data(send_counts);
    operation.send_displs = data(send_displs);
    operation.recv_counts = data(recv_counts);
    operation.recv_displs = data(recv_displs);
  }

  // Returns the number of elements from the start of the operand that the operation accesses on this rank.
  std::uint64_t send_elements() const {
    return extent_elements(row().send_extent, operation.count, rank->size(), send_counts, send_displs);
  }
  std::uint64_t recv_elements() const {
    return extent_elements(row().recv_extent, operation.count, rank->size(), recv_counts, recv_displs);
  }
};

// Returns the element layout of a call. Both operands must have the same layout.
inline element_layout elements_of(const collective_request& request) {
  const auto &send = request.send.elements, &recv = request.recv.elements;
  if (send && recv && (send->type != recv->type || send->units != recv->units)) {
    throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                        std::string("send and receive buffers are ") + isthmus_datatype_name(send->type) +
                            " and " + isthmus_datatype_name(recv->type) + ", must be equal",
                        "give both operands the same datatype with as_datatype(datatype, ...)");
  }
  if (send) return *send;
  if (recv) return *recv;
  return {};
}

/// Checks that the range of offset and count lies in the buffer. Does not compute their sum, because
/// it may overflow.
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
                          " bytes exceed the buffer's " + std::to_string(size) + " bytes",
                      "check offset and count, which are in elements, against the buffer's size");
}

// Checks that the host can read the pointer. Device USM is accessible only if the device is the host.
inline void check_host_pointer(const collective_request& request, const char* name,
                               const erased_operand& operand) {
  if (operand.buffer || operand.pointer == nullptr || request.rank->is_cpu()) return;
  if (sycl::get_pointer_type(operand.pointer, request.queue.get_context()) != sycl::usm::alloc::device) return;
  throw request.error(
      ISTHMUS_ERROR_INVALID_ARGUMENT,
      std::string(name) + " is device USM, but sycl_backends maps its device to the host platform",
      "use malloc_shared or malloc_host, or map the device to its own platform in sycl_backends");
}

// Checks everything that is known before the operation starts.
inline void validate(const collective_request& request) {
  if (request.queue.get_device() != request.rank->device()) {
    throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                        "queue is on device '" +
                            request.queue.get_device().get_info<sycl::info::device::name>() +
                            "', must be on the communicator's device '" +
                            request.rank->device().get_info<sycl::info::device::name>() + "'",
                        "create the queue from communicator.device()");
  }
  if (request.rank->is_cpu() && !request.uses_buffers()) return;  // the core checks pointers
  const bool is_host = request.rank->native().platform == ISTHMUS_PLATFORM_HOST;
  if (request.is_sender()) {
    check_extent(request, "send buffer", request.send, request.send_elements());
    if (is_host) check_host_pointer(request, "send buffer", request.send);
  }
  if (request.is_receiver()) {
    check_extent(request, "receive buffer", request.recv, request.recv_elements());
    if (is_host) check_host_pointer(request, "receive buffer", request.recv);
  }
}

}  // namespace isthmus::detail

#endif
