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

#include "frontends/mpi/execute.hpp"
#include "frontends/mpi/native.hpp"
#include "frontends/mpi/types.hpp"

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

// Runs an operation, or passes it to MPI if Isthmus does not handle it.
template <typename CallMpi>
int execute_or_pass(attached_communicator& communicator, MPI_Comm comm, mpi_function function,
                    const isthmus_operation& operation, std::uint64_t bytes, CallMpi&& call_mpi) {
  const outcome result = execute(communicator, comm, function, operation, bytes);
  return result.kind == outcome::result_kind::done ? result.code
                                                   : pass_to_mpi(function, result.reason, call_mpi);
}

inline int handle_barrier(MPI_Comm comm) {
  const auto call_mpi = [&] { return PMPI_Barrier(comm); };
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->try_attach())
    return pass_to_mpi(
        mpi_function::mpi_barrier,
        communicator == nullptr ? pass_reason_code::mpi_not_running : communicator->pass_reason(), call_mpi);
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BARRIER;
  const outcome result = execute(*communicator, comm, mpi_function::mpi_barrier, operation, 0);
  if (result.kind != outcome::result_kind::done)
    return pass_to_mpi(mpi_function::mpi_barrier, result.reason, call_mpi);
  communicator->progress_peers();
  return result.code;
}

template <typename Api>
int handle_allreduce(const void* send, void* recv, typename Api::count_type count, MPI_Datatype type, MPI_Op op,
                     MPI_Comm comm) {
  const auto call_mpi = [&] { return Api::mpi_allreduce(send, recv, count, type, op, comm); };
  reduction_mapping mapping;
  if (const auto reason = find_pass_reason(count, type, op, mapping))
    return pass_to_mpi(mpi_function::mpi_allreduce, *reason, call_mpi);
  if (recv == nullptr || recv == MPI_IN_PLACE || send == nullptr || (reports_aliases && send == recv))
    return pass_to_mpi(mpi_function::mpi_allreduce, pass_reason_code::checked_by_mpi, call_mpi);
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->try_attach())
    return pass_to_mpi(
        mpi_function::mpi_allreduce,
        communicator == nullptr ? pass_reason_code::mpi_not_running : communicator->pass_reason(), call_mpi);
  const isthmus_operation operation =
      reduction_operation(ISTHMUS_ALLREDUCE, mapping, count, send == MPI_IN_PLACE ? recv : send, recv);
  return execute_or_pass(*communicator, comm, mpi_function::mpi_allreduce, operation,
                         static_cast<std::uint64_t>(count) * mapping.bytes, call_mpi);
}

template <typename Api>
int handle_reduce(const void* send, void* recv, typename Api::count_type count, MPI_Datatype type, MPI_Op op,
                  int root, MPI_Comm comm) {
  const auto call_mpi = [&] { return Api::mpi_reduce(send, recv, count, type, op, root, comm); };
  reduction_mapping mapping;
  if (const auto reason = find_pass_reason(count, type, op, mapping))
    return pass_to_mpi(mpi_function::mpi_reduce, *reason, call_mpi);
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || root < 0 ||
      send == nullptr)  // negative root: an intercommunicator or an error
    return pass_to_mpi(
        mpi_function::mpi_reduce,
        communicator == nullptr ? pass_reason_code::mpi_not_running : pass_reason_code::checked_by_mpi,
        call_mpi);
  if (!communicator->try_attach())
    return pass_to_mpi(mpi_function::mpi_reduce, communicator->pass_reason(), call_mpi);
  const bool is_root = root == communicator->rank();
  const bool is_in_place = is_root && send == MPI_IN_PLACE;
  if ((is_root && (recv == nullptr || recv == MPI_IN_PLACE || (reports_aliases && send == recv))) ||
      (!is_root && send == MPI_IN_PLACE) || root >= communicator->size())
    return pass_to_mpi(mpi_function::mpi_reduce, pass_reason_code::checked_by_mpi, call_mpi);
  isthmus_operation operation =
      reduction_operation(ISTHMUS_REDUCE, mapping, count, is_in_place ? recv : send, is_root ? recv : nullptr);
  operation.root = root;
  return execute_or_pass(*communicator, comm, mpi_function::mpi_reduce, operation,
                         static_cast<std::uint64_t>(count) * mapping.bytes, call_mpi);
}

