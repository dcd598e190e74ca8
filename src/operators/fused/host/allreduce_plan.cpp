// GEMM_ALLREDUCE on the host: one product, then the communicator's allreduce.

#include <utility>

#include "operators/fused/host/plan.hpp"

namespace isthmus::fused {

class host_allreduce_plan : public host_plan {
 public:
  host_allreduce_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

 private:
  void run_sequential(const isthmus_fused_arguments& arguments) override;
  void sum(std::byte* products, const isthmus_fused_arguments& arguments);
  std::uint64_t c_stride() const { return m_problem.description.ldc * m_problem.output_bytes(); }
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
};

host_allreduce_plan::host_allreduce_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : host_plan(std::move(owner), problem) {
  choose_allreduce_schedule("the host has no kernel for the product and the sum");
  if (m_problem.size > 1 && c_stride() != row_bytes()) m_workspace.resize(m_problem.moved_bytes());
}

void host_allreduce_plan::run_sequential(const isthmus_fused_arguments& arguments) {
  auto* const c = static_cast<std::byte*>(arguments.c);
  std::byte* const products = m_workspace.empty() ? c : m_workspace.data();
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) {
    const scoped_trace slice(m_timeline, trace_track::compute,
                             [&] { return fmt::format("rows 0..{}", m_problem.description.m); });
    m_product.set_b(arguments.b);
    m_product.run(arguments.a, m_problem.description.lda, m_problem.description.m,
                  {products, products == c ? m_problem.description.ldc : m_problem.description.n},
                  {static_cast<float>(arguments.alpha), 0, m_problem.rank == 0 ? arguments.bias : nullptr});
  }
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_problem.size > 1) sum(products, arguments);
}

void host_allreduce_plan::sum(std::byte* products, const isthmus_fused_arguments& arguments) {
  const scoped_trace slice(m_timeline, trace_track::copy,
                           [&] { return std::string(isthmus_collective_name(m_problem.collective())); });
  enqueue_collective(products, products, nullptr);
  if (products != arguments.c)
    copy_rows(products, row_bytes(), static_cast<std::byte*>(arguments.c), c_stride(), row_bytes(),
              m_problem.description.m);
}

std::unique_ptr<plan> make_host_allreduce_plan(std::shared_ptr<communicator> owner,
                                               const fused_problem& problem) {
  return std::make_unique<host_allreduce_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
