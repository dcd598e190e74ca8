// GEMM_REDUCE_SCATTER on devices. The partial sum of each rank's rows travels around the ring, from the next
// rank to the rank itself. Every rank adds its product to the partial sums that copy engines have pulled from
// the previous rank. A chunk is copied while the previous chunk is multiplied.
#pragma once

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
  // This rank's partial sums of a step: on its stage, which the next rank reads, or in C in the last step.
  std::byte* sums(int step, const isthmus_fused_arguments& arguments) const;
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
  // Number of chunks that a rank has published in earlier runs.
  std::uint32_t chunks_before() const;
  int previous() const { return (m_problem.rank - 1 + m_problem.size) % m_problem.size; }
  int next() const { return (m_problem.rank + 1) % m_problem.size; }
};

}  // namespace isthmus::fused