// Common part of both reduce_scatter calls. `make_operation` creates the operation for given buffers; `bytes`
// is the size of this rank's result. In place, MPI expects the result at the beginning of the buffer. Isthmus
// has no such mode, so the result goes through a staging buffer.
template <typename MakeOperation, typename CallMpi>
int reduce_scatter_blocks(attached_communicator& communicator, mpi_function function, const void* send,
                          void* recv, std::uint64_t bytes, MPI_Comm comm, MakeOperation&& make_operation,
                          CallMpi&& call_mpi) {
  const bool is_in_place = send == MPI_IN_PLACE || send == recv;
  const std::unique_ptr<char[]> staging(is_in_place ? new (std::nothrow) char[bytes] : nullptr);
  if (is_in_place && !staging) return raise_error(comm, MPI_ERR_NO_MEM);
  const isthmus_operation operation =
      make_operation(is_in_place ? recv : send, is_in_place ? staging.get() : recv);
  const outcome result = execute(communicator, comm, function, operation, bytes);
  if (result.kind != outcome::result_kind::done) return pass_to_mpi(function, result.reason, call_mpi);
  if (result.code == MPI_SUCCESS && is_in_place) std::memcpy(recv, staging.get(), bytes);
  return result.code;
}

// Returns whether MPI must check these buffers.
inline bool is_checked_by_mpi(const void* send, const void* recv) {
  return recv == nullptr || recv == MPI_IN_PLACE || send == nullptr || (reports_aliases && send == recv);
}

// `count` is the number of elements in each rank's block.
template <typename CallMpi>
int reduce_scatter_equal_blocks(mpi_function function, const void* send, void* recv, std::int64_t count,
                                MPI_Datatype type, MPI_Op op, MPI_Comm comm, CallMpi&& call_mpi) {
  reduction_mapping mapping;
  if (const auto reason = find_pass_reason(count, type, op, mapping))
    return pass_to_mpi(function, *reason, call_mpi);
  if (is_checked_by_mpi(send, recv)) return pass_to_mpi(function, pass_reason_code::checked_by_mpi, call_mpi);
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->try_attach())
    return pass_to_mpi(
        function, communicator == nullptr ? pass_reason_code::mpi_not_running : communicator->pass_reason(),
        call_mpi);
  const auto make_operation = [&](const void* send_buffer, void* recv_buffer) {
    return reduction_operation(ISTHMUS_REDUCE_SCATTER, mapping, count, send_buffer, recv_buffer);
  };
  return reduce_scatter_blocks(*communicator, function, send, recv,
                               static_cast<std::uint64_t>(count) * mapping.bytes, comm, make_operation,
                               call_mpi);
}

template <typename Api>
int handle_reduce_scatter_block(const void* send, void* recv, typename Api::count_type count, MPI_Datatype type,
                                MPI_Op op, MPI_Comm comm) {
  return reduce_scatter_equal_blocks(
      mpi_function::mpi_reduce_scatter_block, send, recv, count, type, op, comm,
      [&] { return Api::mpi_reduce_scatter_block(send, recv, count, type, op, comm); });
}

// One contiguous block per rank. MPI requires the same counts on all ranks.
template <typename Api>
int handle_reduce_scatter(const void* send, void* recv, const typename Api::count_type* counts,
                          MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  constexpr mpi_function function = mpi_function::mpi_reduce_scatter;
  const auto call_mpi = [&] { return Api::mpi_reduce_scatter(send, recv, counts, type, op, comm); };
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || counts == nullptr || !communicator->try_attach())
    return pass_to_mpi(
        function, communicator == nullptr ? pass_reason_code::mpi_not_running : communicator->pass_reason(),
        call_mpi);
  const auto size = static_cast<std::size_t>(communicator->size());
  if (std::all_of(counts, counts + size, [&](auto count) { return count == counts[0]; }))
    return reduce_scatter_equal_blocks(function, send, recv, counts[0], type, op, comm, call_mpi);
  if (*std::min_element(counts, counts + size) < 0)
    return pass_to_mpi(function, pass_reason_code::checked_by_mpi, call_mpi);
  reduction_mapping mapping;
  if (const auto reason = find_pass_reason(1, type, op, mapping))
    return pass_to_mpi(function, *reason, call_mpi);
  const auto own = static_cast<std::size_t>(communicator->rank());
  // A rank that receives nothing may pass no buffer.
  if (send == nullptr || recv == MPI_IN_PLACE ||
      (recv == nullptr && (counts[own] > 0 || send == MPI_IN_PLACE)) || (reports_aliases && send == recv))
    return pass_to_mpi(function, pass_reason_code::checked_by_mpi, call_mpi);
  std::vector<std::uint64_t> element_counts(size), displs(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    element_counts[rank] = static_cast<std::uint64_t>(counts[rank]) * mapping.values_per_element;
    if (rank > 0) displs[rank] = displs[rank - 1] + element_counts[rank - 1];
  }
  const auto make_operation = [&](const void* send_buffer, void* recv_buffer) {
    isthmus_operation operation =
        reduction_operation(ISTHMUS_REDUCE_SCATTERV, mapping, counts[own], send_buffer, recv_buffer);
    operation.send_counts = element_counts.data();
    operation.send_displs = displs.data();
    return operation;
  };
  return reduce_scatter_blocks(*communicator, function, send, recv,
                               static_cast<std::uint64_t>(counts[own]) * mapping.bytes, comm, make_operation,
                               call_mpi);
}

}  // namespace isthmus::mpi_shim
