// GEMM_ALLREDUCE on devices: one product, then the communicator's allreduce; or one kernel of a backend, which computes
// the products and their sum.

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {

class device_allreduce_plan : public device_plan {
 public:
  device_allreduce_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

 private:
  void enqueue_sequential(const isthmus_fused_arguments& arguments) override;
  void enqueue_pipelined(const isthmus_fused_arguments& arguments) override;
  isthmus_product make_product(const isthmus_fused_arguments& arguments) const;
  isthmus_operation make_operation(const isthmus_product& product,
                                   const isthmus_fused_arguments& arguments) const;
  // Returns the reason why no backend has a kernel for this plan, or an empty string.
  std::string find_obstacle() const;
};

device_allreduce_plan::device_allreduce_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : device_plan(std::move(owner), problem) {
  if (m_problem.description.ldc != m_problem.description.n)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: ldc = {} differs from n = {}", m_problem.description.ldc,
                                 m_problem.description.n),
                     "set ldc = n: the C of GEMM_ALLREDUCE is dense on devices");
  choose_allreduce_schedule(find_obstacle());
}

std::string device_allreduce_plan::find_obstacle() const {
  const auto& description = m_problem.description;
  if (description.m > ISTHMUS_PRODUCT_MAX_ROWS)
    return fmt::format("m = {} is larger than {}: a product and an allreduce are faster", description.m,
                       static_cast<int>(ISTHMUS_PRODUCT_MAX_ROWS));
  if (description.input == ISTHMUS_FLOAT32 || description.output != description.input)
    return "the kernel needs A, B and C of type float16 or bfloat16";
  if (description.b_layout != ISTHMUS_COLUMN_MAJOR) return "the kernel needs a column-major B";
  const isthmus_product product = make_product({});
  const auto explanation = m_owner->explain(make_operation(product, {}));
  if (!explanation["backend"].is_null()) return {};
  return "no backend has a kernel for it: " + explanation["reason"].get<std::string>();
}

isthmus_product device_allreduce_plan::make_product(const isthmus_fused_arguments& arguments) const {
  const auto& description = m_problem.description;
  return {.rows = description.m,
          .columns = description.n,
          .inner = description.k,
          .a = arguments.a,
          .b = arguments.b,
          .lda = description.lda,
          .ldb = description.ldb,
          .bias = m_problem.rank == 0 ? arguments.bias : nullptr,
          .alpha = static_cast<float>(arguments.alpha)};
}

isthmus_operation device_allreduce_plan::make_operation(const isthmus_product& product,
                                                        const isthmus_fused_arguments& arguments) const {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = m_problem.description.output;
  operation.op = ISTHMUS_SUM;
  operation.count = product.rows * product.columns;
  operation.send_buf = operation.recv_buf = arguments.c;
  operation.stream = arguments.stream;
  operation.product = &product;
  return operation;
}

void device_allreduce_plan::enqueue_pipelined(const isthmus_fused_arguments& arguments) {
  if (arguments.view != ISTHMUS_FUSED_WHOLE) return enqueue_sequential(arguments);
  const isthmus_product product = make_product(arguments);
  m_owner->enqueue(make_operation(product, arguments));
}

void device_allreduce_plan::enqueue_sequential(const isthmus_fused_arguments& arguments) {
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY)
    m_product.enqueue(arguments.a, m_problem.description.lda, m_problem.description.m, arguments.b, arguments.c,
                      arguments.c,
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
