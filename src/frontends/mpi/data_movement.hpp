// Data movement collectives. Whether Isthmus handles a call depends only on values that all ranks know: the
// communicator, the root, the counts of allgatherv and, for calls with equal blocks, the bytes of a block. It never
// depends on a rank's own datatype or buffers (blocks.hpp). A rank with an invalid argument (missing buffer, negative
// count, mismatched sizes) passes the call to MPI, which reports the error.
#pragma once

#include <algorithm>
#include <optional>

#include "frontends/mpi/attached_communicator.hpp"
#include "frontends/mpi/blocks.hpp"
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

// Finds the layout of the send or receive arguments. Returns false if they are invalid, so that MPI
// reports the error.
inline bool is_side_valid(const void* buffer, std::int64_t count, MPI_Datatype type, datatype_layout& layout) {
  return count >= 0 && find_layout(type, layout) && buffer != MPI_IN_PLACE &&
         (buffer != nullptr || count == 0 || !layout.is_dense);
}

// Unpacks the received data if the operation was successful.
template <typename Buffer>
outcome unpack_result(const outcome& result, const Buffer& buffer, MPI_Comm comm) {
  if (result.kind != outcome::result_kind::done || result.code != MPI_SUCCESS) return result;
  return completed(buffer.unpack(comm));
}

template <typename Api>
int handle_bcast(void* buffer, typename Api::count count, MPI_Datatype type, int root, MPI_Comm comm) {
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
    return is_root ? result : unpack_result(result, data, comm);
  };
  return run_collective(mpi_function::mpi_bcast, comm, attempt,
                        [&] { return Api::broadcast(buffer, count, type, root, comm); });
}

// ---- collectives with one block per rank ----
// One rank or every rank has a buffer with a block for each rank, the full buffer. Every rank has a buffer for its own
// block; that of alltoall has as many blocks. MPI_IN_PLACE stands for an own buffer inside the full buffer.

// Arguments for a full buffer with blocks of equal size.
struct equal_blocks {
  static constexpr bool has_equal_blocks = true;
  const void* buffer;
  std::int64_t count;
  MPI_Datatype type;

  bool is_valid(datatype_layout& layout) const { return is_side_valid(buffer, count, type, layout); }
  packed_equal_blocks pack(int ranks, const datatype_layout& layout, bool use_staging) const {
    return {buffer, ranks == 0 ? 0 : static_cast<std::uint64_t>(count), ranks, layout, use_staging};
  }
};

// Arguments for a full buffer with one count and displacement per rank.
template <typename Count, typename Displacement>
struct varying_blocks {
  static constexpr bool has_equal_blocks = false;
  const void* buffer;
  const Count* counts;
  const Displacement* displs;
  MPI_Datatype type;

  bool is_valid(datatype_layout& layout) const {
    return counts != nullptr && displs != nullptr && buffer != MPI_IN_PLACE && find_layout(type, layout);
  }
  packed_blocks pack(int ranks, const datatype_layout& layout, bool use_staging) const {
    return {buffer, counts, displs, ranks, layout, use_staging};
  }
};

// Arguments for an own buffer.
struct own_block {
  const void* buffer;
  std::int64_t count;
  MPI_Datatype type;
};

struct movement {
  mpi_function function;
  isthmus_collective collective;
  std::optional<int> root{};  // the only rank with a full buffer; every rank has one if not set

  bool sends_full() const { return collective == ISTHMUS_SCATTER || collective == ISTHMUS_SCATTERV; }
  bool has_many_own_blocks() const { return collective == ISTHMUS_ALLTOALL; }
};

// Runs the operation on packed buffers. `full` has no blocks on ranks without a full buffer.
template <typename Full>
outcome move_packed(const movement& call, attached_communicator& communicator, MPI_Comm comm, const Full& full,
                    const packed_buffer& own, bool is_in_place, std::uint64_t block_bytes,
                    std::uint64_t report_bytes) {
  const bool has_full = full.ranks() > 0, sends_full = call.sends_full();
  const int code = !sends_full ? own.pack(comm) : has_full ? full.pack(comm) : MPI_SUCCESS;
  if (code != MPI_SUCCESS) return completed(code);
  char* const full_data = has_full ? full.data() : nullptr;
  char* const own_data = sends_full && is_in_place ? full.data(communicator.rank()) : own.data();
  isthmus_operation operation =
      data_movement_operation(call.collective, block_bytes, sends_full ? full_data : own_data,
                              sends_full ? own_data : full_data, call.root.value_or(0));
  if (has_full) full.set_counts(operation, sends_full);
  const outcome result = execute(communicator, comm, call.function, operation, report_bytes);
  if (sends_full) return is_in_place ? result : unpack_result(result, own, comm);
  return has_full ? unpack_result(result, full, comm) : result;
}

