// The calls that move data. Whether Isthmus takes one depends on the communicator, the root and the bytes of a
// block where all ranks know them, never on a rank's own datatype or buffers (blocks.hpp). What MPI would
// report (a missing buffer, a negative count, sizes that do not match) is left to it on the rank where it is
// wrong.
#pragma once

#include "frontends/mpi/blocks.hpp"
#include "frontends/mpi/execute.hpp"
#include "frontends/mpi/native.hpp"

namespace isthmus::mpi_shim {

inline isthmus_operation move(isthmus_collective collective, std::uint64_t bytes, const void* send, void* recv,
                              int root = 0) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = ISTHMUS_UINT8;
  operation.root = root;
  operation.count = bytes;
  operation.send_buf = send;
  operation.recv_buf = recv;
  return operation;
}

inline outcome broken(int code) { return {outcome::result_kind::done, code, pass_reason_code::checked_by_mpi}; }
inline outcome pass_through(pass_reason_code reason = pass_reason_code::checked_by_mpi) {
  return {outcome::result_kind::passed_through, MPI_SUCCESS, reason};
}

// `step(on, staged)` runs the call on the communicator; once more through memory of our own where Isthmus
// refuses the buffers (they overlap, which MPI forbids but does not see).
template <typename Step, typename CallMpi>
int with(mpi_function function, MPI_Comm comm, Step&& step, CallMpi&& call_mpi) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->try_attach())
    return pass_to_mpi(function, communicator == nullptr ? pass_reason_code::mpi_not_running : communicator->pass_reason(), call_mpi);
  outcome result = step(*communicator, false);
  if (result.kind == outcome::result_kind::refused) result = step(*communicator, true);
  return result.kind == outcome::result_kind::done ? result.code : pass_to_mpi(function, result.reason, call_mpi);
}

// One side of a call as its arguments say it; false where MPI has to say what is wrong.
inline bool check_side(const void* buffer, std::int64_t count, MPI_Datatype type, element& what) {
  return count >= 0 && describe(type, what) && buffer != MPI_IN_PLACE &&
         (buffer != nullptr || count == 0 || !what.is_dense);
}

template <typename Api>
int take_bcast(void* buffer, typename Api::count count, MPI_Datatype type, int root, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool) -> outcome {
    element what;
    if (root < 0 || root >= communicator.size() || !check_side(buffer, count, type, what)) return pass_through();
    const block data(buffer, static_cast<std::uint64_t>(count), what, false);
    if (data.bytes() == 0) return pass_through(pass_reason_code::no_data);
    const bool is_root = communicator.rank() == root;
    if (const int code = is_root ? data.fill(comm) : MPI_SUCCESS; code != MPI_SUCCESS) return broken(code);
    const outcome result =
        execute(communicator, comm, mpi_function::mpi_bcast,
                move(ISTHMUS_BROADCAST, data.bytes(), data.data(), data.data(), root), data.bytes());
    if (is_root || result.kind != outcome::result_kind::done || result.code != MPI_SUCCESS) return result;
    return broken(data.empty(comm));
  };
  return with(mpi_function::mpi_bcast, comm, step, [&] { return Api::mpi_bcast(buffer, count, type, root, comm); });
}

// What has been received goes to its place, if all went well.
template <typename Received>
outcome deliver(const outcome& result, const Received& received, MPI_Comm comm) {
  if (result.kind != outcome::result_kind::done || result.code != MPI_SUCCESS) return result;
  return broken(received.empty(comm));
}

template <typename Api>
int take_allgather(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                   typename Api::count recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    element sent, received;
    if (!check_side(recv, recv_count, recv_type, received)) return pass_through();
    const auto count = static_cast<std::uint64_t>(recv_count);
    const std::uint64_t bytes = count * received.bytes;
    const char* const own = offset(recv, communicator.rank() * static_cast<std::int64_t>(count) * received.extent);
    const bool is_in_place = send == MPI_IN_PLACE;
    if (!is_in_place && (!check_side(send, send_count, send_type, sent) ||
                         static_cast<std::uint64_t>(send_count) * sent.bytes != bytes))
      return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && send == own) return pass_through();
    const block out = is_in_place ? block(own, count, received, false)
                                  : block(send, static_cast<std::uint64_t>(send_count), sent, staged);
    const block in(recv, count * static_cast<std::uint64_t>(communicator.size()), received, staged);
    if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
    return deliver(
        execute(communicator, comm, mpi_function::mpi_allgather, move(ISTHMUS_ALLGATHER, bytes, out.data(), in.data()), bytes),
        in, comm);
  };
  return with(mpi_function::mpi_allgather, comm, step, [&] {
    return Api::mpi_allgather(send, send_count, send_type, recv, recv_count, recv_type, comm);
  });
}

