// Ranks without a launcher: the harness forks them, one core each.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "team.hpp"

namespace bench {

// Binds rank r to the r-th allowed core; does nothing if there are fewer cores than ranks.
inline void bind_to_core(int rank, int size) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < size) return;
  int remaining = rank;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || remaining-- > 0) continue;
    cpu_set_t core_set;
    CPU_ZERO(&core_set);
    CPU_SET(core, &core_set);
    sched_setaffinity(0, sizeof core_set, &core_set);
    return;
  }
}

// Runs `rank_main(team)` in `size` child processes, each on its own core with `is_bound`, and returns the
// largest exit status. After a failure the other ranks get five seconds to notice it and are then killed.
inline int fork_ranks(int size, double timeout_s, const std::function<int(const team&)>& rank_main,
                      bool is_bound = true) {
  shared_block* block = map_for_children();
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      if (is_bound) bind_to_core(rank, size);
      _exit([&] {
        const int status = rank_main(team(block, rank, size, timeout_s));
        std::fflush(nullptr);
        return status;
      }());
    }
    if (child < 0) {
      for (const pid_t remaining_child : children) kill(remaining_child, SIGKILL);
      throw std::runtime_error(std::string("fork failed: ") + std::strerror(errno));
    }
    children.push_back(child);
  }

  int worst = 0;
  std::size_t running = children.size();
  std::uint64_t failed_at = 0;
  while (running > 0) {
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      int state = 0;
      if (children[rank] == 0 || waitpid(children[rank], &state, WNOHANG) != children[rank]) continue;
      children[rank] = 0, --running;
      const int status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
      worst = std::max(worst, status);
      if (status == 0 || failed_at != 0) continue;
      failed_at = steady_ns();
      std::uint32_t none = 0;
      block->failed_rank.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
    }
    if (failed_at != 0 && steady_ns() - failed_at > 5'000'000'000u)
      for (const pid_t child : children)
        if (child != 0) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return worst;
}

}  // namespace bench
