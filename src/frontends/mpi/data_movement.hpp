// Data movement collectives. Whether Isthmus handles a call depends only on values that all ranks know: the
// communicator, the root and, for some calls, the bytes of a block. It never depends on a rank's own datatype
// or buffers (blocks.hpp). A rank with an invalid argument (missing buffer, negative count, mismatched sizes)
// passes the call to MPI, which reports the error.
#pragma once

#include "frontends/mpi/blocks.hpp"
#include "frontends/mpi/execute.hpp"
#include "frontends/mpi/native.hpp"

namespace isthmus::mpi_shim {

inline isthmus_operation data_movement_operation(isthmus_collective collective, std::uint64_t bytes,
                                                 const void* send, void* recv, int root = 0) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = ISTHMUS_UINT8;
  operation.root = root;
  operation.count = bytes;
  operation.send_buf = send;
  operation.recv_buf = recv;
  return operation;
}

inline outcome completed(int code) {
  return {outcome::result_kind::done, code, pass_reason_code::checked_by_mpi};
}
inline outcome pass_through(pass_reason_code reason = pass_reason_code::checked_by_mpi) {
  return {outcome::result_kind::passed_through, MPI_SUCCESS, reason};
}

// Runs `attempt(communicator, use_staging)`. If Isthmus refuses the buffers because they overlap, which MPI
// forbids but does not detect, a second attempt uses staging buffers.
template <typename Attempt, typename CallMpi>
int run_collective(mpi_function function, MPI_Comm comm, Attempt&& attempt, CallMpi&& call_mpi) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->try_attach())
    return pass_to_mpi(
        function, communicator == nullptr ? pass_reason_code::mpi_not_running : communicator->pass_reason(),
        call_mpi);
  outcome result = attempt(*communicator, false);
  if (result.kind == outcome::result_kind::refused) result = attempt(*communicator, true);
  return result.kind == outcome::result_kind::done ? result.code
                                                   : pass_to_mpi(function, result.reason, call_mpi);
}

// Finds the layout of the send or receive arguments. Returns false if they are invalid, so that MPI
// reports the error.
inline bool is_side_valid(const void* buffer, std::int64_t count, MPI_Datatype type, datatype_layout& layout) {
  return count >= 0 && find_layout(type, layout) && buffer != MPI_IN_PLACE &&
         (buffer != nullptr || count == 0 || !layout.is_dense);
}

template <typename Api>
int handle_bcast(void* buffer, typename Api::count_type count, MPI_Datatype type, int root, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool) -> outcome {
    datatype_layout layout;
    if (root < 0 || root >= communicator.size() || !is_side_valid(buffer, count, type, layout))
      return pass_through();
    const packed_buffer data(buffer, static_cast<std::uint64_t>(count), layout, false);
    if (data.bytes() == 0) return pass_through(pass_reason_code::no_data);
    const bool is_root = communicator.rank() == root;
    if (const int code = is_root ? data.pack(comm) : MPI_SUCCESS; code != MPI_SUCCESS) return completed(code);
    const outcome result = execute(
        communicator, comm, mpi_function::mpi_bcast,
        data_movement_operation(ISTHMUS_BROADCAST, data.bytes(), data.data(), data.data(), root), data.bytes());
    if (is_root || result.kind != outcome::result_kind::done || result.code != MPI_SUCCESS) return result;
    return completed(data.unpack(comm));
  };
  return run_collective(mpi_function::mpi_bcast, comm, attempt,
                        [&] { return Api::mpi_bcast(buffer, count, type, root, comm); });
}

// Unpacks the received data if the operation was successful.
template <typename Buffer>
outcome unpack_result(const outcome& result, const Buffer& buffer, MPI_Comm comm) {
  if (result.kind != outcome::result_kind::done || result.code != MPI_SUCCESS) return result;
  return completed(buffer.unpack(comm));
}

template <typename Api>
int handle_allgather(const void* send, typename Api::count_type send_count, MPI_Datatype send_type, void* recv,
                     typename Api::count_type recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    datatype_layout send_layout, recv_layout;
    if (!is_side_valid(recv, recv_count, recv_type, recv_layout)) return pass_through();
    const auto count = static_cast<std::uint64_t>(recv_count);
    const std::uint64_t bytes = count * recv_layout.bytes;
    const char* const own =
        offset(recv, communicator.rank() * static_cast<std::int64_t>(count) * recv_layout.extent);
    const bool is_in_place = send == MPI_IN_PLACE;
    if (!is_in_place && (!is_side_valid(send, send_count, send_type, send_layout) ||
                         static_cast<std::uint64_t>(send_count) * send_layout.bytes != bytes))
      return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && send == own) return pass_through();
    const packed_buffer send_data =
        is_in_place ? packed_buffer(own, count, recv_layout, false)
                    : packed_buffer(send, static_cast<std::uint64_t>(send_count), send_layout, use_staging);
    const packed_buffer recv_data(recv, count * static_cast<std::uint64_t>(communicator.size()), recv_layout,
                                  use_staging);
    if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
    return unpack_result(
        execute(communicator, comm, mpi_function::mpi_allgather,
                data_movement_operation(ISTHMUS_ALLGATHER, bytes, send_data.data(), recv_data.data()), bytes),
        recv_data, comm);
  };
  return run_collective(mpi_function::mpi_allgather, comm, attempt, [&] {
    return Api::mpi_allgather(send, send_count, send_type, recv, recv_count, recv_type, comm);
  });
}

