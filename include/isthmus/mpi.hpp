// Runs Isthmus on the program's own MPI. Header-only, C++17. This file includes <mpi.h> and passes a
// table of functions that are compiled against it to the core, so one libisthmus works with MPICH, Open
// MPI and Intel MPI.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
//   isthmus_communicator communicator = isthmus::mpi::create(MPI_COMM_WORLD);
//   isthmus_allreduce(send, recv, count, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicator, nullptr);
//   isthmus_communicator_destroy(communicator);  // before MPI_Finalize
//   MPI_Finalize();
//
// Thread safety: MPI's thread level applies. Below MPI_THREAD_SERIALIZED, only the main thread may use
//   communicators that were created here. Below MPI_THREAD_MULTIPLE, only one thread may be inside MPI at a
//   time. Isthmus reports violations as ISTHMUS_ERROR_INVALID_USAGE.
//
// Counts: with MPI 4, Isthmus uses the functions with 64-bit counts. With an older MPI (Open MPI 5 is MPI 3.1),
//   it splits counts above INT_MAX or describes them with a derived type. There, counts or displacements above
//   INT_MAX in allgatherv, gatherv, scatterv and alltoallv fail with MPI_ERR_COUNT; they are never truncated.
//
// Arithmetic: float16, bfloat16 and float8 are combined in float32 and rounded at every step of MPI's
//   reduction. A float8 sum that leaves the range at some step stays saturated. MPI itself reduces the other
//   types, except if it guarantees less than Isthmus: min and max of floating types (NaN), and sums and
//   products of 8- and 16-bit integers (overflow).
#ifndef ISTHMUS_MPI_HPP
#define ISTHMUS_MPI_HPP

#include <isthmus/mpi_table.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <isthmus/mpi/collectives.hpp>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#if __cplusplus >= 202002L
#include <isthmus/error.hpp>
#else
#include <stdexcept>
#endif