template <typename Full>
outcome try_move(const movement& call, attached_communicator& communicator, MPI_Comm comm, const Full& full,
                 const own_block& own, bool use_staging) {
  const int rank = communicator.rank(), size = communicator.size();
  if (call.root && (*call.root < 0 || *call.root >= size)) return pass_through();
  const bool has_full = !call.root || *call.root == rank;
  const bool is_in_place = has_full && own.buffer == MPI_IN_PLACE;
  datatype_layout full_layout, own_layout;
  if ((has_full && !full.is_valid(full_layout)) ||
      (!is_in_place && !is_side_valid(own.buffer, own.count, own.type, own_layout)))
    return pass_through();
  const auto full_data = full.pack(has_full ? size : 0, full_layout, use_staging);
  if (!full_data.is_valid() || full_data.is_missing()) return pass_through();

  const auto own_count = is_in_place ? 0 : static_cast<std::uint64_t>(own.count);
  const std::uint64_t bytes = is_in_place ? full_data.bytes(rank) : own_count * own_layout.bytes;
  if (has_full && full_data.bytes(rank) != bytes) return pass_through();
  if (Full::has_equal_blocks ? bytes == 0 : !call.root && full_data.total() == 0)
    return pass_through(pass_reason_code::no_data);
  const void* const own_place = has_full ? full_data.user_data(call.has_many_own_blocks() ? 0 : rank) : nullptr;
  if (reports_aliases && has_full && bytes > 0 && own.buffer == own_place) return pass_through();

  const std::uint64_t blocks = call.has_many_own_blocks() ? static_cast<std::uint64_t>(size) : 1;
  const std::uint64_t in_place_count =
      call.sends_full() ? 0 : blocks * bytes / std::max<std::uint64_t>(1, full_layout.bytes);
  const packed_buffer own_data = is_in_place
                                     ? packed_buffer(own_place, in_place_count, full_layout, use_staging)
                                     : packed_buffer(own.buffer, own_count * blocks, own_layout, use_staging);
  return move_packed(call, communicator, comm, full_data, own_data, is_in_place, bytes,
                     Full::has_equal_blocks || !has_full ? bytes : full_data.total());
}

template <typename Full, typename CallMpi>
int move_blocks(const movement& call, MPI_Comm comm, const Full& full, const own_block& own,
                CallMpi&& call_mpi) {
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) {
    return try_move(call, communicator, comm, full, own, use_staging);
  };
  return run_collective(call.function, comm, attempt, call_mpi);
}

template <typename Api>
int handle_allgather(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                     typename Api::count recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  return move_blocks({mpi_function::mpi_allgather, ISTHMUS_ALLGATHER}, comm,
                     equal_blocks{recv, recv_count, recv_type}, {send, send_count, send_type}, [&] {
                       return Api::allgather(send, send_count, send_type, recv, recv_count, recv_type, comm);
                     });
}

template <typename Api>
int handle_alltoall(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                    typename Api::count recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  return move_blocks({mpi_function::mpi_alltoall, ISTHMUS_ALLTOALL}, comm,
                     equal_blocks{recv, recv_count, recv_type}, {send, send_count, send_type}, [&] {
                       return Api::alltoall(send, send_count, send_type, recv, recv_count, recv_type, comm);
                     });
}

template <typename Api>
int handle_gather(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                  typename Api::count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  return move_blocks({mpi_function::mpi_gather, ISTHMUS_GATHER, root}, comm,
                     equal_blocks{recv, recv_count, recv_type}, {send, send_count, send_type}, [&] {
                       return Api::gather(send, send_count, send_type, recv, recv_count, recv_type, root, comm);
                     });
}

