// The calls that move blocks of a length for each rank. Only allgatherv's lengths are known to all ranks, so
// the others never go to MPI for their sizes.
#pragma once

#include "frontends/mpi/movement.hpp"

namespace isthmus::mpi_shim {

template <typename Api>
int take_allgatherv(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                    const typename Api::count* counts, const typename Api::displacement* displs,
                    MPI_Datatype recv_type, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    element sent, received;
    if (counts == nullptr || displs == nullptr || recv == MPI_IN_PLACE || !describe(recv_type, received))
      return pass_through();
    const blocks in(recv, counts, displs, communicator.size(), received, staged);
    const bool is_in_place = send == MPI_IN_PLACE;
    if (!in.is_valid() || in.is_missing()) return pass_through();
    if (in.total() == 0) return pass_through(pass_reason_code::no_data);
    const std::uint64_t bytes = in.bytes(communicator.rank());
    if (!is_in_place && (!check_side(send, send_count, send_type, sent) ||
                         static_cast<std::uint64_t>(send_count) * sent.bytes != bytes))
      return pass_through();
    if (reports_aliases && bytes > 0 && send == in.begin(communicator.rank())) return pass_through();
    const block out = is_in_place ? block(in.begin(communicator.rank()), bytes / received.bytes, received, staged)
                                  : block(send, static_cast<std::uint64_t>(send_count), sent, staged);
    if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
    isthmus_operation operation = move(ISTHMUS_ALLGATHERV, bytes, out.data(), in.data());
    operation.recv_counts = in.counts();
    operation.recv_displs = in.displs();
    return deliver(execute(communicator, comm, mpi_function::mpi_allgatherv, operation, in.total()), in, comm);
  };
  return with(mpi_function::mpi_allgatherv, comm, step, [&] {
    return Api::mpi_allgatherv(send, send_count, send_type, recv, counts, displs, recv_type, comm);
  });
}

// Gatherv on the root.
template <typename Api>
outcome gather_blocks(attached_communicator& communicator, bool staged, const void* send, typename Api::count send_count,
                      MPI_Datatype send_type, void* recv, const typename Api::count* counts,
                      const typename Api::displacement* displs, MPI_Datatype recv_type, MPI_Comm comm) {
  element sent, received;
  if (counts == nullptr || displs == nullptr || recv == MPI_IN_PLACE || !describe(recv_type, received))
    return pass_through();
  const int root = communicator.rank();
  const blocks in(recv, counts, displs, communicator.size(), received, staged);
  if (!in.is_valid() || in.is_missing()) return pass_through();
  const bool is_in_place = send == MPI_IN_PLACE;
  const std::uint64_t bytes = in.bytes(root);
  if (!is_in_place && (!check_side(send, send_count, send_type, sent) ||
                       static_cast<std::uint64_t>(send_count) * sent.bytes != bytes))
    return pass_through();
  if (reports_aliases && bytes > 0 && send == in.begin(root)) return pass_through();
  const block out =
      is_in_place ? block(in.begin(root), received.bytes == 0 ? 0 : bytes / received.bytes, received, staged)
                  : block(send, static_cast<std::uint64_t>(send_count), sent, staged);
  if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
  isthmus_operation operation = move(ISTHMUS_GATHERV, bytes, out.data(), in.data(), root);
  operation.recv_counts = in.counts();
  operation.recv_displs = in.displs();
  return deliver(execute(communicator, comm, mpi_function::mpi_gatherv, operation, in.total()), in, comm);
}

template <typename Api>
int take_gatherv(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                 const typename Api::count* counts, const typename Api::displacement* displs,
                 MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    if (communicator.rank() == root)
      return gather_blocks<Api>(communicator, staged, send, send_count, send_type, recv, counts, displs, recv_type, comm);
    element sent;
    if (!check_side(send, send_count, send_type, sent)) return pass_through();
    const block out(send, static_cast<std::uint64_t>(send_count), sent, staged);
    if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
    return execute(communicator, comm, mpi_function::mpi_gatherv, move(ISTHMUS_GATHERV, out.bytes(), out.data(), nullptr, root),
                   out.bytes());
  };
  return with(mpi_function::mpi_gatherv, comm, step, [&] {
    return Api::mpi_gatherv(send, send_count, send_type, recv, counts, displs, recv_type, root, comm);
  });
}

