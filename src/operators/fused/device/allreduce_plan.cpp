// GEMM_ALLREDUCE on devices: one product, then the communicator's allreduce.

#include "base/error.hpp"
#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {

class device_allreduce_plan : public device_plan {
 public:
  device_allreduce_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

 private:
  void enqueue_sequential(const isthmus_fused_arguments& arguments) override;
};

device_allreduce_plan::device_allreduce_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : device_plan(std::move(owner), problem) {
  if (m_problem.description.ldc != m_problem.description.n)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: ldc = {} differs from n = {}", m_problem.description.ldc,
                                 m_problem.description.n),
                     "set ldc = n: the C of GEMM_ALLREDUCE is dense on devices");
  choose_allreduce_schedule("no kernel computes the product and the sum");
}

void device_allreduce_plan::enqueue_sequential(const isthmus_fused_arguments& arguments) {
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY)
    m_product.enqueue(arguments.a, m_problem.description.lda, m_problem.description.m, arguments.b, arguments.c,
                      {static_cast<float>(arguments.alpha), 0, m_problem.rank == 0 ? arguments.bias : nullptr},
                      arguments.stream);
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_problem.size > 1)
    enqueue_collective(arguments.c, arguments.c, arguments.stream);
}

std::unique_ptr<plan> make_device_allreduce_plan(std::shared_ptr<communicator> owner,
                                                 const fused_problem& problem) {
  return std::make_unique<device_allreduce_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
