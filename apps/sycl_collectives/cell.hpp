// One collective at one size through every path, with the memory of each path.
#pragma once

#include <isthmus/sycl/mpi.hpp>
#include <memory>
#include <vector>

#include "calls.hpp"
#include "kernels.hpp"
#include "shape.hpp"

namespace sycl_collectives {

// isthmus_host_usm: the C API on the USM arrays of isthmus_usm, after the same kernels. Only the call differs.
enum class call_path { isthmus_usm, isthmus_host_usm, isthmus_buffer, isthmus_host, listing1, mpi_host };
inline constexpr call_path all_paths[] = {call_path::isthmus_usm,    call_path::isthmus_host_usm,
                                          call_path::isthmus_buffer, call_path::isthmus_host,
                                          call_path::listing1,       call_path::mpi_host};
inline bool is_isthmus(call_path path) { return path != call_path::listing1 && path != call_path::mpi_host; }

// Memory that is allocated once for the whole run, as large as its largest cell.
struct arena {
  arena(const sycl::queue& queue, std::uint64_t send_elements, std::uint64_t recv_elements);
  ~arena();
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  sycl::queue queue;
  float* usm_send;
  float* usm_recv;
  std::unique_ptr<float[]> host_send, host_recv;
};

class test_cell {
 public:
  test_cell(const call_shape& shape, arena& memory, const job_kernels& kernels,
            const isthmus::communicator& ranks, MPI_Comm comm);

  const call_shape& shape() const { return m_shape; }

  // Writes new random inputs for `call` and a poisoned output where the path computes: kernels for the SYCL
  // paths, so that their data is on the device. Some paths share buffers, so without poisoning the output of
  // one path would be warmer in the caches than that of another.
  void prepare(call_path path, std::uint32_t call);
  // Runs the operation; complete on return.
  void run(call_path path);
  // Runs the consumer on the result and compares it with the oracle. Returns the number of wrong elements.
  std::uint64_t verify(call_path path, std::uint32_t call);

 private:
  template <typename Data>
  void prepare_on_device(Data& send, Data& recv, std::uint32_t call);
  void prepare_on_host(std::uint32_t call);
  // The result after the consumer.
  std::vector<float> consume(call_path path);

  call_shape m_shape;
  arena& m_memory;
  const job_kernels& m_kernels;
  const isthmus::communicator& m_ranks;
  MPI_Comm m_comm;
  float_buffer m_send_buffer, m_recv_buffer;
};

}  // namespace sycl_collectives
