// From a collective's arguments, as the user gives them, to a request that runs now or waits for its group.
// Always in the same order: is there a rank, what are the operands, which datatype, which counts, is all of
// it allowed, then one call of submit.hpp. Nothing has started when any of it throws.
#ifndef ISTHMUS_SYCL_CALL_HPP
#define ISTHMUS_SYCL_CALL_HPP

#include <isthmus/sycl/group.hpp>
#include <isthmus/sycl/platform.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isthmus {

/// Events that an operation comes after.
using dependencies = std::vector<sycl::event>;
/// Counts or displacements of a v-collective in elements, one for each rank; read during the call only.
using counts = std::span<const std::uint64_t>;

namespace detail {

/// What a call says besides its operands; each collective fills in what it has.
struct scalar_arguments {
  isthmus_collective collective;
  isthmus_reduction_op op = ISTHMUS_SUM;  // of no meaning where nothing is reduced
  int root = 0;                           // or the peer of send and recv
  std::uint64_t count = 0;                // in elements of the operands
};
/// The same of a v-collective, in elements of the operands; empty where this rank's side has none.
struct vector_arguments {
  counts send_counts = {}, send_displs = {}, recv_counts = {}, recv_displs = {};
};

inline isthmus_reduction_op native_op(reduction_op op) { return static_cast<isthmus_reduction_op>(op); }

/// The rank behind a communicator.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE for one that was moved from: it has none.
inline rank_state& state_of(const std::shared_ptr<rank_state>& rank) {
  if (rank) return *rank;
  throw make_exception({.status = ISTHMUS_ERROR_INVALID_USAGE,
                        .message = "the communicator was moved from",
                        .hint = "use the object that it was moved to"});
}

/// Copies what a v-collective says, in units of the datatype; `units` is 1 but for types that travel as bytes.
/// @param name Of the argument, for the message.
/// @param needed Whether this rank reads `values`; else the result is empty and they may be anything.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT where they are not one for each rank.
inline std::vector<std::uint64_t> scale_counts(const collective_request& request, const char* name, counts values, bool is_used,
                                         std::uint64_t units) {
  const auto size = static_cast<std::size_t>(request.rank->size());
  if (!is_used) return {};
  if (values.size() != size) {
    throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                        std::string(name) + " has " + std::to_string(values.size()) +
                            " entries; the rule is one for each of " + std::to_string(size) + " ranks",
                        "give counts and displacements for every rank");
  }
  std::vector<std::uint64_t> result(values.begin(), values.end());
  for (std::uint64_t& value : result) value *= units;
  return result;
}

/// Every collective ends here: checks what can be known before anything starts, then runs the call or, inside a
/// group, keeps it.
/// @return The operation's event; inside a group one that says nothing.
/// @throws isthmus::exception What the collectives say, with nothing written.
template <typename Send, typename Recv>
sycl::event submit_collective(const std::shared_ptr<rank_state>& rank, const sycl::queue& queue,
                 const scalar_arguments& scalars, const Send& send, const Recv& recv, const dependencies& wait_events,
                 const vector_arguments& vectors = {}) {
  state_of(rank);
  detail::collective_request request{.rank = rank,
                          .queue = queue,
                          .operation = {},
                          .send = traits_of<Send>::make(send),
                          .recv = traits_of<Recv>::make(recv),
                          .send_counts = {},
                          .send_displs = {},
                          .recv_counts = {},
                          .recv_displs = {},
                          .dependencies = wait_events};
  request.operation.collective = scalars.collective;
  request.operation.op = scalars.op;
  request.operation.root = scalars.root;
  const element_layout element = elements_of(request);
  request.operation.datatype = element.type;
  request.operation.count = scalars.count * element.units;
  const bool send_vectors = request.row().send_extent == buffer_extent::COUNTS && request.is_sender();
  const bool recv_vectors = request.row().recv_extent == buffer_extent::COUNTS && request.is_receiver();
  request.send_counts = scale_counts(request, "send_counts", vectors.send_counts, send_vectors, element.units);
  request.send_displs = scale_counts(request, "send_displs", vectors.send_displs, send_vectors, element.units);
  request.recv_counts = scale_counts(request, "recv_counts", vectors.recv_counts, recv_vectors, element.units);
  request.recv_displs = scale_counts(request, "recv_displs", vectors.recv_displs, recv_vectors, element.units);
  validate(request);
  group_state& open_group = thread_group();
  if (open_group.depth == 0) return run(std::move(request));
  open_group.requests.push_back(std::move(request));
  return {};
}

}  // namespace detail
}  // namespace isthmus

#endif