template <typename Api>
int handle_scatter(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                   typename Api::count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  return move_blocks(
      {mpi_function::mpi_scatter, ISTHMUS_SCATTER, root}, comm, equal_blocks{send, send_count, send_type},
      {recv, recv_count, recv_type},
      [&] { return Api::scatter(send, send_count, send_type, recv, recv_count, recv_type, root, comm); });
}

template <typename Api>
int handle_allgatherv(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                      const typename Api::count* counts, const typename Api::displacement* displs,
                      MPI_Datatype recv_type, MPI_Comm comm) {
  return move_blocks(
      {mpi_function::mpi_allgatherv, ISTHMUS_ALLGATHERV}, comm, varying_blocks{recv, counts, displs, recv_type},
      {send, send_count, send_type},
      [&] { return Api::allgatherv(send, send_count, send_type, recv, counts, displs, recv_type, comm); });
}

template <typename Api>
int handle_gatherv(const void* send, typename Api::count send_count, MPI_Datatype send_type, void* recv,
                   const typename Api::count* counts, const typename Api::displacement* displs,
                   MPI_Datatype recv_type, int root, MPI_Comm comm) {
  return move_blocks(
      {mpi_function::mpi_gatherv, ISTHMUS_GATHERV, root}, comm, varying_blocks{recv, counts, displs, recv_type},
      {send, send_count, send_type},
      [&] { return Api::gatherv(send, send_count, send_type, recv, counts, displs, recv_type, root, comm); });
}

template <typename Api>
int handle_scatterv(const void* send, const typename Api::count* counts,
                    const typename Api::displacement* displs, MPI_Datatype send_type, void* recv,
                    typename Api::count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  return move_blocks(
      {mpi_function::mpi_scatterv, ISTHMUS_SCATTERV, root}, comm,
      varying_blocks{send, counts, displs, send_type}, {recv, recv_count, recv_type},
      [&] { return Api::scatterv(send, counts, displs, send_type, recv, recv_count, recv_type, root, comm); });
}

// Both buffers have one count per rank.
template <typename Api>
int handle_alltoallv(const void* send, const typename Api::count* send_counts,
                     const typename Api::displacement* send_displs, MPI_Datatype send_type, void* recv,
                     const typename Api::count* recv_counts, const typename Api::displacement* recv_displs,
                     MPI_Datatype recv_type, MPI_Comm comm) {
  const varying_blocks recv_blocks{recv, recv_counts, recv_displs, recv_type};
  const varying_blocks send_blocks =
      send == MPI_IN_PLACE ? recv_blocks : varying_blocks{send, send_counts, send_displs, send_type};
  const auto attempt = [&](attached_communicator& communicator, bool use_staging) -> outcome {
    datatype_layout send_layout, recv_layout;
    if (!recv_blocks.is_valid(recv_layout) || !send_blocks.is_valid(send_layout)) return pass_through();
    const int rank = communicator.rank(), size = communicator.size();
    const packed_blocks recv_data = recv_blocks.pack(size, recv_layout, use_staging);
    const packed_blocks send_data = send_blocks.pack(size, send_layout, use_staging);
    if (!recv_data.is_valid() || recv_data.is_missing() || !send_data.is_valid() || send_data.is_missing() ||
        send_data.bytes(rank) != recv_data.bytes(rank) ||
        (reports_aliases && send == recv && send_data.total() > 0))
      return pass_through();
    if (const int code = send_data.pack(comm); code != MPI_SUCCESS) return completed(code);
    isthmus_operation operation =
        data_movement_operation(ISTHMUS_ALLTOALLV, 0, send_data.data(), recv_data.data());
    send_data.set_counts(operation, true);
    recv_data.set_counts(operation, false);
    return unpack_result(execute(communicator, comm, mpi_function::mpi_alltoallv, operation, send_data.total()),
                         recv_data, comm);
  };
  return run_collective(mpi_function::mpi_alltoallv, comm, attempt, [&] {
    return Api::alltoallv(send, send_counts, send_displs, send_type, recv, recv_counts, recv_displs, recv_type,
                          comm);
  });
}

}  // namespace isthmus::mpi_shim
