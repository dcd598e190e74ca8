// Data movement collectives with one count per rank. Only the counts of allgatherv are known to all ranks, so
// the sizes of the other calls do not affect whether they are passed to MPI.
#pragma once

#include "frontends/mpi/data_movement.hpp"

namespace isthmus::mpi_shim {

template <typename Api>
int handle_allgatherv(const void* send, typename Api::count_type send_count, MPI_Datatype send_type, void* recv,
                      const typename Api::count_type* counts, const typename Api::displacement_type* displs,
                      MPI_Datatype recv_type, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    datatype_layout send_layout, recv_layout;
    if (counts == nullptr || displs == nullptr || recv == MPI_IN_PLACE || !find_layout(recv_type, recv_layout))
      return pass_through();
    const packed_blocks recv_data(recv, counts, displs, communicator.size(), recv_layout, use_staging);
    const bool is_in_place = send == MPI_IN_PLACE;
    if (!recv_data.is_valid() || recv_data.is_missing()) return pass_through();
    if (recv_data.total() == 0) return pass_through(pass_reason_code::no_data);
    const std::uint64_t bytes = recv_data.bytes(communicator.rank());
    if (!is_in_place && (!is_side_valid(send, send_count, send_type, send_layout) ||
                         static_cast<std::uint64_t>(send_count) * send_layout.bytes != bytes))
      return pass_through();
    if (reports_aliases && bytes > 0 && send == recv_data.user_data(communicator.rank())) return pass_through();
    const packed_buffer send_data =
        is_in_place ? packed_buffer(recv_data.user_data(communicator.rank()), bytes / recv_layout.bytes,
                                    recv_layout, use_staging)
                    : packed_buffer(send, static_cast<std::uint64_t>(send_count), send_layout, use_staging);
    if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
    isthmus_operation operation =
        data_movement_operation(ISTHMUS_ALLGATHERV, bytes, send_data.data(), recv_data.data());
    operation.recv_counts = recv_data.counts();
    operation.recv_displs = recv_data.displs();
    return unpack_result(
        execute(communicator, comm, mpi_function::mpi_allgatherv, operation, recv_data.total()), recv_data,
        comm);
  };
  return run_collective(mpi_function::mpi_allgatherv, comm, attempt, [&] {
    return Api::mpi_allgatherv(send, send_count, send_type, recv, counts, displs, recv_type, comm);
  });
}

// MPI_Gatherv on the root.
template <typename Api>
outcome gather_blocks(attached_communicator& communicator, bool use_staging, const void* send,
                      typename Api::count_type send_count, MPI_Datatype send_type, void* recv,
                      const typename Api::count_type* counts, const typename Api::displacement_type* displs,
                      MPI_Datatype recv_type, MPI_Comm comm) {
  datatype_layout send_layout, recv_layout;
  if (counts == nullptr || displs == nullptr || recv == MPI_IN_PLACE || !find_layout(recv_type, recv_layout))
    return pass_through();
  const int root = communicator.rank();
  const packed_blocks recv_data(recv, counts, displs, communicator.size(), recv_layout, use_staging);
  if (!recv_data.is_valid() || recv_data.is_missing()) return pass_through();
  const bool is_in_place = send == MPI_IN_PLACE;
  const std::uint64_t bytes = recv_data.bytes(root);
  if (!is_in_place && (!is_side_valid(send, send_count, send_type, send_layout) ||
                       static_cast<std::uint64_t>(send_count) * send_layout.bytes != bytes))
    return pass_through();
  if (reports_aliases && bytes > 0 && send == recv_data.user_data(root)) return pass_through();
  const packed_buffer send_data =
      is_in_place
          ? packed_buffer(recv_data.user_data(root), recv_layout.bytes == 0 ? 0 : bytes / recv_layout.bytes,
                          recv_layout, use_staging)
          : packed_buffer(send, static_cast<std::uint64_t>(send_count), send_layout, use_staging);
  if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
  isthmus_operation operation =
      data_movement_operation(ISTHMUS_GATHERV, bytes, send_data.data(), recv_data.data(), root);
  operation.recv_counts = recv_data.counts();
  operation.recv_displs = recv_data.displs();
  return unpack_result(execute(communicator, comm, mpi_function::mpi_gatherv, operation, recv_data.total()),
                       recv_data, comm);
}

template <typename Api>
int handle_gatherv(const void* send, typename Api::count_type send_count, MPI_Datatype send_type, void* recv,
                   const typename Api::count_type* counts, const typename Api::displacement_type* displs,
                   MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    if (communicator.rank() == root)
      return gather_blocks<Api>(communicator, use_staging, send, send_count, send_type, recv, counts, displs,
                                recv_type, comm);
    datatype_layout send_layout;
    if (!is_side_valid(send, send_count, send_type, send_layout)) return pass_through();
    const packed_buffer send_data(send, static_cast<std::uint64_t>(send_count), send_layout, use_staging);
    if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
    return execute(communicator, comm, mpi_function::mpi_gatherv,
                   data_movement_operation(ISTHMUS_GATHERV, send_data.bytes(), send_data.data(), nullptr, root),
                   send_data.bytes());
  };
  return run_collective(mpi_function::mpi_gatherv, comm, attempt, [&] {
    return Api::mpi_gatherv(send, send_count, send_type, recv, counts, displs, recv_type, root, comm);
  });
}

