// Platform-independent interface of a plan, called by the C entry points.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "operators/fused/model/problem.hpp"
#include "operators/fused/model/schedule.hpp"
#include "operators/fused/model/trace.hpp"

namespace isthmus::fused {

class plan {
 public:
  plan(std::shared_ptr<communicator> owner, fused_problem problem)
      : m_owner(std::move(owner)), m_problem(problem), m_timeline(problem.is_traced()) {}
  virtual ~plan() = default;
  plan(const plan&) = delete;
  plan& operator=(const plan&) = delete;

  // Runs the plan. Precondition: the arguments have been checked.
  // Errors: throws error. A failure after the run started aborts the communicator.
  virtual void run(const isthmus_fused_arguments& arguments) = 0;
  // Adds platform-specific entries to `info`: libraries, workspace, notes.
  virtual void describe(nlohmann::json& info) const = 0;
  // Waits for this rank's latest run.
  // Blocking: up to the timeout.
  virtual void synchronize() = 0;
  // Releases all resources. Called after synchronize.
  // Errors: throws failures of pending work.
  virtual void close() = 0;

  const fused_problem& problem() const { return m_problem; }
  const fused_schedule& schedule() const { return m_schedule; }
  const cost_model& costs() const { return m_costs; }
  const timeline& trace() const { return m_timeline; }
  communicator& owner() const { return *m_owner; }

 protected:
  std::shared_ptr<communicator> m_owner;
  fused_problem m_problem;
  cost_model m_costs;
  fused_schedule m_schedule;
  timeline m_timeline;
};

// Collective.
// Errors: throws on all ranks or on none, except for OUT_OF_MEMORY.
std::unique_ptr<plan> make_host_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);
std::unique_ptr<plan> make_host_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);
std::unique_ptr<plan> make_device_gather_plan(std::shared_ptr<communicator> owner,
                                              const fused_problem& problem);
std::unique_ptr<plan> make_device_scatter_plan(std::shared_ptr<communicator> owner,
                                               const fused_problem& problem);

// Reads option backend.fused.<key> as a number > 0. Returns `fallback` if it is not set.
// Errors: throws error (CONFIG).
double read_number_option(const communicator& owner, const char* key, double fallback);

}  // namespace isthmus::fused
