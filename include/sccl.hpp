// The spelling of the SuCL paper (listing 3) over isthmus::communicator, for programs written
// after it. New programs use isthmus/sycl.hpp, which has more (USM, groups, several ranks in a process).
//
// One rank for each process, as in the paper. Offsets and counts have the buffer's dimension and must name
// a region that is contiguous in row-major order; anything else is refused. Errors are isthmus::exception.
#ifndef SCCL_HPP
#define SCCL_HPP

#include <isthmus/sycl/mpi.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sccl {

/// How elements are combined: Op::sum, prod, min, max, avg.
using Op = isthmus::reduction_op;

namespace detail {

// What scclInit found out, for the communicators that come.
struct runtime_state {
  std::string config;
  bool owns_mpi = false;
  int communicators = 0;
};

/// One for the process, as in the paper; from the thread that called scclInit.
inline runtime_state& get_runtime() {
  static runtime_state state;
  return state;
}

// Where a region of a buffer starts and how many elements it has.
struct region {
  std::size_t offset = 0;
  std::size_t count = 0;
};

/// Where a region lies in row-major order. Contiguous is: some inner dimensions whole, one in part, one element
/// of each outer one.
template <typename T, int Dimensions>
region flatten_region(const sycl::buffer<T, Dimensions>& buffer, const sycl::id<Dimensions>& offset,
              const sycl::range<Dimensions>& count) {
  const sycl::range<Dimensions> shape = buffer.get_range();
  region result{0, count.size()};
  bool is_whole = true;  // every dimension after this one is covered from end to end
  bool is_contiguous = true;
  for (int d = Dimensions - 1; d >= 0; --d) {
    if (offset[d] + count[d] > shape[d]) {
      throw isthmus::detail::make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                                             .message = "offset + count in dimension " + std::to_string(d) +
                                                        ": " + std::to_string(offset[d] + count[d]) +
                                                        "; the rule is at most " + std::to_string(shape[d]),
                                             .hint = "check offset and count against the buffer's range"});
    }
    is_contiguous = is_contiguous && (is_whole || count[d] == 1);
    is_whole = is_whole && count[d] == shape[d];
  }
  for (int d = 0; d < Dimensions; ++d) result.offset = result.offset * shape[d] + offset[d];
  if (is_contiguous) return result;
  throw isthmus::detail::make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                                         .message = "the region is not contiguous in row-major order",
                                         .hint = "communicate whole rows, or one region for each row"});
}

}  // namespace detail

/// Initialises MPI (MPI_THREAD_SERIALIZED) unless the program has, and recognises the configuration file among
/// the arguments: `--sccl-config FILE`, `--sccl-config=FILE`, or any argument that ends in ".toml". Call it
/// once, first, from the main thread.
/// @param argc As main has it; stays as it is.
/// @param argv As main has it; arguments stay where they are.
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

/// The device of this process: submits kernels and takes part in communication, on one out-of-order queue.
/// Calls of one Device must not overlap.
///
/// Operations take regions of a buffer: `offset` and `count` have the buffer's dimension. A region must be
/// contiguous in row-major order, that is whole rows or a part of one. They come after the events that are
/// passed and after earlier accesses to their buffers; later accesses see their results. All of them throw
/// isthmus::exception: ISTHMUS_ERROR_INVALID_ARGUMENT for a region that leaves the buffer or is not contiguous,
/// with nothing written; else as isthmus::communicator.
class Device {
 public:
  /// Collective over `comm`; Communicator::newCommunicator does it for programs.
  /// @param comm Its ranks, one for each process.
  /// @param device This process's device.
  /// @param config A TOML file; "" takes ISTHMUS_CONFIG, then ./isthmus.toml.
  Device(MPI_Comm comm, const sycl::device& device, const std::string& config)
      : m_ranks(isthmus::make_communicator(comm, device, {.config = config})), m_queue(device) {}

  /// This process's rank.
  int rank() const { return m_ranks.rank(); }
  /// The number of ranks.
  int size() const { return m_ranks.size(); }
  /// The queue to submit kernels to. Accessors and events order them with the communication.
  sycl::queue& getNativeQueue() { return m_queue; }
  /// What is underneath: USM, more collectives, explain().
  const isthmus::communicator& communicator() const { return m_ranks; }
  /// Waits for everything that was submitted to this device; asynchronous errors go to SYCL's handler.
  void wait() { m_queue.wait_and_throw(); }

  /// The region of `buffer` of root goes into the same region of all other ranks.
  /// @param buffer Read on root, written elsewhere.
  /// @param offset Where the region begins, in elements of each dimension.
  /// @param count Its extent, in elements of each dimension; equal on all ranks.
  /// @param root The rank that sends.
  /// @param events What the operation waits for besides.
  /// @return The event after which the result is there.
  template <typename T, int D>
  sycl::event broadcast(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count,
                        int root, const std::vector<sycl::event>& events = {}) {
    const detail::region flat = detail::flatten_region(buffer, offset, count);
    return m_ranks.broadcast(m_queue, isthmus::at_offset(buffer, flat.offset), flat.count, root, events);
  }

