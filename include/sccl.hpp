// The interface of the SuCL paper (listing 3), implemented with isthmus::communicator, for programs that
// follow the paper. New programs should use isthmus/sycl.hpp, which has more features (USM, groups, several
// ranks per process).
//
// One rank per process, as in the paper. Offsets and counts have the buffer's dimension and must describe a
// region that is contiguous in row-major order; other regions are rejected. Errors are isthmus::exception.
#ifndef SCCL_HPP
#define SCCL_HPP

#include <isthmus/sycl/mpi.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sccl {

/// The reduction operation: Op::sum, prod, min, max, avg.
using Op = isthmus::reduction_op;

namespace detail {

// The process state that scclInit sets up for later communicators.
struct runtime_state {
  std::string config;
  bool owns_mpi = false;
  int communicators = 0;
};

/// Returns the process state. Call it only from the thread that called scclInit.
inline runtime_state& get_runtime() {
  static runtime_state state;
  return state;
}

// The start and the element count of a region of a buffer.
struct region {
  std::size_t offset = 0;
  std::size_t count = 0;
};

/// Returns the position of a region in row-major order. A region is contiguous if it covers some inner
/// dimensions completely, a range of the next dimension, and one element of each outer dimension.
template <typename T, int Dimensions>
region flatten_region(const sycl::buffer<T, Dimensions>& buffer, const sycl::id<Dimensions>& offset,
                      const sycl::range<Dimensions>& count) {
  const sycl::range<Dimensions> shape = buffer.get_range();
  region result{0, count.size()};
  bool is_whole = true;  // the region covers every later dimension completely
  bool is_contiguous = true;
  for (int d = Dimensions - 1; d >= 0; --d) {
    if (offset[d] + count[d] > shape[d]) {
      throw isthmus::detail::make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                                             .message = "offset + count in dimension " + std::to_string(d) +
                                                        " = " + std::to_string(offset[d] + count[d]) +
                                                        ", must be at most " + std::to_string(shape[d]),
                                             .hint = "check offset and count against the buffer's range"});
    }
    is_contiguous = is_contiguous && (is_whole || count[d] == 1);
    is_whole = is_whole && count[d] == shape[d];
  }
  for (int d = 0; d < Dimensions; ++d) result.offset = result.offset * shape[d] + offset[d];
  if (is_contiguous) return result;
  throw isthmus::detail::make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                                         .message = "the region must be contiguous in row-major order",
                                         .hint = "use whole rows, or one call per row"});
}

}  // namespace detail

/// Initializes MPI (MPI_THREAD_SERIALIZED) unless the program has done so, and finds the configuration file
/// among the arguments: `--sccl-config FILE`, `--sccl-config=FILE`, or any argument that ends in ".toml". Call
/// it once from the main thread, before any other function.
/// @param argc From main; not changed.
/// @param argv From main; not changed.
inline void scclInit(int& argc, char**& argv) {
  detail::runtime_state& runtime = detail::get_runtime();
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    constexpr std::string_view option = "--sccl-config";
    if (argument == option && i + 1 < argc) runtime.config = argv[i + 1];
    if (argument.starts_with(std::string(option) + "=")) runtime.config = argument.substr(option.size() + 1);
    if (!argument.starts_with("--") && argument.ends_with(".toml")) runtime.config = argument;
  }
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return;
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  runtime.owns_mpi = true;
}

/// The device of this process. Submits kernels and communicates on one out-of-order queue.
///
/// Operations take regions of a buffer: `offset` and `count` have the buffer's dimension. A region must be
/// contiguous in row-major order: whole rows or a part of one row.
///
/// Ordering: operations start after the given events and after earlier accesses to their buffers; later
///   accesses see their results.
/// Thread safety: calls on one Device must not overlap.
/// Errors: isthmus::exception. ISTHMUS_ERROR_INVALID_ARGUMENT, with nothing written, if a region is outside the
///   buffer or not contiguous. Otherwise as isthmus::communicator.
class Device {
 public:
  /// Collective over `comm`. Programs should call Communicator::newCommunicator instead.
  /// @param comm The ranks, one per process.
  /// @param device This process's device.
  /// @param config A TOML file; "": ISTHMUS_CONFIG, then ./isthmus.toml.
  Device(MPI_Comm comm, const sycl::device& device, const std::string& config)
      : m_ranks(isthmus::make_communicator(comm, device, {.config = config})), m_queue(device) {}

  /// Returns this process's rank.
  int rank() const { return m_ranks.rank(); }
  /// Returns the number of ranks.
  int size() const { return m_ranks.size(); }
  /// Returns the queue for kernels. Accessors and events order them with communication.
  sycl::queue& getNativeQueue() { return m_queue; }
  /// Returns the underlying communicator, for USM, more collectives and explain().
  const isthmus::communicator& communicator() const { return m_ranks; }
  /// Waits for all work that was submitted to this device. Asynchronous errors go to SYCL's handler.
  void wait() { m_queue.wait_and_throw(); }

  /// Copies a region of root's `buffer` to the same region on all other ranks.
  /// @param buffer Read on root, written elsewhere.
  /// @param offset Start of the region, in elements of each dimension.
  /// @param count Extent of the region, in elements of each dimension; equal on all ranks.
  /// @param root The sending rank.
  /// @param events Additional events that the operation waits for.
  /// @return The event that completes when the result is available.
  template <typename T, int D>
  sycl::event broadcast(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count,
                        int root, const std::vector<sycl::event>& events = {}) {
    const detail::region flat_region = detail::flatten_region(buffer, offset, count);
    return m_ranks.broadcast(m_queue, isthmus::at_offset(buffer, flat_region.offset), flat_region.count, root,
                             events);
  }

