// Through the cache or past it? Which is faster depends on whether the cores of the ranks share a cache, and
// a hypervisor moves virtual cores within seconds. So rank 0 times both forms, now and then, and the others
// follow its wish as soon as they see it. Who has not seen it yet stores in the other form, which readers
// need not know: results and protocol are the same.
#pragma once

#include <isthmus/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "backend/host/copy.hpp"
#include "backend/host/team.hpp"

namespace isthmus::host {

class store_chooser {
 public:
  explicit store_chooser(team& team);

  // Around each call whose form is free. `bytes` is equal on all ranks.
  store begin(isthmus_collective collective, std::uint64_t bytes);
  void end();

 private:
  using clock = std::chrono::steady_clock;

  // Calls of one kind: a pause, then a few timed as they are, one for the ranks to notice, and a few timed
  // in the other form.
  struct trial {
    std::uint32_t pause, call;
    clock::duration now, other;
  };

  bool is_timed(const trial& kind) const;
  void conclude(trial& kind);
  void swap_form();

  team& m_team;
  std::vector<trial> m_trials;  // by kind; rank 0 only
  wish* m_wish = nullptr;
  trial* m_trial = nullptr;
  clock::time_point m_begin;
};

}  // namespace isthmus::host
