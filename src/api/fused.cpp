// C entry points of fused.h.
#include <isthmus/fused.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "core/group.hpp"
#include "core/handles.hpp"
#include "operators/fused/device/blaslt.hpp"
#include "operators/fused/model/plan.hpp"

struct isthmus_fused_plan_impl {
  isthmus_communicator owner;  // the caller's handle, to detect that it was destroyed
  std::unique_ptr<isthmus::fused::plan> object;
};

namespace isthmus::fused {
namespace {

// The live plan handles. The table detects destroyed and invalid handles before they are dereferenced.
class plan_table {
 public:
  static plan_table& instance() {
    static auto* table = new plan_table;
    return *table;
  }

  isthmus_fused_plan insert(std::unique_ptr<isthmus_fused_plan_impl> new_plan) {
    const std::lock_guard lock(m_mutex);
    return *m_live_plans.insert(new_plan.release()).first;
  }
  isthmus_fused_plan_impl& find(const char* function, isthmus_fused_plan handle) {
    const std::lock_guard lock(m_mutex);
    if (m_live_plans.contains(handle)) return *handle;
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                     fmt::format("{}: plan = {} must be a live plan", function, static_cast<void*>(handle)),
                     "check that fused_plan_create succeeded and that the plan was not destroyed");
  }
  std::unique_ptr<isthmus_fused_plan_impl> remove(isthmus_fused_plan handle) {
    auto& object = find("fused_plan_destroy", handle);
    const std::lock_guard lock(m_mutex);
    m_live_plans.erase(handle);
    return std::unique_ptr<isthmus_fused_plan_impl>(&object);
  }

 private:
  std::mutex m_mutex;
  std::set<isthmus_fused_plan> m_live_plans;
};

std::unique_ptr<plan> make_plan(std::shared_ptr<communicator> owner, const fused_problem& definition) {
  const isthmus_platform platform = owner->ranks().device.platform;
  if (owner->ranks().has_mixed_platforms)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        "fused_plan_create: communicator has devices of several platforms; they must be of one platform",
        "create one communicator per platform with isthmus_communicator_split");
  const bool is_host = platform == ISTHMUS_PLATFORM_HOST;
  if (is_host || blaslt::traits_of(platform) != nullptr) switch (definition.description.kind) {
      case ISTHMUS_FUSED_ALLGATHER_GEMM:
        return (is_host ? make_host_gather_plan : make_device_gather_plan)(std::move(owner), definition);
      case ISTHMUS_FUSED_GEMM_REDUCE_SCATTER:
        return (is_host ? make_host_scatter_plan : make_device_scatter_plan)(std::move(owner), definition);
      case ISTHMUS_FUSED_GEMM_ALLREDUCE:
        return (is_host ? make_host_allreduce_plan : make_device_allreduce_plan)(std::move(owner), definition);
    }
  throw make_error(
      ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
      fmt::format(
          "fused_plan_create: platform {} is not supported: its streams cannot wait for a word of memory, "
          "which plans use to synchronize the ranks",
          isthmus_platform_name(platform)),
      "use isthmus/sycl/fused.hpp, which combines collectives with the caller's matrix products on any "
      "SYCL queue");
}

// Several ranks of one process may call this concurrently, each from its own thread.
isthmus_fused_plan create(isthmus_communicator handle, const isthmus_fused_description* description) {
  isthmus::group::reject_active("fused_plan_create");
  auto owner = handle_table::instance().share(handle);
  const fused_problem definition = agree_on_problem(*owner, description);
  auto new_plan = std::make_unique<isthmus_fused_plan_impl>();
  new_plan->owner = handle;
  new_plan->object = make_plan(std::move(owner), definition);
  return plan_table::instance().insert(std::move(new_plan));
}

std::string lower_case_name(isthmus_fused_kind kind) {
  std::string name = kind_name(kind);
  for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
  return name;
}

nlohmann::json predicted_json(const fused_schedule& schedule) {
  if (!schedule.has_prediction) return nullptr;
  return {{"product", schedule.product_us},
          {"transfer", schedule.transfer_us},
          {"bound", std::max(schedule.product_us, schedule.transfer_us)},
          {"pipelined", schedule.pipelined_us},
          {"sequential", schedule.sequential_us}};
}

