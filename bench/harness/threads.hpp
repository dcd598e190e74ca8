// Ranks as threads of this process.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "team.hpp"

namespace bench {

class thread_ranks {
 public:
  explicit thread_ranks(int size, double timeout_s = 120) {
    shared_block* const block = map_for_children();
    for (int rank = 0; rank < size; ++rank) m_teams.emplace_back(block, rank, size, timeout_s);
  }

  const team& operator[](int rank) const { return m_teams[static_cast<std::size_t>(rank)]; }

  // Runs `work` for every rank in its own thread. A failure ends the process, because the other ranks would
  // wait and no later number would be meaningful.
  void each(const std::function<void(const team&)>& work) const {
    std::vector<std::jthread> threads;
    for (const team& own_team : m_teams)
      threads.emplace_back([&work, &own_team] {
        try {
          work(own_team);
        } catch (const std::exception& failure) {
          std::fprintf(stderr, "rank %d: %s\n", own_team.rank(), failure.what());
          std::_Exit(1);
        }
      });
  }

 private:
  std::vector<team> m_teams;
};

}  // namespace bench
