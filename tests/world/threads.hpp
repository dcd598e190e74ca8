// Ranks in threads of this process.
#pragma once

#include <thread>
#include <vector>

namespace world {

// Runs `job(rank)` for each rank in a thread of its own, and waits for all.
template <typename Job>
void on_each(int size, Job&& job) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&job, rank] { job(rank); });
}

}  // namespace world
