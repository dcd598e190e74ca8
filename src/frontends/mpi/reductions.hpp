// Reductions and the barrier. MPI requires the same count, datatype, operation and root on all ranks, so
// decisions based on these arguments are identical on all ranks. Other arguments, such as a missing buffer, may be
// invalid on a single rank. That rank passes the call to MPI, which reports the error.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "frontends/mpi/attached_communicator.hpp"
#include "frontends/mpi/blocks.hpp"
#include "frontends/mpi/native.hpp"

namespace isthmus::mpi_shim {

// Returns the reason why Isthmus cannot run a reduction, if any. All arguments used are equal on all ranks.
inline std::optional<pass_reason_code> find_pass_reason(std::int64_t count, MPI_Datatype type, MPI_Op op,
                                                        reduction_mapping& result) {
  if (count < 0) return pass_reason_code::checked_by_mpi;
  if (count == 0) return pass_reason_code::no_data;
  switch (find_reduction(type, op, result)) {
    case reduction_support::supported: return std::nullopt;
    case reduction_support::unsupported_type: return pass_reason_code::datatype;
    case reduction_support::unsupported_op: return pass_reason_code::operation;
  }
  return pass_reason_code::operation;
}

inline isthmus_operation reduction_operation(isthmus_collective collective, const reduction_mapping& mapping,
                                             std::int64_t count, const void* send, void* recv) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = mapping.type;
  operation.op = mapping.op;
  operation.count = static_cast<std::uint64_t>(count) * mapping.values_per_element;
  operation.send_buf = send;
  operation.recv_buf = recv;
  return operation;
}

inline int handle_barrier(MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool) {
    isthmus_operation operation{};
    operation.collective = ISTHMUS_BARRIER;
    const outcome result = execute(communicator, comm, mpi_function::mpi_barrier, operation, 0);
    if (result.kind == outcome::result_kind::done) communicator.progress_peers();
    return result;
  };
  return run_collective(mpi_function::mpi_barrier, comm, attempt, [&] { return PMPI_Barrier(comm); });
}

// Runs attempt(communicator, mapping), which returns an outcome, or passes the reduction to MPI. The time of a
// reduction that Isthmus cannot run does not count for attaching the communicator.
template <typename Attempt, typename CallMpi>
int run_reduction(mpi_function function, std::int64_t count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                  bool is_checked_by_mpi, Attempt&& attempt, CallMpi&& call_mpi) {
  reduction_mapping mapping;
  if (const auto reason = find_pass_reason(count, type, op, mapping))
    return pass_to_mpi(function, *reason, call_mpi);
  if (is_checked_by_mpi) return pass_to_mpi(function, pass_reason_code::checked_by_mpi, call_mpi);
  return run_collective(
      function, comm, [&](attached_communicator& communicator, bool) { return attempt(communicator, mapping); },
      call_mpi);
}

// Returns whether MPI must check these buffers.
inline bool is_checked_by_mpi(const void* send, const void* recv) {
  return recv == nullptr || recv == MPI_IN_PLACE || send == nullptr || (reports_aliases && send == recv);
}

template <typename Api>
int handle_allreduce(const void* send, void* recv, typename Api::count count, MPI_Datatype type, MPI_Op op,
                     MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, const reduction_mapping& mapping) {
    return execute(
        communicator, comm, mpi_function::mpi_allreduce,
        reduction_operation(ISTHMUS_ALLREDUCE, mapping, count, send == MPI_IN_PLACE ? recv : send, recv),
        static_cast<std::uint64_t>(count) * mapping.bytes);
  };
  return run_reduction(mpi_function::mpi_allreduce, count, type, op, comm, is_checked_by_mpi(send, recv),
                       attempt, [&] { return Api::allreduce(send, recv, count, type, op, comm); });
}

template <typename Api>
int handle_reduce(const void* send, void* recv, typename Api::count count, MPI_Datatype type, MPI_Op op,
                  int root, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, const reduction_mapping& mapping) {
    const bool is_root = root == communicator.rank();
    const bool is_in_place = is_root && send == MPI_IN_PLACE;
    if ((is_root && is_checked_by_mpi(send, recv)) || (!is_root && send == MPI_IN_PLACE) ||
        root >= communicator.size())
      return pass_through();
    isthmus_operation operation = reduction_operation(ISTHMUS_REDUCE, mapping, count, is_in_place ? recv : send,
                                                      is_root ? recv : nullptr);
    operation.root = root;
    return execute(communicator, comm, mpi_function::mpi_reduce, operation,
                   static_cast<std::uint64_t>(count) * mapping.bytes);
  };
  // A negative root is an intercommunicator or an error.
  return run_reduction(mpi_function::mpi_reduce, count, type, op, comm, root < 0 || send == nullptr, attempt,
                       [&] { return Api::reduce(send, recv, count, type, op, root, comm); });
}