template <typename Api>
int take_alltoall(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                  typename Api::count recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    element sent, received;
    if (!check_side(recv, recv_count, recv_type, received)) return pass_through();
    const auto ranks = static_cast<std::uint64_t>(communicator.size()), count = static_cast<std::uint64_t>(recv_count);
    const std::uint64_t bytes = count * received.bytes;
    const bool is_in_place = send == MPI_IN_PLACE;
    if (!is_in_place && (!check_side(send, send_count, send_type, sent) ||
                         static_cast<std::uint64_t>(send_count) * sent.bytes != bytes))
      return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && send == recv) return pass_through();
    const block in(recv, count * ranks, received, staged);
    const block out = is_in_place ? block(recv, count * ranks, received, staged)
                                  : block(send, static_cast<std::uint64_t>(send_count) * ranks, sent, staged);
    if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
    return deliver(
        execute(communicator, comm, mpi_function::mpi_alltoall, move(ISTHMUS_ALLTOALL, bytes, out.data(), in.data()), bytes), in,
        comm);
  };
  return with(mpi_function::mpi_alltoall, comm, step, [&] {
    return Api::mpi_alltoall(send, send_count, send_type, recv, recv_count, recv_type, comm);
  });
}

template <typename Api>
int take_gather(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                typename Api::count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    element sent, received;
    const bool is_root = communicator.rank() == root, is_in_place = is_root && send == MPI_IN_PLACE;
    if (is_root && !check_side(recv, recv_count, recv_type, received)) return pass_through();
    if (!is_in_place && !check_side(send, send_count, send_type, sent)) return pass_through();
    const std::uint64_t count = is_root ? static_cast<std::uint64_t>(recv_count) : 0;
    const std::uint64_t own_bytes = is_in_place ? 0 : static_cast<std::uint64_t>(send_count) * sent.bytes;
    const std::uint64_t bytes = is_root ? count * received.bytes : own_bytes;
    const char* const own =
        is_root ? offset(recv, root * static_cast<std::int64_t>(count) * received.extent) : nullptr;
    if (!is_in_place && own_bytes != bytes) return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && is_root && send == own) return pass_through();
    const block out = is_in_place ? block(own, count, received, false)
                                  : block(send, static_cast<std::uint64_t>(send_count), sent, staged);
    const block in(recv, count * static_cast<std::uint64_t>(communicator.size()), received, is_root && staged);
    if (const int code = out.fill(comm); code != MPI_SUCCESS) return broken(code);
    const outcome result =
        execute(communicator, comm, mpi_function::mpi_gather,
                move(ISTHMUS_GATHER, bytes, out.data(), is_root ? in.data() : nullptr, root), bytes);
    return is_root ? deliver(result, in, comm) : result;
  };
  return with(mpi_function::mpi_gather, comm, step, [&] {
    return Api::mpi_gather(send, send_count, send_type, recv, recv_count, recv_type, root, comm);
  });
}

template <typename Api>
int take_scatter(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                 typename Api::count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const auto step = [&](attached_communicator& communicator, bool staged) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    element sent, received;
    const bool is_root = communicator.rank() == root, is_in_place = is_root && recv == MPI_IN_PLACE;
    if (is_root && !check_side(send, send_count, send_type, sent)) return pass_through();
    if (!is_in_place && !check_side(recv, recv_count, recv_type, received)) return pass_through();
    const std::uint64_t count = is_root ? static_cast<std::uint64_t>(send_count) : 0;
    const std::uint64_t own_bytes = is_in_place ? 0 : static_cast<std::uint64_t>(recv_count) * received.bytes;
    const std::uint64_t bytes = is_root ? count * sent.bytes : own_bytes;
    if (!is_in_place && own_bytes != bytes) return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && is_root &&
        recv == offset(send, root * static_cast<std::int64_t>(count) * sent.extent))
      return pass_through();
    const block out(send, count * static_cast<std::uint64_t>(communicator.size()), sent, is_root && staged);
    const block in(recv, is_in_place ? 0 : static_cast<std::uint64_t>(recv_count), received, staged);
    if (const int code = is_root ? out.fill(comm) : MPI_SUCCESS; code != MPI_SUCCESS) return broken(code);
    char* const to = is_in_place ? out.data() + static_cast<std::uint64_t>(root) * bytes : in.data();
    const outcome result =
        execute(communicator, comm, mpi_function::mpi_scatter,
                move(ISTHMUS_SCATTER, bytes, is_root ? out.data() : nullptr, to, root), bytes);
    return is_in_place ? result : deliver(result, in, comm);
  };
  return with(mpi_function::mpi_scatter, comm, step, [&] {
    return Api::mpi_scatter(send, send_count, send_type, recv, recv_count, recv_type, root, comm);
  });
}

}  // namespace isthmus::mpi_shim