// Scatterv on the root.
template <typename Api>
outcome scatter_blocks(attached_communicator& communicator, bool staged, const void* send, const typename Api::count* counts,
                       const typename Api::displacement* displs, MPI_Datatype send_type, void* recv,
                       typename Api::count recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  element sent, received;
  if (counts == nullptr || displs == nullptr || !describe(send_type, sent)) return pass_through();
  const int root = communicator.rank();
  const blocks out(send, counts, displs, communicator.size(), sent, staged);
  if (!out.is_valid() || out.is_missing()) return pass_through();
  const bool is_in_place = recv == MPI_IN_PLACE;
  const std::uint64_t bytes = out.bytes(root);
  if (!is_in_place && (!check_side(recv, recv_count, recv_type, received) ||
                       static_cast<std::uint64_t>(recv_count) * received.bytes != bytes))
    return pass_through();
  if (reports_aliases && bytes > 0 && recv == out.begin(root)) return pass_through();
  const block in(recv, is_in_place ? 0 : static_cast<std::uint64_t>(recv_count), received, staged);
  if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
  isthmus_operation operation =
      move(ISTHMUS_SCATTERV, bytes, out.data(), is_in_place ? out.data(root) : in.data(), root);
  operation.send_counts = out.counts();
  operation.send_displs = out.displs();
  const outcome result = execute(communicator, comm, mpi_function::mpi_scatterv, operation, out.total());
  return is_in_place ? result : deliver(result, in, comm);
}

template <typename Api>
int take_scatterv(const void* send, const typename Api::count* counts, const typename Api::displacement* displs,
                  MPI_Datatype send_type, void* recv, typename Api::count recv_count, MPI_Datatype recv_type,
                  int root, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    if (communicator.rank() == root)
      return scatter_blocks<Api>(communicator, staged, send, counts, displs, send_type, recv, recv_count, recv_type,
                                 comm);
    element received;
    if (!check_side(recv, recv_count, recv_type, received)) return pass_through();
    const block in(recv, static_cast<std::uint64_t>(recv_count), received, staged);
    return deliver(execute(communicator, comm, mpi_function::mpi_scatterv,
                           move(ISTHMUS_SCATTERV, in.bytes(), nullptr, in.data(), root), in.bytes()),
                   in, comm);
  };
  return with(mpi_function::mpi_scatterv, comm, step, [&] {
    return Api::mpi_scatterv(send, counts, displs, send_type, recv, recv_count, recv_type, root, comm);
  });
}

template <typename Api>
int take_alltoallv(const void* send, const typename Api::count* send_counts,
                   const typename Api::displacement* send_displs, MPI_Datatype send_type, void* recv,
                   const typename Api::count* recv_counts, const typename Api::displacement* recv_displs,
                   MPI_Datatype recv_type, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    element sent, received;
    const bool is_in_place = send == MPI_IN_PLACE;
    if (recv_counts == nullptr || recv_displs == nullptr || recv == MPI_IN_PLACE ||
        !describe(recv_type, received))
      return pass_through();
    if (!is_in_place && (send_counts == nullptr || send_displs == nullptr || !describe(send_type, sent)))
      return pass_through();
    const blocks in(recv, recv_counts, recv_displs, communicator.size(), received, staged);
    const blocks out = is_in_place ? blocks(recv, recv_counts, recv_displs, communicator.size(), received, staged)
                                   : blocks(send, send_counts, send_displs, communicator.size(), sent, staged);
    if (!in.is_valid() || in.is_missing() || !out.is_valid() || out.is_missing()) return pass_through();
    if (out.bytes(communicator.rank()) != in.bytes(communicator.rank()) || (reports_aliases && send == recv && out.total() > 0))
      return pass_through();
    if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
    isthmus_operation operation = move(ISTHMUS_ALLTOALLV, 0, out.data(), in.data());
    operation.send_counts = out.counts();
    operation.send_displs = out.displs();
    operation.recv_counts = in.counts();
    operation.recv_displs = in.displs();
    return deliver(execute(communicator, comm, mpi_function::mpi_alltoallv, operation, out.total()), in, comm);
  };
  return with(mpi_function::mpi_alltoallv, comm, step, [&] {
    return Api::mpi_alltoallv(send, send_counts, send_displs, send_type, recv, recv_counts, recv_displs,
                              recv_type, comm);
  });
}

}  // namespace isthmus::mpi_shim
