// Ranks in threads of this process.
#pragma once

#include <thread>
#include <vector>

namespace topology {

// Runs `job(rank)` for each rank in its own thread and waits for all threads.
template <typename Job>
void run_on_each_rank(int size, Job&& job) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&job, rank] { job(rank); });
}

}  // namespace topology
