// Converts the arguments of a collective to a request that runs immediately or waits for its group.
//
// The steps are always the same: check the communicator, build the operands, deduce the datatype, scale the
// counts, validate, then make one call of submit.hpp. If a step throws, nothing has started.
#ifndef ISTHMUS_SYCL_CALL_HPP
#define ISTHMUS_SYCL_CALL_HPP

#include <isthmus/allreduce_rmsnorm.h>

#include <isthmus/sycl/group.hpp>
#include <isthmus/sycl/platform.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isthmus {

/// Events that an operation waits for before it starts.
using dependencies = std::vector<sycl::event>;
/// Counts or displacements of a v-collective in elements, one per rank; read only during the call.
using counts = std::span<const std::uint64_t>;

namespace detail {

/// The scalar arguments of a call. Each collective sets the ones that it has.
struct scalar_arguments {
  isthmus_collective collective;
  isthmus_reduction_op op = ISTHMUS_SUM;  // ignored if nothing is reduced
  int root = 0;                           // or the peer of send and recv
  std::uint64_t count = 0;                // in elements of the operands
};
/// The vector arguments of a v-collective, in elements of the operands. Empty if this rank does not have them.
struct vector_arguments {
  counts send_counts = {}, send_displs = {}, recv_counts = {}, recv_displs = {};
};

inline isthmus_reduction_op native_op(reduction_op op) { return static_cast<isthmus_reduction_op>(op); }

/// Returns the state of a communicator's rank.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE if the communicator was moved from.
inline rank_state& state_of(const std::shared_ptr<rank_state>& rank) {
  if (rank) return *rank;
  throw make_exception({.status = ISTHMUS_ERROR_INVALID_USAGE,
                        .message = "the communicator was moved from",
                        .hint = "use the communicator that it was moved to"});
}

/// Copies counts or displacements and converts them to units of the datatype.
/// @param name The argument's name, for error messages.
/// @param units Datatype elements per operand element; greater than 1 for types that are sent as bytes.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT if `values` does not have one entry per rank.
inline std::vector<std::uint64_t> scale_counts(const collective_request& request, const char* name,
                                               counts values, std::uint64_t units) {
  const auto size = static_cast<std::size_t>(request.rank->size());
  if (values.size() != size) {
    throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                        std::string(name) + " has " + std::to_string(values.size()) +
                            " entries, must have one per rank: " + std::to_string(size),
                        "pass counts and displacements for every rank");
  }
  std::vector<std::uint64_t> result(values.begin(), values.end());
  for (std::uint64_t& value : result) value *= units;
  return result;
}

/// Validates a collective and runs it. Inside a group, adds it to the group instead.
/// @return The operation's event. Inside a group, a placeholder that carries no information.
/// @throws isthmus::exception As documented for the collectives; nothing has been written.
template <typename Send, typename Recv>
sycl::event submit_collective(const std::shared_ptr<rank_state>& rank, const sycl::queue& queue,
                              const scalar_arguments& scalars, const Send& send, const Recv& recv,
                              const dependencies& wait_events, const vector_arguments& vectors = {}) {
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
  const table_row& row = request.row();
  if (row.send_extent == buffer_extent::COUNTS && request.is_sender()) {
    request.send_counts = scale_counts(request, "send_counts", vectors.send_counts, element.units);
    request.send_displs = scale_counts(request, "send_displs", vectors.send_displs, element.units);
  }
  if (row.recv_extent == buffer_extent::COUNTS && request.is_receiver()) {
    request.recv_counts = scale_counts(request, "recv_counts", vectors.recv_counts, element.units);
    request.recv_displs = scale_counts(request, "recv_displs", vectors.recv_displs, element.units);
  }
  validate(request);
  group_state& open_group = thread_group();
  if (open_group.depth == 0) return run(std::move(request));
  open_group.requests.push_back(std::move(request));
  return rank->complete_event();
}

/// Runs allreduce_rmsnorm() on the path of the communicator.
/// @throws isthmus::exception As documented for allreduce_rmsnorm(); nothing has been written.
inline sycl::event submit_allreduce_rmsnorm(const std::shared_ptr<rank_state>& rank, const sycl::queue& queue,
                                            const isthmus_allreduce_rmsnorm_arguments& arguments,
                                            const dependencies& wait_events) {
  state_of(rank);
  collective_request request{.rank = rank,
                             .queue = queue,
                             .operation = {},
                             .send = {},
                             .recv = {},
                             .send_counts = {},
                             .send_displs = {},
                             .recv_counts = {},
                             .recv_displs = {},
                             .dependencies = wait_events};
  request.operation.collective = ISTHMUS_ALLREDUCE;
  if (thread_group().depth > 0)
    throw request.error(ISTHMUS_ERROR_INVALID_USAGE, "allreduce_rmsnorm: the call is inside a group",
                        "call it outside of isthmus::group, from one thread per rank");
  validate(request);
  request.call = [own = arguments](isthmus_communicator handle, isthmus_stream stream) mutable {
    own.stream = stream;
    return isthmus_allreduce_rmsnorm(handle, &own);
  };
  return run(std::move(request));
}

}  // namespace detail
}  // namespace isthmus

#endif