namespace isthmus::mpi {

namespace detail {

// C++20 programs get isthmus::exception, which needs std::source_location.
#if __cplusplus >= 202002L
[[noreturn]] inline void raise(isthmus_status status, const std::string& message, const std::string& hint) {
  throw isthmus::detail::make_exception({status, message, hint});
}
inline void throw_if_failed(isthmus_status status) { isthmus::detail::check(status); }
#else
[[noreturn]] inline void raise(isthmus_status, const std::string& message, const std::string& hint) {
  throw std::runtime_error("isthmus: " + message + "; hint: " + hint);
}
inline void throw_if_failed(isthmus_status status) {
  if (status == ISTHMUS_SUCCESS) return;
  isthmus_error_info info;
  isthmus_last_error(&info);
  raise(status, info.message, info.hint);
}
#endif

/// Converts exceptions to MPI_ERR_NO_MEM or MPI_ERR_INTERN, because exceptions must not pass through the C
/// function pointers of the table.
template <typename Function>
int guard_exceptions(Function&& function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return MPI_ERR_NO_MEM;
  } catch (...) {
    return MPI_ERR_INTERN;
  }
}

/// Copies MPI's text for `code`, truncated to `capacity` bytes including NUL.
inline int error_string(int code, char* text, std::size_t capacity) {
  char full_text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  const int status = MPI_Error_string(code, full_text, &length);
  if (capacity == 0) return status;
  const std::size_t copied_bytes = std::min(capacity - 1, static_cast<std::size_t>(length));
  std::memcpy(text, full_text, copied_bytes);
  text[copied_bytes] = '\0';
  return status;
}

// Configures a new communicator to return errors instead of terminating the program.
inline int configure_comm(int code, MPI_Comm comm, isthmus_mpi_comm* handle) {
  *handle = nullptr;
  if (code != MPI_SUCCESS || comm == MPI_COMM_NULL) return code;
  *handle = to_handle(comm);
  return MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

/// For the table: duplicates the communicator, which separates the messages of Isthmus from those
/// of the program.
inline int comm_dup(isthmus_mpi_comm comm, isthmus_mpi_comm* duplicate) {
  MPI_Comm new_comm = MPI_COMM_NULL;
  const int code = MPI_Comm_dup(to_comm(comm), &new_comm);
  return configure_comm(code, new_comm, duplicate);
}

/// For the table: splits the communicator. A negative color is passed as MPI_UNDEFINED; the rank then gets
/// NULL, not an error.
inline int comm_split(isthmus_mpi_comm comm, int color, int key, isthmus_mpi_comm* subcommunicator) {
  MPI_Comm new_comm = MPI_COMM_NULL;
  const int code = MPI_Comm_split(to_comm(comm), color < 0 ? MPI_UNDEFINED : color, key, &new_comm);
  return configure_comm(code, new_comm, subcommunicator);
}

/// For the table: adds the ULFM functions if MPI announces them. MPICH 5 has them, but calling them
/// terminates the program.
#if defined(OMPI_HAVE_MPI_EXT_FTMPI) && OMPI_HAVE_MPI_EXT_FTMPI
inline void add_ulfm(isthmus_mpi_table& table) {
  table.comm_shrink = [](isthmus_mpi_comm comm, isthmus_mpi_comm* survivors) {
    MPI_Comm new_comm = MPI_COMM_NULL;
    const int code = MPIX_Comm_shrink(to_comm(comm), &new_comm);
    return configure_comm(code, new_comm, survivors);
  };
  table.comm_revoke = [](isthmus_mpi_comm comm) { return MPIX_Comm_revoke(to_comm(comm)); };
}
#else
inline void add_ulfm(isthmus_mpi_table&) {}
#endif

// For the table: frees a communicator. After MPI_Finalize, MPI has already freed all of them.
inline int comm_free(isthmus_mpi_comm comm) {
  int finalized = 0;
  if (const int code = MPI_Finalized(&finalized); code != MPI_SUCCESS || finalized) return code;
  MPI_Comm native = to_comm(comm);
  return MPI_Comm_free(&native);
}

// Exits the process with `code` after `seconds`, unless `has_ended` is true by then.
inline void exit_after(double seconds, int code, const std::atomic<bool>& has_ended) noexcept {
  try {
    std::thread([seconds, code, &has_ended] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      if (!has_ended) std::_Exit(code);
    }).detach();
  } catch (const std::exception&) {  // no thread: there is no time limit
  }
}

// For the table: aborts the job, once per process. Several watchdogs may call it concurrently. If two threads
// call MPI_Abort, the process can crash and leave the job hanging.
//
// If a host does not answer, MPICH can block in MPI_Abort of any communicator except MPI_COMM_WORLD. The process exits
// if MPI_Abort does not end it.
inline int comm_abort(isthmus_mpi_comm comm, int code) {
  static std::atomic<bool> is_aborting = false, has_returned = false;
  if (is_aborting.exchange(true)) return MPI_SUCCESS;
  exit_after(2, code, has_returned);
  int has_world = 0;  // false in programs that use only MPI sessions
  MPI_Initialized(&has_world);
  const int result = MPI_Abort(has_world ? MPI_COMM_WORLD : to_comm(comm), code);
  has_returned = true;
  return result;
}

// A send or receive that has been started. It has several requests if its count had to be split.
struct pending_message {
  bool is_receive;
  std::vector<MPI_Request> requests;
};

// Cancels the requests of a message. Receives can always be canceled. A send cannot, because the peer may
// already be reading it, so its request is freed.
inline int cancel_requests(pending_message& message) {
  int first_error = MPI_SUCCESS;
  const auto record_first_error = [&](int code) {
    if (first_error == MPI_SUCCESS) first_error = code;
  };
  for (MPI_Request& request : message.requests) {
    if (request == MPI_REQUEST_NULL) continue;
    if (message.is_receive) {
      record_first_error(MPI_Cancel(&request));
      record_first_error(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
      record_first_error(MPI_Request_free(&request));
    }
  }
  return first_error;
}

/// Starts a send or receive, with one request per chunk if the count had to be split.
inline int start_message(const mpi_call& call, pending_message& message) {
  const bool is_send = call.operation.collective == ISTHMUS_SEND;
  if (!is_send && call.operation.collective != ISTHMUS_RECV) return MPI_ERR_ARG;
  return for_each_chunk(call.operation.count, [&](std::uint64_t first, native::count count) {
    MPI_Request& request = message.requests.emplace_back(MPI_REQUEST_NULL);
    return is_send ? native::start_send(/*buf*/ call.send_pointer(first), count, call.type,
                                        /*dest*/ call.operation.root, payload_tag, call.comm, &request)
                   : native::start_recv(/*buf*/ call.recv_pointer(first), count, call.type,
                                        /*source*/ call.operation.root, payload_tag, call.comm, &request);
  });
}

/// For the table: starts a send or receive and returns immediately. On failure, all of its requests are
/// canceled, except sends, which the peer may already be reading.
inline int start(isthmus_mpi_comm comm, const isthmus_operation* operation, void** request) {
  *request = nullptr;
  return guard_exceptions([&] {
    auto message = std::make_unique<pending_message>();
    message->is_receive = operation->collective == ISTHMUS_RECV;
    const mpi_call call{*operation, to_comm(comm), native_types::get().datatype(operation->datatype),
                        bytes_of(operation->datatype), /*rank*/ -1};
    const int code = start_message(call, *message);
    if (code == MPI_SUCCESS)
      *request = message.release();
    else
      cancel_requests(*message);
    return code;
  });
}

/// For the table: cancels a message that start() started, and frees the request.
inline int cancel(void** request) {
  const std::unique_ptr<pending_message> message(static_cast<pending_message*>(*request));
  *request = nullptr;
  return cancel_requests(*message);
}

/// For the table: tests whether a message is complete. If it is, or on failure, frees the request and sets
/// it to NULL.
inline int test(void** request, int* done) {
  auto* message = static_cast<pending_message*>(*request);
  const int code = MPI_Testall(static_cast<int>(message->requests.size()), message->requests.data(), done,
                               MPI_STATUSES_IGNORE);
  if (code != MPI_SUCCESS || *done) {
    delete message;
    *request = nullptr;
  }
  return code;
}

/// Returns the first line of MPI's version text, for info and logs.
inline const char* library() {
  static const std::string first_line = [] {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string full_text(text, static_cast<std::size_t>(length));
    return full_text.substr(0, full_text.find_first_of("\n\r"));
  }();
  return first_line.c_str();
}

inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  error_string(code, text, sizeof text);
  return text;
}

/// Converts an MPI thread level to its number in the table: 0 single, 1 funneled, 2 serialized, 3 multiple. The
/// constants differ between MPI implementations.
inline int thread_level_number(int native_level) {
  if (native_level == MPI_THREAD_MULTIPLE) return 3;
  if (native_level == MPI_THREAD_SERIALIZED) return 2;
  return native_level == MPI_THREAD_FUNNELED ? 1 : 0;
}

// Throws INVALID_ARGUMENT unless `comm` is an intracommunicator.
inline void check_communicator(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL)
    raise(ISTHMUS_ERROR_INVALID_ARGUMENT, "comm = MPI_COMM_NULL must be a communicator",
          "pass a communicator that contains this rank");
  int is_inter = 0;
  MPI_Comm_test_inter(comm, &is_inter);
  if (is_inter)
    raise(ISTHMUS_ERROR_INVALID_ARGUMENT, "comm is an intercommunicator, must be an intracommunicator",
          "merge its groups with MPI_Intercomm_merge, or pass the communicator of one group");
}

}  // namespace detail

