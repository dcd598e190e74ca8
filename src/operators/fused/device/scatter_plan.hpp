// GEMM_REDUCE_SCATTER on devices: the sum of each rank's rows goes round the ring, from the rank behind it to
// the rank itself. Every rank adds its product to the sums that copy engines have pulled from the rank before
// it, chunk by chunk, while the chunk before is multiplied.
#pragma single_us

#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {

class device_scatter_plan : public device_plan {
 public:
  device_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem, device_driver& driver,
                      const blaslt& library);

 private:
  void enqueue_collective(const void* send, void* recv, native_stream stream) override;
  void enqueue_sequential(const isthmus_fused_arguments& arguments) override;
  void enqueue_pipelined(const isthmus_fused_arguments& arguments) override;
  void enqueue_products(const isthmus_fused_arguments& arguments);
  void pull_step(int step, const isthmus_fused_arguments& arguments);
  void compute_step(int step, const isthmus_fused_arguments& arguments);
  void publish_chunks(std::uint32_t chunks);
  void publish_group(std::size_t group);
  void multiply(std::uint64_t first_row, std::uint64_t rows, std::byte* c, float beta, const void* bias,
                const isthmus_fused_arguments& arguments);
  std::size_t first_group(int step) const { return static_cast<std::size_t>(step) * m_schedule.chunks; }
  // Where this rank's sums of a step are: on its stage, which the next rank reads, or at last in C.
  std::byte* sums(int step, const isthmus_fused_arguments& arguments) const;
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
  // Chunks that a rank has told of when the first of this run is ready, less one.
  std::uint32_t chunks_before() const;
  int previous() const { return (m_problem.rank - 1 + m_problem.size) % m_problem.size; }
  int next() const { return (m_problem.rank + 1) % m_problem.size; }
};

}  // namespace isthmus::fused
