// A plan on some platform: what the C entry points call.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "operators/fused/model/problem.hpp"
#include "operators/fused/model/schedule.hpp"
#include "operators/fused/model/trace.hpp"

namespace isthmus::fused {

class plan {
 public:
  plan(std::shared_ptr<communicator> owner, problem what)
      : m_owner(std::move(owner)), m_what(what), m_timeline(what.traces()) {}
  virtual ~plan() = default;
  plan(const plan&) = delete;
  plan& operator=(const plan&) = delete;

  // Checked arguments. Throws; a failure after the start has poisoned the communicator.
  virtual void run(const isthmus_fused_arguments& with) = 0;
  // What the platform adds to info: libraries, workspace, notes.
  virtual void describe(nlohmann::json& info) const = 0;
  // Waits for this rank's latest run, at most the timeout.
  virtual void synchronize() = 0;
  // Releases everything after synchronize; throws what went wrong on the way.
  virtual void close() = 0;

  const problem& what() const { return m_what; }
  const schedule& order() const { return m_order; }
  const costs& figures() const { return m_figures; }
  const timeline& trace() const { return m_timeline; }
  communicator& owner() const { return *m_owner; }

 protected:
  std::shared_ptr<communicator> m_owner;
  problem m_what;
  costs m_figures;
  schedule m_order;
  timeline m_timeline;
};

// Collective; throws on all ranks or on none, except for OUT_OF_MEMORY.
std::unique_ptr<plan> make_host_gather_plan(std::shared_ptr<communicator> owner, const problem& what);
std::unique_ptr<plan> make_host_scatter_plan(std::shared_ptr<communicator> owner, const problem& what);
std::unique_ptr<plan> make_device_gather_plan(std::shared_ptr<communicator> owner, const problem& what);
std::unique_ptr<plan> make_device_scatter_plan(std::shared_ptr<communicator> owner, const problem& what);

// The configured option [backend.fused] key as a number > 0, or `fallback`. Throws error (CONFIG).
double number_option(const communicator& owner, const char* key, double fallback);

}  // namespace isthmus::fused