// Common part of both reduce_scatter calls. `operation` has no buffers yet. `bytes` is the size of this rank's result.
// In place, MPI expects the result at the beginning of the buffer. Isthmus has no such mode, so the result goes
// through a staging buffer.
inline outcome reduce_scatter_blocks(attached_communicator& communicator, mpi_function function,
                                     const void* send, void* recv, std::uint64_t bytes, MPI_Comm comm,
                                     isthmus_operation operation) {
  const bool is_in_place = send == MPI_IN_PLACE || send == recv;
  const std::unique_ptr<char[]> staging(is_in_place ? new (std::nothrow) char[bytes] : nullptr);
  if (is_in_place && !staging) return completed(raise_error(comm, MPI_ERR_NO_MEM));
  operation.send_buf = is_in_place ? recv : send;
  operation.recv_buf = is_in_place ? staging.get() : recv;
  const outcome result = execute(communicator, comm, function, operation, bytes);
  if (result.kind == outcome::result_kind::done && result.code == MPI_SUCCESS && is_in_place)
    std::memcpy(recv, staging.get(), bytes);
  return result;
}

// `count` is the number of elements in each rank's block.
template <typename CallMpi>
int reduce_scatter_equal_blocks(mpi_function function, const void* send, void* recv, std::int64_t count,
                                MPI_Datatype type, MPI_Op op, MPI_Comm comm, CallMpi&& call_mpi) {
  const auto attempt = [&](attached_communicator& communicator, const reduction_mapping& mapping) {
    return reduce_scatter_blocks(communicator, function, send, recv,
                                 static_cast<std::uint64_t>(count) * mapping.bytes, comm,
                                 reduction_operation(ISTHMUS_REDUCE_SCATTER, mapping, count, nullptr, nullptr));
  };
  return run_reduction(function, count, type, op, comm, is_checked_by_mpi(send, recv), attempt, call_mpi);
}

template <typename Api>
int handle_reduce_scatter_block(const void* send, void* recv, typename Api::count count, MPI_Datatype type,
                                MPI_Op op, MPI_Comm comm) {
  return reduce_scatter_equal_blocks(mpi_function::mpi_reduce_scatter_block, send, recv, count, type, op, comm,
                                     [&] { return Api::reduce_scatter(send, recv, count, type, op, comm); });
}

// One contiguous block per rank, of different lengths.
template <typename Count>
outcome reduce_scatter_varying_blocks(attached_communicator& communicator, const void* send, void* recv,
                                      const Count* counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  const auto size = static_cast<std::size_t>(communicator.size()),
             own = static_cast<std::size_t>(communicator.rank());
  if (*std::min_element(counts, counts + size) < 0) return pass_through();
  reduction_mapping mapping;
  if (const auto reason = find_pass_reason(1, type, op, mapping)) return pass_through(*reason);
  // A rank that receives nothing may pass no buffer.
  if (send == nullptr || recv == MPI_IN_PLACE ||
      (recv == nullptr && (counts[own] > 0 || send == MPI_IN_PLACE)) || (reports_aliases && send == recv))
    return pass_through();
  std::vector<std::uint64_t> element_counts(size), displs(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    element_counts[rank] = static_cast<std::uint64_t>(counts[rank]) * mapping.values_per_element;
    if (rank > 0) displs[rank] = displs[rank - 1] + element_counts[rank - 1];
  }
  isthmus_operation operation =
      reduction_operation(ISTHMUS_REDUCE_SCATTERV, mapping, counts[own], nullptr, nullptr);
  operation.send_counts = element_counts.data();
  operation.send_displs = displs.data();
  return reduce_scatter_blocks(communicator, mpi_function::mpi_reduce_scatter, send, recv,
                               static_cast<std::uint64_t>(counts[own]) * mapping.bytes, comm, operation);
}

// MPI requires the same counts on all ranks.
template <typename Api>
int handle_reduce_scatter(const void* send, void* recv, const typename Api::count* counts, MPI_Datatype type,
                          MPI_Op op, MPI_Comm comm) {
  constexpr mpi_function function = mpi_function::mpi_reduce_scatter;
  const auto call_mpi = [&] { return Api::reduce_scatterv(send, recv, counts, type, op, comm); };
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || counts == nullptr)
    return pass_to_mpi(
        function, communicator == nullptr ? pass_reason_code::mpi_not_running : communicator->pass_reason(),
        call_mpi);
  if (std::all_of(counts, counts + communicator->size(), [&](auto count) { return count == counts[0]; }))
    return reduce_scatter_equal_blocks(function, send, recv, counts[0], type, op, comm, call_mpi);
  const auto attempt = [&](attached_communicator& attached, bool) {
    return reduce_scatter_varying_blocks(attached, send, recv, counts, type, op, comm);
  };
  return run_collective(function, comm, attempt, call_mpi);
}

}  // namespace isthmus::mpi_shim
