// One collective at one size, through every path, with the memory that each path works on.
#pragma once

#include <isthmus/sycl/mpi.hpp>
#include <memory>
#include <vector>

#include "calls.hpp"
#include "kernels.hpp"
#include "shape.hpp"

namespace sycl_collectives {

enum class call_path { isthmus_usm, isthmus_buffer, isthmus_host, listing1, mpi_host };
inline constexpr call_path all_paths[] = {call_path::isthmus_usm, call_path::isthmus_buffer, call_path::isthmus_host,
                                     call_path::listing1, call_path::mpi_host};
inline bool is_isthmus(call_path path) { return path != call_path::listing1 && path != call_path::mpi_host; }

// Memory that is allocated once for the whole job, as large as its largest cell.
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
  test_cell(const call_shape& shape, arena& memory, const job_kernels& kernels, const isthmus::communicator& ranks,
       MPI_Comm comm);

  const call_shape& shape() const { return m_shape; }

  // Fresh random inputs for `call` and a poisoned output, on the side where the path computes: kernels for the
  // SYCL paths, so that their data lies on the device. Paths share buffers, but not all of them, so without the
  // poison the output of one would be warmer than that of another.
  void prepare(call_path path, std::uint32_t call);
  // The operation; complete when it returns.
  void run(call_path path);
  // Lets the consumer work on the result and compares with the oracle. Returns the wrong elements.
  std::uint64_t verify(call_path path, std::uint32_t call);

 private:
  template <typename Data>
  void prepare_on_device(Data& send, Data& recv, std::uint32_t call);
  void prepare_on_host(std::uint32_t call);
  // What the consumer makes of the result.
  std::vector<float> consume(call_path path);

  call_shape m_shape;
  arena& m_memory;
  const job_kernels& m_kernels;
  const isthmus::communicator& m_ranks;
  MPI_Comm m_comm;
  float_buffer m_send_buffer, m_recv_buffer;
};

}  // namespace sycl_collectives
