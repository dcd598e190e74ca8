// The backends of one rank of one communicator, in an order that is equal on all ranks.
#pragma once

#include <isthmus/backend.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/membership.hpp"
#include "core/backend_instance.hpp"
#include "recorder/flight_recorder.hpp"

namespace isthmus {

struct communicator_setup;

// The split states of the parent's backends, by backend name.
using split_states = std::map<std::string, split_state>;

class backend_set {
 public:
  // Lifetime: the referenced objects outlive the set.
  backend_set(communicator& owner, const membership& ranks, const communicator_setup& setup)
      : m_owner(owner), m_ranks(ranks), m_setup(setup) {}

  // Collective. Lists the backends of rank 0, then the backends that only other ranks have. If a rank cannot use a
  // backend, no rank uses it.
  void agree(bootstrap& control, recorder::flight_recorder& recorder);
  // Collective; after agree(). Creates the state of each backend that all ranks can use.
  // Errors: throws error (UNSUPPORTED) if no backend is usable.
  void create(bootstrap& control, split_states parent_states);
  // Collective. All ranks call the backends in the same order, including ranks that get no subcommunicator.
  split_states split(int color, int key);
  void abort() noexcept;
  void destroy() noexcept;
  void register_block(const isthmus_heap_block& block);
  void unregister_block(const isthmus_heap_block& block);

  backend_instance* find(const std::string& name) const;  // nullptr if there is none
  bool is_any_usable_plugin() const;
  auto begin() const { return m_backends.begin(); }
  auto end() const { return m_backends.end(); }

 private:
  void create_one(bootstrap& control, backend_instance& backend);
  bool is_any_usable() const;
  bool is_chosen_by_default(const backend_instance& backend) const;
  bool must_have_rank_order(const backend_instance& backend) const;
  bool has_replacement(const backend_instance& backend, std::span<const backend_instance* const> others) const;
  bool is_needless(const backend_instance& backend) const;
  bool is_last_resort(const backend_instance& backend) const;
  [[noreturn]] void throw_no_backend(bootstrap& control) const;

  communicator& m_owner;
  const membership& m_ranks;
  const communicator_setup& m_setup;
  std::vector<std::unique_ptr<backend_instance>> m_backends;
};

}  // namespace isthmus
