// ALLGATHER_GEMM on devices. Copy engines pull the peers' rows in chunks from the symmetric heap, while the
// rank multiplies its own rows.
#pragma once

#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {

class device_gather_plan : public device_plan {
 public:
  device_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem, device_driver& driver,
                     const blaslt& library);

 private:
  void enqueue_collective(const void* send, void* recv, native_stream stream) override;
  void enqueue_sequential(const isthmus_fused_arguments& arguments) override;
  void enqueue_pipelined(const isthmus_fused_arguments& arguments) override;
  void publish(const isthmus_fused_arguments& arguments);
  void pull(const isthmus_fused_arguments& arguments);
  void pull_group(std::size_t index, const std::byte* base);
  void compute(const isthmus_fused_arguments& arguments);
  void multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                const isthmus_fused_arguments& arguments);
  std::byte* gathered(const isthmus_fused_arguments& arguments);
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
  std::uint64_t stage_step_end(std::uint32_t step) const;

  std::byte* m_gathered = nullptr;
};

}  // namespace isthmus::fused