/// Creates the table of MPI functions for the core, compiled against this program's mpi.h. For programs that
/// call isthmus_communicator_create_mpi() and manage the lifetime of the table; other programs call create().
/// Thread safety: as MPI.
/// @param comm Not owned; used only to create duplicates.
/// @return The table, by value. It must outlive every communicator that is created with it.
/// @throws isthmus::exception (before C++20: std::runtime_error) ISTHMUS_ERROR_INVALID_USAGE if MPI is
///   not running, _INVALID_ARGUMENT for MPI_COMM_NULL and for intercommunicators, _BACKEND if MPI cannot
///   create Isthmus' datatypes and operations.
inline isthmus_mpi_table table(MPI_Comm comm) {
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized)
    detail::raise(ISTHMUS_ERROR_INVALID_USAGE, "MPI is not initialized", "call MPI_Init_thread first");
  if (finalized)
    detail::raise(ISTHMUS_ERROR_INVALID_USAGE, "MPI has been finalized",
                  "create communicators before MPI_Finalize");
  detail::check_communicator(comm);
  if (const int code = detail::native_types::get().error(); code != MPI_SUCCESS)
    detail::raise(ISTHMUS_ERROR_BACKEND,
                  "MPI cannot create Isthmus' datatypes and operations: " + detail::error_text(code),
                  "read the text of the MPI library for the reason");
  MPI_Query_thread(&level);

  isthmus_mpi_table result{};
  result.struct_bytes = sizeof result;
  result.magic = ISTHMUS_MPI_TABLE_MAGIC;
  result.comm = detail::to_handle(comm);
  result.library = detail::library();
  result.thread_level = detail::thread_level_number(level);
  result.has_large_counts = detail::native::large_counts;
  result.is_main_thread = [](int* flag) { return MPI_Is_thread_main(flag); };
  result.error_string = detail::error_string;
  result.comm_rank = [](isthmus_mpi_comm c, int* rank) { return MPI_Comm_rank(detail::to_comm(c), rank); };
  result.comm_size = [](isthmus_mpi_comm c, int* size) { return MPI_Comm_size(detail::to_comm(c), size); };
  result.comm_dup = detail::comm_dup;
  result.comm_split = detail::comm_split;
  result.comm_free = detail::comm_free;
  result.comm_abort = detail::comm_abort;
  result.collective = [](isthmus_mpi_comm c, const isthmus_operation* operation) {
    return detail::guard_exceptions([&] { return detail::run_operation(detail::to_comm(c), *operation); });
  };
  result.start = detail::start;
  result.test = detail::test;
  result.cancel = detail::cancel;
  result.device_platforms = detail::device_platforms();
  result.has_native_reduction = [](isthmus_datatype datatype, isthmus_reduction_op op) {
    return detail::builtin_op(datatype, op) != MPI_OP_NULL ? 1 : 0;
  };
  detail::add_ulfm(result);
  return result;
}

