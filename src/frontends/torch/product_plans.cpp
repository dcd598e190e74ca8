#include "product_plans.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "device_endpoint.hpp"

namespace isthmus::torch_backend {
namespace {

// A model has a few shapes in each direction. The limit bounds the memory of programs with many numbers of rows.
constexpr std::size_t max_plans = 32;

nlohmann::json info_of(isthmus_fused_plan plan) {
  std::size_t required_bytes = 0;
  check(isthmus_fused_plan_info(plan, nullptr, 0, &required_bytes));
  std::vector<char> text(required_bytes);
  check(isthmus_fused_plan_info(plan, text.data(), text.size(), &required_bytes));
  return nlohmann::json::parse(text.data());
}

}  // namespace

const char* operator_name(isthmus_fused_kind kind) {
  return kind == ISTHMUS_FUSED_ALLGATHER_GEMM ? "allgather_matmul" : "matmul_reduce_scatter";
}

product_plan::~product_plan() {
  if (isthmus_fused_plan_destroy(m_handle) != ISTHMUS_SUCCESS)
    TORCH_WARN("isthmus: closing a plan of ", operator_name(m_shape.kind), " failed: ", describe_last_error());
}

isthmus_status product_plan::run(isthmus_fused_arguments arguments, isthmus_stream stream, bool is_captured) {
  m_is_captured |= is_captured;
  arguments.struct_bytes = sizeof arguments;
  arguments.alpha = 1;
  arguments.stream = stream;
  return isthmus_fused_run(m_handle, &arguments);
}

std::shared_ptr<product_plan> product_plans::find(const product_shape& shape) {
  const auto plan = std::ranges::find_if(m_plans, [&](const auto& each) { return each->shape() == shape; });
  if (plan == m_plans.end()) return nullptr;
  m_plans.splice(m_plans.begin(), m_plans, plan);
  return m_plans.front();
}

std::shared_ptr<product_plan> product_plans::create(const product_shape& shape,
                                                    isthmus_communicator communicator, const std::string& group,
                                                    const std::string& device) {
  isthmus_fused_description description{};
  description.struct_bytes = sizeof description;
  description.kind = shape.kind;
  description.m = shape.m, description.n = shape.n, description.k = shape.k;
  description.input = description.output = shape.datatype;
  description.b_layout = shape.layout;
  if (shape.kind == ISTHMUS_FUSED_ALLGATHER_GEMM) description.flags = ISTHMUS_FUSED_SHARDED_B;
  isthmus_fused_plan handle = nullptr;
  const isthmus_status status = isthmus_fused_plan_create(communicator, &description, &handle);
  call_path path{group, device, operator_name(shape.kind), "separate", ""};
  if (status == ISTHMUS_ERROR_UNSUPPORTED) {
    path.reason = describe_last_error();
  } else {
    check(status);
    const nlohmann::json info = info_of(handle);
    path.backend = "fused:" + info.value("mode", "");
    path.reason = info.value("reason", "");
  }
  m_plans.push_front(std::make_shared<product_plan>(shape, handle, path_report::instance().counter_for(path)));
  if (m_plans.size() > max_plans) {
    const auto oldest = std::find_if(m_plans.rbegin(), std::prev(m_plans.rend()),
                                     [](const auto& each) { return !each->is_captured(); });
    if (oldest != std::prev(m_plans.rend())) m_plans.erase(std::next(oldest).base());
  }
  return m_plans.front();
}

}  // namespace isthmus::torch_backend