template <typename Api>
int handle_alltoall(const void* send, typename Api::count_type send_count, MPI_Datatype send_type, void* recv,
                    typename Api::count_type recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    datatype_layout send_layout, recv_layout;
    if (!is_side_valid(recv, recv_count, recv_type, recv_layout)) return pass_through();
    const auto ranks = static_cast<std::uint64_t>(communicator.size()),
               count = static_cast<std::uint64_t>(recv_count);
    const std::uint64_t bytes = count * recv_layout.bytes;
    const bool is_in_place = send == MPI_IN_PLACE;
    if (!is_in_place && (!is_side_valid(send, send_count, send_type, send_layout) ||
                         static_cast<std::uint64_t>(send_count) * send_layout.bytes != bytes))
      return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && send == recv) return pass_through();
    const packed_buffer recv_data(recv, count * ranks, recv_layout, use_staging);
    const packed_buffer send_data =
        is_in_place
            ? packed_buffer(recv, count * ranks, recv_layout, use_staging)
            : packed_buffer(send, static_cast<std::uint64_t>(send_count) * ranks, send_layout, use_staging);
    if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
    return unpack_result(
        execute(communicator, comm, mpi_function::mpi_alltoall,
                data_movement_operation(ISTHMUS_ALLTOALL, bytes, send_data.data(), recv_data.data()), bytes),
        recv_data, comm);
  };
  return run_collective(mpi_function::mpi_alltoall, comm, attempt, [&] {
    return Api::mpi_alltoall(send, send_count, send_type, recv, recv_count, recv_type, comm);
  });
}

template <typename Api>
int handle_gather(const void* send, typename Api::count_type send_count, MPI_Datatype send_type, void* recv,
                  typename Api::count_type recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    datatype_layout send_layout, recv_layout;
    const bool is_root = communicator.rank() == root, is_in_place = is_root && send == MPI_IN_PLACE;
    if (is_root && !is_side_valid(recv, recv_count, recv_type, recv_layout)) return pass_through();
    if (!is_in_place && !is_side_valid(send, send_count, send_type, send_layout)) return pass_through();
    const std::uint64_t count = is_root ? static_cast<std::uint64_t>(recv_count) : 0;
    const std::uint64_t own_bytes =
        is_in_place ? 0 : static_cast<std::uint64_t>(send_count) * send_layout.bytes;
    const std::uint64_t bytes = is_root ? count * recv_layout.bytes : own_bytes;
    const char* const own =
        is_root ? offset(recv, root * static_cast<std::int64_t>(count) * recv_layout.extent) : nullptr;
    if (!is_in_place && own_bytes != bytes) return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && is_root && send == own) return pass_through();
    const packed_buffer send_data =
        is_in_place ? packed_buffer(own, count, recv_layout, false)
                    : packed_buffer(send, static_cast<std::uint64_t>(send_count), send_layout, use_staging);
    const packed_buffer recv_data(recv, count * static_cast<std::uint64_t>(communicator.size()), recv_layout,
                                  is_root && use_staging);
    if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
    const outcome result = execute(communicator, comm, mpi_function::mpi_gather,
                                   data_movement_operation(ISTHMUS_GATHER, bytes, send_data.data(),
                                                           is_root ? recv_data.data() : nullptr, root),
                                   bytes);
    return is_root ? unpack_result(result, recv_data, comm) : result;
  };
  return run_collective(mpi_function::mpi_gather, comm, attempt, [&] {
    return Api::mpi_gather(send, send_count, send_type, recv, recv_count, recv_type, root, comm);
  });
}

template <typename Api>
int handle_scatter(const void* send, typename Api::count_type send_count, MPI_Datatype send_type, void* recv,
                   typename Api::count_type recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    if (root < 0 || root >= communicator.size()) return pass_through();
    datatype_layout send_layout, recv_layout;
    const bool is_root = communicator.rank() == root, is_in_place = is_root && recv == MPI_IN_PLACE;
    if (is_root && !is_side_valid(send, send_count, send_type, send_layout)) return pass_through();
    if (!is_in_place && !is_side_valid(recv, recv_count, recv_type, recv_layout)) return pass_through();
    const std::uint64_t count = is_root ? static_cast<std::uint64_t>(send_count) : 0;
    const std::uint64_t own_bytes =
        is_in_place ? 0 : static_cast<std::uint64_t>(recv_count) * recv_layout.bytes;
    const std::uint64_t bytes = is_root ? count * send_layout.bytes : own_bytes;
    if (!is_in_place && own_bytes != bytes) return pass_through();
    if (bytes == 0) return pass_through(pass_reason_code::no_data);
    if (reports_aliases && is_root &&
        recv == offset(send, root * static_cast<std::int64_t>(count) * send_layout.extent))
      return pass_through();
    const packed_buffer send_data(send, count * static_cast<std::uint64_t>(communicator.size()), send_layout,
                                  is_root && use_staging);
    const packed_buffer recv_data(recv, is_in_place ? 0 : static_cast<std::uint64_t>(recv_count), recv_layout,
                                  use_staging);
    if (const int code = is_root ? send_data.pack(comm) : MPI_SUCCESS; code != MPI_SUCCESS)
      return completed(code);
    char* const destination =
        is_in_place ? send_data.data() + static_cast<std::uint64_t>(root) * bytes : recv_data.data();
    const outcome result =
        execute(communicator, comm, mpi_function::mpi_scatter,
                data_movement_operation(ISTHMUS_SCATTER, bytes, is_root ? send_data.data() : nullptr,
                                        destination, root),
                bytes);
    return is_in_place ? result : unpack_result(result, recv_data, comm);
  };
  return run_collective(mpi_function::mpi_scatter, comm, attempt, [&] {
    return Api::mpi_scatter(send, send_count, send_type, recv, recv_count, recv_type, root, comm);
  });
}

}  // namespace isthmus::mpi_shim