  /// Reduces the regions of all ranks to a region on root.
  /// @param send Read on every rank.
  /// @param send_offset Start of the region.
  /// @param recv Written on root only; on root, it may be `send` with the same offset.
  /// @param recv_offset Start of the region.
  /// @param count Extent of both regions.
  /// @param op The reduction operation.
  /// @param root The receiving rank.
  /// @param events Additional events that the operation waits for.
  /// @return The event that completes when the result is available.
  template <typename T, int D>
  sycl::event reduce(sycl::buffer<T, D>& send, const sycl::id<D>& send_offset, sycl::buffer<T, D>& recv,
                     const sycl::id<D>& recv_offset, const sycl::range<D>& count, Op op, int root,
                     const std::vector<sycl::event>& events = {}) {
    const detail::region source = detail::flatten_region(send, send_offset, count);
    const detail::region destination = detail::flatten_region(recv, recv_offset, count);
    return m_ranks.reduce(m_queue, isthmus::at_offset(send, source.offset),
                          isthmus::at_offset(recv, destination.offset), source.count, op, root, events);
  }

  /// Like reduce(), but all ranks receive the result, bit-identical.
  /// @param send Read on every rank.
  /// @param send_offset Start of the region.
  /// @param recv Written on every rank; may be `send` with the same offset.
  /// @param recv_offset Start of the region.
  /// @param count Extent of both regions.
  /// @param op The reduction operation.
  /// @param events Additional events that the operation waits for.
  /// @return The event that completes when the result is available.
  template <typename T, int D>
  sycl::event allreduce(sycl::buffer<T, D>& send, const sycl::id<D>& send_offset, sycl::buffer<T, D>& recv,
                        const sycl::id<D>& recv_offset, const sycl::range<D>& count, Op op,
                        const std::vector<sycl::event>& events = {}) {
    const detail::region source = detail::flatten_region(send, send_offset, count);
    const detail::region destination = detail::flatten_region(recv, recv_offset, count);
    return m_ranks.allreduce(m_queue, isthmus::at_offset(send, source.offset),
                             isthmus::at_offset(recv, destination.offset), source.count, op, events);
  }

  /// Sends a region. The peer must call recv() with the same number of elements. The call may block until then.
  /// @param buffer Read.
  /// @param offset Start of the region, in elements of each dimension.
  /// @param count Extent of the region, in elements of each dimension; equal on both ranks.
  /// @param peer The receiving rank.
  /// @param events Additional events that the operation waits for.
  /// @return The event that completes when the result is available.
  template <typename T, int D>
  sycl::event send(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count, int peer,
                   const std::vector<sycl::event>& events = {}) {
    const detail::region flat_region = detail::flatten_region(buffer, offset, count);
    return m_ranks.send(m_queue, isthmus::at_offset(buffer, flat_region.offset), flat_region.count, peer,
                        events);
  }

  /// Receives a region that `peer` sends with send().
  /// @param buffer Written.
  /// @param offset Start of the region, in elements of each dimension.
  /// @param count Extent of the region, in elements of each dimension; equal on both ranks.
  /// @param peer The sending rank.
  /// @param events Additional events that the operation waits for.
  /// @return The event that completes when the result is available.
  template <typename T, int D>
  sycl::event recv(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count, int peer,
                   const std::vector<sycl::event>& events = {}) {
    const detail::region flat_region = detail::flatten_region(buffer, offset, count);
    return m_ranks.recv(m_queue, isthmus::at_offset(buffer, flat_region.offset), flat_region.count, peer,
                        events);
  }

  /// Waits until every rank has entered.
  /// @param events Events that this rank waits for before it enters.
  /// @return The event that completes when all ranks have entered.
  sycl::event barrier(const std::vector<sycl::event>& events = {}) { return m_ranks.barrier(m_queue, events); }

 private:
  isthmus::communicator m_ranks;
  sycl::queue m_queue;
};

/// A group of processes with one device each. The two static functions create and destroy it.
/// @code
/// sccl::scclInit(argc, argv);
/// auto* communicator = sccl::Communicator::newCommunicator(MPI_COMM_WORLD, device);
/// communicator->getLocalDevice()->broadcast(buffer, sycl::id<1>(0), sycl::range<1>(1000), 0);
/// sccl::Communicator::destroyCommunicator(communicator);  // the last one also finalizes MPI
/// @endcode
class Communicator {
 public:
  /// Creates a communicator. Collective over `comm`.
  /// @param comm Its processes are the ranks.
  /// @param device This process's device.
  /// @return The communicator, owned by the caller until destroyCommunicator.
  /// @throws isthmus::exception As isthmus::make_communicator.
  static Communicator* newCommunicator(MPI_Comm comm, const sycl::device& device) {
    auto* communicator = new Communicator(comm, device);
    ++detail::get_runtime().communicators;
    return communicator;
  }

  /// Destroys the communicator. The last one also finalizes MPI if scclInit initialized it.
  /// @param communicator From newCommunicator; may be null.
  static void destroyCommunicator(Communicator* communicator) {
    if (communicator == nullptr) return;
    delete communicator;
    detail::runtime_state& runtime = detail::get_runtime();
    if (--runtime.communicators > 0 || !runtime.owns_mpi) return;
    runtime.owns_mpi = false;
    MPI_Finalize();
  }

  /// Returns the device of this process, owned by the communicator: do not delete it.
  Device* getLocalDevice() { return &m_device; }
  /// Returns this process's rank.
  int getRank() const { return m_device.rank(); }
  /// Returns the number of ranks.
  int getSize() const { return m_device.size(); }

 private:
  Communicator(MPI_Comm comm, const sycl::device& device)
      : m_device(comm, device, detail::get_runtime().config) {}
  ~Communicator() = default;

  Device m_device;
};

}  // namespace sccl

#endif