nlohmann::json measured_json(const plan& fused_plan) {
  const auto time = [&](isthmus_fused_view view) {
    const auto us = fused_plan.measured_us(view);
    return us ? nlohmann::json(*us) : nlohmann::json();
  };
  return {{"product", time(ISTHMUS_FUSED_COMPUTE_ONLY)},
          {"transfer", time(ISTHMUS_FUSED_COMMUNICATION_ONLY)},
          {"whole", time(ISTHMUS_FUSED_WHOLE)}};
}

nlohmann::json make_info(const plan& fused_plan) {
  const auto& description = fused_plan.problem().description;
  const fused_schedule& schedule = fused_plan.schedule();
  nlohmann::json info = {{"kind", lower_case_name(description.kind)},
                         {"rank", fused_plan.problem().rank},
                         {"ranks", fused_plan.problem().size},
                         {"m", description.m},
                         {"n", description.n},
                         {"k", description.k},
                         {"input", isthmus_datatype_name(description.input)},
                         {"output", isthmus_datatype_name(description.output)},
                         {"mode", schedule.is_pipelined ? "pipelined" : "sequential"},
                         {"reason", schedule.reason},
                         {"chunks", schedule.chunks},
                         {"model", fused_plan.costs().source},
                         {"predicted_us", predicted_json(schedule)},
                         {"measured_us", measured_json(fused_plan)},
                         {"notes", nlohmann::json::array()},
                         {"groups", nlohmann::json::array()}};
  for (const row_group& group : schedule.groups)
    info["groups"].push_back({{"source", group.source}, {"begin", group.begin}, {"rows", group.rows}});
  fused_plan.describe(info);
  return info;
}

}  // namespace
}  // namespace isthmus::fused

using namespace isthmus::fused;

isthmus_status isthmus_fused_plan_create(isthmus_communicator communicator,
                                         const isthmus_fused_description* description,
                                         isthmus_fused_plan* plan) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "fused_plan_create", "plan", plan,
                              "pass the address of the variable that receives the plan");
    *plan = nullptr;
    *plan = create(communicator, description);
  });
}

isthmus_status isthmus_fused_run(isthmus_fused_plan plan, const isthmus_fused_arguments* arguments) {
  return isthmus::guard([&] {
    isthmus::group::reject_active("fused_run");
    auto& record = plan_table::instance().find("fused_run", plan);
    const isthmus::communicator& owner = isthmus::handle_table::instance().find(record.owner);
    owner.check_alive();
    check_arguments(record.object->problem(), owner.ranks().device.platform, arguments);
    record.object->run(*arguments);
  });
}

isthmus_status isthmus_fused_plan_info(isthmus_fused_plan plan, char* json, size_t capacity,
                                       size_t* required_bytes) {
  return isthmus::guard([&] {
    constexpr const char* function = "fused_plan_info";
    auto& object = *plan_table::instance().find(function, plan).object;
    if (object.trace().is_enabled()) object.synchronize();
    const std::string text = make_info(object).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    isthmus::write_json(ISTHMUS_HERE, function, text, json, capacity, required_bytes);
  });
}

isthmus_status isthmus_fused_plan_trace(isthmus_fused_plan plan, char* json, size_t capacity,
                                        size_t* required_bytes) {
  return isthmus::guard([&] {
    auto& object = *plan_table::instance().find("fused_plan_trace", plan).object;
    if (!object.trace().is_enabled())
      throw isthmus::make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                                "fused_plan_trace: plan must be created with ISTHMUS_FUSED_TRACE",
                                "set the flag in isthmus_fused_description.flags");
    object.synchronize();
    isthmus::write_json(ISTHMUS_HERE, "fused_plan_trace",
                        object.trace()
                            .chrome(object.problem().rank)
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                        json, capacity, required_bytes);
  });
}

isthmus_status isthmus_fused_plan_destroy(isthmus_fused_plan plan) {
  return isthmus::guard([&] {
    if (plan == nullptr) return;
    const auto removed_plan = plan_table::instance().remove(plan);
    removed_plan->object->synchronize();
    removed_plan->object->close();
  });
}
