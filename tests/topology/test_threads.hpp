// Ranks in threads, with exceptions reported as test failures.
#pragma once

#include <gtest/gtest.h>

#include <exception>

#include "topology/threads.hpp"

namespace topology {

// Runs `work(member)` for each rank of this process in its own thread. An exception becomes a test failure that
// names the rank.
template <typename Members, typename Work>
void run_on_each_member(Members& members, Work&& work) {
  run_on_each_rank(static_cast<int>(members.size()), [&](int i) {
    auto& self = members[static_cast<std::size_t>(i)];
    try {
      work(self);
    } catch (const std::exception& failure) {
      ADD_FAILURE() << "rank " << self.rank << ": " << failure.what();
    }
  });
}

}  // namespace topology