/// Returns a table() that lives until the process ends, because communicators use their table as long
/// as they exist.
/// Thread safety: any thread that may call MPI.
/// @param comm Not owned.
/// @return A table that is never freed; the same one for equal MPI_Comm handles.
/// @throws isthmus::exception As table().
inline const isthmus_mpi_table* persistent_table(MPI_Comm comm) {
  static std::mutex mutex;
  static auto& tables = *new std::list<isthmus_mpi_table>;  // never destroyed: used until the process ends
  const isthmus_mpi_table new_table = table(comm);
  const std::lock_guard<std::mutex> lock(mutex);
  for (const isthmus_mpi_table& known_table : tables)
    if (known_table.comm == new_table.comm) return &known_table;
  return &tables.emplace_back(new_table);
}

/// Creates a communicator of the ranks of `comm`, which is duplicated. Collective. Blocks until all ranks have
/// called it. Destroy the result with isthmus_communicator_destroy before MPI_Finalize.
/// @code
/// isthmus_communicator_options options{};
/// options.struct_bytes = sizeof options;
/// options.timeout_s = 30;
/// isthmus_communicator communicator = nullptr;
/// if (isthmus::mpi::create(MPI_COMM_WORLD, &options, &communicator) != ISTHMUS_SUCCESS) report_last_error();
/// @endcode
/// @param comm An intracommunicator that contains this rank.
/// @param options Device, configuration, timeout; null for the host platform and defaults.
/// @param communicator Receives the handle; NULL on failure.
/// @return The status of isthmus_communicator_create_mpi; isthmus_last_error() has the details.
/// @throws isthmus::exception As table().
inline isthmus_status create(MPI_Comm comm, const isthmus_communicator_options* options,
                             isthmus_communicator* communicator) {
  return isthmus_communicator_create_mpi(persistent_table(comm), options, communicator);
}

/// Creates a communicator and throws on failure.
/// @param comm An intracommunicator that contains this rank.
/// @param options Device, configuration, timeout; may be null.
/// @return The handle, for isthmus_communicator_destroy.
/// @throws isthmus::exception As table(), and every failure of the core.
inline isthmus_communicator create(MPI_Comm comm, const isthmus_communicator_options* options = nullptr) {
  isthmus_communicator communicator = nullptr;
  detail::throw_if_failed(create(comm, options, &communicator));
  return communicator;
}

}  // namespace isthmus::mpi

#endif