// MPI_Scatterv on the root.
template <typename Api>
outcome scatter_blocks(attached_communicator& communicator, bool use_staging, const void* send,
                       const typename Api::count_type* counts, const typename Api::displacement_type* displs,
                       MPI_Datatype send_type, void* recv, typename Api::count_type recv_count,
                       MPI_Datatype recv_type, MPI_Comm comm) {
  datatype_layout send_layout, recv_layout;
  if (counts == nullptr || displs == nullptr || !find_layout(send_type, send_layout)) return pass_through();
  const int root = communicator.rank();
  const packed_blocks send_data(send, counts, displs, communicator.size(), send_layout, use_staging);
  if (!send_data.is_valid() || send_data.is_missing()) return pass_through();
  const bool is_in_place = recv == MPI_IN_PLACE;
  const std::uint64_t bytes = send_data.bytes(root);
  if (!is_in_place && (!is_side_valid(recv, recv_count, recv_type, recv_layout) ||
                       static_cast<std::uint64_t>(recv_count) * recv_layout.bytes != bytes))
    return pass_through();
  if (reports_aliases && bytes > 0 && recv == send_data.user_data(root)) return pass_through();
  const packed_buffer recv_data(recv, is_in_place ? 0 : static_cast<std::uint64_t>(recv_count), recv_layout,
                                use_staging);
  if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
  isthmus_operation operation = data_movement_operation(
      ISTHMUS_SCATTERV, bytes, send_data.data(), is_in_place ? send_data.data(root) : recv_data.data(), root);
  operation.send_counts = send_data.counts();
  operation.send_displs = send_data.displs();
  const outcome result = execute(communicator, comm, mpi_function::mpi_scatterv, operation, send_data.total());
  return is_in_place ? result : unpack_result(result, recv_data, comm);
}

template <typename Api>
int handle_scatterv(const void* send, const typename Api::count_type* counts,
                    const typename Api::displacement_type* displs, MPI_Datatype send_type, void* recv,
                    typename Api::count_type recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    if (communicator.rank() == root)
      return scatter_blocks<Api>(communicator, use_staging, send, counts, displs, send_type, recv, recv_count,
                                 recv_type, comm);
    datatype_layout recv_layout;
    if (!is_side_valid(recv, recv_count, recv_type, recv_layout)) return pass_through();
    const packed_buffer recv_data(recv, static_cast<std::uint64_t>(recv_count), recv_layout, use_staging);
    return unpack_result(
        execute(communicator, comm, mpi_function::mpi_scatterv,
                data_movement_operation(ISTHMUS_SCATTERV, recv_data.bytes(), nullptr, recv_data.data(), root),
                recv_data.bytes()),
        recv_data, comm);
  };
  return run_collective(mpi_function::mpi_scatterv, comm, attempt, [&] {
    return Api::mpi_scatterv(send, counts, displs, send_type, recv, recv_count, recv_type, root, comm);
  });
}

template <typename Api>
int handle_alltoallv(const void* send, const typename Api::count_type* send_counts,
                     const typename Api::displacement_type* send_displs, MPI_Datatype send_type, void* recv,
                     const typename Api::count_type* recv_counts,
                     const typename Api::displacement_type* recv_displs, MPI_Datatype recv_type,
                     MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    datatype_layout send_layout, recv_layout;
    const bool is_in_place = send == MPI_IN_PLACE;
    if (recv_counts == nullptr || recv_displs == nullptr || recv == MPI_IN_PLACE ||
        !find_layout(recv_type, recv_layout))
      return pass_through();
    if (!is_in_place &&
        (send_counts == nullptr || send_displs == nullptr || !find_layout(send_type, send_layout)))
      return pass_through();
    const packed_blocks recv_data(recv, recv_counts, recv_displs, communicator.size(), recv_layout,
                                  use_staging);
    const packed_blocks send_data =
        is_in_place
            ? packed_blocks(recv, recv_counts, recv_displs, communicator.size(), recv_layout, use_staging)
            : packed_blocks(send, send_counts, send_displs, communicator.size(), send_layout, use_staging);
    if (!recv_data.is_valid() || recv_data.is_missing() || !send_data.is_valid() || send_data.is_missing())
      return pass_through();
    if (send_data.bytes(communicator.rank()) != recv_data.bytes(communicator.rank()) ||
        (reports_aliases && send == recv && send_data.total() > 0))
      return pass_through();
    if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
    isthmus_operation operation =
        data_movement_operation(ISTHMUS_ALLTOALLV, 0, send_data.data(), recv_data.data());
    operation.send_counts = send_data.counts();
    operation.send_displs = send_data.displs();
    operation.recv_counts = recv_data.counts();
    operation.recv_displs = recv_data.displs();
    return unpack_result(execute(communicator, comm, mpi_function::mpi_alltoallv, operation, send_data.total()),
                         recv_data, comm);
  };
  return run_collective(mpi_function::mpi_alltoallv, comm, attempt, [&] {
    return Api::mpi_alltoallv(send, send_counts, send_displs, send_type, recv, recv_counts, recv_displs,
                              recv_type, comm);
  });
}

}  // namespace isthmus::mpi_shim
