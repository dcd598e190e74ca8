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

using Op = isthmus::reduction_op;

namespace detail {

// What scclInit found out, for the communicators that come.
struct runtime {
  std::string config;
  bool owns_mpi = false;
  int communicators = 0;
};

inline runtime& the_runtime() {
  static runtime state;
  return state;
}

// Where a region of a buffer starts and how many elements it has.
struct region {
  std::size_t offset = 0;
  std::size_t count = 0;
};

template <typename T, int Dimensions>
region linear(const sycl::buffer<T, Dimensions>& buffer, const sycl::id<Dimensions>& offset,
              const sycl::range<Dimensions>& count) {
  const sycl::range<Dimensions> shape = buffer.get_range();
  region result{0, count.size()};
  bool whole = true;  // every dimension after this one is covered from end to end
  bool contiguous = true;
  for (int d = Dimensions - 1; d >= 0; --d) {
    if (offset[d] + count[d] > shape[d]) {
      throw isthmus::detail::make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                                             .message = "offset + count in dimension " + std::to_string(d) +
                                                        ": " + std::to_string(offset[d] + count[d]) +
                                                        "; the rule is at most " + std::to_string(shape[d]),
                                             .hint = "check offset and count against the buffer's range"});
    }
    contiguous = contiguous && (whole || count[d] == 1);
    whole = whole && count[d] == shape[d];
  }
  for (int d = 0; d < Dimensions; ++d) result.offset = result.offset * shape[d] + offset[d];
  if (contiguous) return result;
  throw isthmus::detail::make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                                         .message = "the region is not contiguous in row-major order",
                                         .hint = "communicate whole rows, or one region for each row"});
}

}  // namespace detail

// Initialises MPI unless the program has, and recognises the configuration file among the arguments:
// `--sccl-config FILE`, `--sccl-config=FILE`, or any argument that ends in ".toml". Arguments stay as they are.
inline void scclInit(int& argc, char**& argv) {
  detail::runtime& runtime = detail::the_runtime();
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

// The device of this process: submits kernels and takes part in communication.
class Device {
 public:
  Device(MPI_Comm comm, const sycl::device& device, const std::string& config)
      : m_ranks(isthmus::make_communicator(comm, device, {.config = config})), m_queue(device) {}

  int rank() const { return m_ranks.rank(); }
  int size() const { return m_ranks.size(); }
  sycl::queue& getNativeQueue() { return m_queue; }
  const isthmus::communicator& communicator() const { return m_ranks; }
  // Waits for everything submitted to this device.
  void wait() { m_queue.wait_and_throw(); }

  template <typename T, int D>
  sycl::event broadcast(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count,
                        int root, const std::vector<sycl::event>& events = {}) {
    const detail::region part = detail::linear(buffer, offset, count);
    return m_ranks.broadcast(m_queue, isthmus::at(buffer, part.offset), part.count, root, events);
  }

  // `count` elements from `send_offset` of every rank, combined into those from `recv_offset` of root.
  template <typename T, int D>
  sycl::event reduce(sycl::buffer<T, D>& send, const sycl::id<D>& send_offset, sycl::buffer<T, D>& recv,
                     const sycl::id<D>& recv_offset, const sycl::range<D>& count, Op op, int root,
                     const std::vector<sycl::event>& events = {}) {
    const detail::region from = detail::linear(send, send_offset, count);
    const detail::region to = detail::linear(recv, recv_offset, count);
    return m_ranks.reduce(m_queue, isthmus::at(send, from.offset), isthmus::at(recv, to.offset), from.count, op,
                          root, events);
  }

  template <typename T, int D>
  sycl::event allreduce(sycl::buffer<T, D>& send, const sycl::id<D>& send_offset, sycl::buffer<T, D>& recv,
                        const sycl::id<D>& recv_offset, const sycl::range<D>& count, Op op,
                        const std::vector<sycl::event>& events = {}) {
    const detail::region from = detail::linear(send, send_offset, count);
    const detail::region to = detail::linear(recv, recv_offset, count);
    return m_ranks.allreduce(m_queue, isthmus::at(send, from.offset), isthmus::at(recv, to.offset), from.count,
                             op, events);
  }

  template <typename T, int D>
  sycl::event send(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count, int peer,
                   const std::vector<sycl::event>& events = {}) {
    const detail::region part = detail::linear(buffer, offset, count);
    return m_ranks.send(m_queue, isthmus::at(buffer, part.offset), part.count, peer, events);
  }

  template <typename T, int D>
  sycl::event recv(sycl::buffer<T, D>& buffer, const sycl::id<D>& offset, const sycl::range<D>& count, int peer,
                   const std::vector<sycl::event>& events = {}) {
    const detail::region part = detail::linear(buffer, offset, count);
    return m_ranks.recv(m_queue, isthmus::at(buffer, part.offset), part.count, peer, events);
  }

  sycl::event barrier(const std::vector<sycl::event>& events = {}) { return m_ranks.barrier(m_queue, events); }

 private:
  isthmus::communicator m_ranks;
  sycl::queue m_queue;
};

class Communicator {
 public:
  // Collective over `comm`. The result belongs to the caller until destroyCommunicator.
  static Communicator* newCommunicator(MPI_Comm comm, const sycl::device& device) {
    auto* made = new Communicator(comm, device);
    ++detail::the_runtime().communicators;
    return made;
  }

  // Releases the communicator; the last one also finalises MPI where scclInit had initialised it.
  static void destroyCommunicator(Communicator* communicator) {
    if (communicator == nullptr) return;
    delete communicator;
    detail::runtime& runtime = detail::the_runtime();
    if (--runtime.communicators > 0 || !runtime.owns_mpi) return;
    runtime.owns_mpi = false;
    MPI_Finalize();
  }

  Device* getLocalDevice() { return &m_device; }
  int getRank() const { return m_device.rank(); }
  int getSize() const { return m_device.size(); }

 private:
  Communicator(MPI_Comm comm, const sycl::device& device)
      : m_device(comm, device, detail::the_runtime().config) {}
  ~Communicator() = default;

  Device m_device;
};

}  // namespace sccl

#endif
