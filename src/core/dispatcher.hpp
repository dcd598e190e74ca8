// Selects the backend and algorithm of an operation. Decisions are cached: the call path reads a small table,
// and the selector runs once per kind of call.
//
// Thread safety: none. The communicator does not overlap calls.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/tables.hpp"
#include "bootstrap/membership.hpp"
#include "core/backend_set.hpp"
#include "memory/heap/symmetric_heap.hpp"
#include "recorder/flight_recorder.hpp"
#include "selection/selection.hpp"

namespace isthmus {

struct backend_choice {
  backend_instance* backend = nullptr;
  int algorithm = ISTHMUS_ANY_ALGORITHM;  // index in the backend's algorithms
  std::uint32_t reason = 0;               // index in the recorder
};

class dispatcher {
 public:
  // Lifetime: the referenced objects outlive the dispatcher. `backends` is complete before the first call.
  dispatcher(const selection::configuration& rules, const membership& ranks, const symmetric_heap& heap,
             const backend_set& backends, const std::vector<std::string>& external_backends,
             recorder::flight_recorder& recorder);

  // Precondition: the operation is validated. Errors: throws error (UNSUPPORTED) if no backend can run it.
  backend_choice choose(const isthmus_operation& operation) {
    const auto bytes = selection_bytes(operation, m_ranks.size);
    const cache_key key{shape_of(operation), bytes.value_or(unknown_bytes)};
    const cache_entry& entry = m_cache[index_of(key)];
    if (entry.key != key) [[unlikely]]
      return probe_cache(key, operation);
    return entry.choice;
  }

  // Returns "backend:algorithm", or "" if no backend can run the operation. Uses the same selection
  // but caches nothing.
  std::string path(const isthmus_operation& operation) const;

  // Returns the JSON of isthmus_communicator_explain. Uses the same selection, with a trace.
  nlohmann::json explain(const isthmus_operation& operation);

 private:
  static constexpr std::uint64_t unknown_bytes = ~std::uint64_t{0};
  static constexpr std::size_t cache_bits = 8;
  // An exchange with many neighbors alternates between dozens of kinds of calls. Entries that collide use the
  // next slots. If two entries evicted each other, each call would cost 6 us.
  static constexpr std::size_t max_probes = 8;

  struct cache_key {
    std::uint64_t shape = ~std::uint64_t{0};  // empty: no operation has this shape
    std::uint64_t bytes = 0;
    bool operator==(const cache_key&) const = default;
  };
  struct cache_entry {
    cache_key key;
    backend_choice choice;
  };

  std::uint64_t shape_of(const isthmus_operation& operation) const {
    const collective_row& row = row_of(operation.collective);
    std::uint64_t shape =
        static_cast<std::uint64_t>(operation.collective) | static_cast<std::uint64_t>(operation.datatype) << 8;
    if (row.is_reduction) shape |= static_cast<std::uint64_t>(operation.op) << 16;
    if (!m_heap.empty() && memory_of(operation) == selection::memory_kind::symmetric) shape |= 1u << 24;
    if (operation.rmsnorm != nullptr) [[unlikely]]
      shape |= 1u << 25;
    if (operation.product != nullptr) [[unlikely]]
      shape |= 1u << 26;
    if (row.peer != peer_kind::none) shape |= static_cast<std::uint64_t>(operation.root) << 32;
    return shape;
  }
  static std::size_t index_of(const cache_key& key) {
    const std::uint64_t mixed = (key.shape * 0x9e3779b97f4a7c15u) ^ (key.bytes * 0xc2b2ae3d27d4eb4fu);
    return mixed >> (64 - cache_bits);
  }

  selection::memory_kind memory_of(const isthmus_operation& operation) const;
  selection::selection_query make_query(const isthmus_operation& operation) const;
  // Returns why no rule can use this backend for the operation with this algorithm, or nullptr.
  const char* find_obstacle(const std::string& name, int algorithm,
                            const isthmus_operation& common_operation) const;
  selection::availability make_availability(const isthmus_operation& common_operation) const;
  bool is_external(const std::string& name) const;
  nlohmann::json plan_json(const selection::selection_decision& decision,
                           const isthmus_operation& common_operation) const;
  backend_choice probe_cache(const cache_key& key, const isthmus_operation& operation);
  backend_choice select_backend(const isthmus_operation& operation);
  void log_unused_rules(const selection::selection_decision& decision, const isthmus_operation& operation);

  const selection::configuration& m_rules;
  const membership& m_ranks;
  const symmetric_heap& m_heap;
  const backend_set& m_backends;
  const std::vector<std::string>& m_external_backends;
  recorder::flight_recorder& m_recorder;
  std::set<std::string> m_logged_rules;
  std::array<cache_entry, 1u << cache_bits> m_cache;
  std::size_t m_evictions = 0;
};

}  // namespace isthmus