  /// `count` elements from `send_offset` of every rank, combined into those from `recv_offset` of root.
  /// @param send Read on every rank.
  /// @param send_offset Where its region begins.
  /// @param recv Written on root only; may be `send` with the same offset there.
  /// @param recv_offset Where its region begins.
  /// @param count Extent of both regions.
  /// @param op How elements are combined.
  /// @param root The rank that receives.
  /// @param events What the operation waits for besides.
  /// @return The event after which the result is there.
  template <typename T, int D>
  sycl::event reduce(sycl::buffer<T, D>& send, const sycl::id<D>& send_offset, sycl::buffer<T, D>& recv,
                     const sycl::id<D>& recv_offset, const sycl::range<D>& count, Op op, int root,
                     const std::vector<sycl::event>& events = {}) {
    const detail::region source = detail::flatten_region(send, send_offset, count);
    const detail::region destination = detail::flatten_region(recv, recv_offset, count);
    return m_ranks.reduce(m_queue, isthmus::at_offset(send, source.offset), isthmus::at_offset(recv, destination.offset), source.count, op,
                          root, events);
  }

  /// As reduce(), with the result on every rank, bit-identical.
  /// @param send Read on every rank.
  /// @param send_offset Where its region begins.
  /// @param recv Written on every rank; may be `send` with the same offset.
  /// @param recv_offset Where its region begins.
  /// @param count Extent of both regions.
  /// @param op How elements are combined.
  /// @param events What the operation waits for besides.
  /// @return The event after which the result is there.
  template <typename T, int D>
  sycl::event allreduce(sycl::buffer<T, D>& send, const sycl::id<D>& send_offset, sycl::buffer<T, D>& recv,
                        const sycl::id<D>& recv_offset, const sycl::range<D>& count, Op op,
                        const std::vector<sycl::event>& events = {}) {
    const detail::region source = detail::flatten_region(send, send_offset, count);
    const detail::region destination = detail::flatten_region(recv, recv_offset, count);
    return m_ranks.allreduce(m_queue, isthmus::at_offset(send, source.offset), isthmus::at_offset(recv, destination.offset), source.count,
                             op, events);
  }

  /// Point to point; the peer calls recv() with as many elements. May block until it does.
  /// @param buffer Read.
  /// @param offset Where the region begins, in elements of each dimension.
  /// @param count Its extent, in elements of each dimension; equal on both ranks.
  /// @param peer The rank that receives.
  /// @param events What the operation waits for besides.
  /// @return The event after which the result is there.
  template <typename T, int D>
  sycl::event send(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count, int peer,
                   const std::vector<sycl::event>& events = {}) {
    const detail::region flat = detail::flatten_region(buffer, offset, count);
    return m_ranks.send(m_queue, isthmus::at_offset(buffer, flat.offset), flat.count, peer, events);
  }

  /// The other side of send().
  /// @param buffer Written.
  /// @param offset Where the region begins, in elements of each dimension.
  /// @param count Its extent, in elements of each dimension; equal on both ranks.
  /// @param peer The rank that sends.
  /// @param events What the operation waits for besides.
  /// @return The event after which the result is there.
  template <typename T, int D>
  sycl::event recv(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count, int peer,
                   const std::vector<sycl::event>& events = {}) {
    const detail::region flat = detail::flatten_region(buffer, offset, count);
    return m_ranks.recv(m_queue, isthmus::at_offset(buffer, flat.offset), flat.count, peer, events);
  }

  /// No rank goes on before every rank has come.
  /// @param events What this rank waits for before it enters.
  /// @return The event after which all ranks have entered.
  sycl::event barrier(const std::vector<sycl::event>& events = {}) { return m_ranks.barrier(m_queue, events); }

 private:
  isthmus::communicator m_ranks;
  sycl::queue m_queue;
};

/// A group of processes with one device each, made and released by the two static functions.
/// @code
/// sccl::scclInit(argc, argv);
/// auto* communicator = sccl::Communicator::newCommunicator(MPI_COMM_WORLD, device);
/// communicator->getLocalDevice()->broadcast(buffer, sycl::id<1>(0), sycl::range<1>(1000), 0);
/// sccl::Communicator::destroyCommunicator(communicator);  // the last one finalises MPI, too
/// @endcode
class Communicator {
 public:
  /// Collective over `comm`.
  /// @param comm Its processes are the ranks.
  /// @param device This process's device.
  /// @return Belongs to the caller until destroyCommunicator.
  /// @throws isthmus::exception As isthmus::make_communicator.
  static Communicator* newCommunicator(MPI_Comm comm, const sycl::device& device) {
    auto* communicator = new Communicator(comm, device);
    ++detail::get_runtime().communicators;
    return communicator;
  }

  /// Releases the communicator; the last one also finalises MPI where scclInit had initialised it.
  /// @param communicator From newCommunicator; null is allowed.
  static void destroyCommunicator(Communicator* communicator) {
    if (communicator == nullptr) return;
    delete communicator;
    detail::runtime_state& runtime = detail::get_runtime();
    if (--runtime.communicators > 0 || !runtime.owns_mpi) return;
    runtime.owns_mpi = false;
    MPI_Finalize();
  }

  /// The device of this process; the communicator's, so do not delete it.
  Device* getLocalDevice() { return &m_device; }
  /// This process's rank.
  int getRank() const { return m_device.rank(); }
  /// The number of ranks.
  int getSize() const { return m_device.size(); }

 private:
  Communicator(MPI_Comm comm, const sycl::device& device)
      : m_device(comm, device, detail::get_runtime().config) {}
  ~Communicator() = default;

  Device m_device;
};

}  // namespace sccl

#endif
