// The ranks of one communicator that live in this process. A failure of one reaches the others here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace isthmus {

class communicator;

using communicator_token = std::array<std::uint64_t, 2>;

// All functions: any thread.
void add_local_rank(const communicator_token& token, const std::shared_ptr<communicator>& rank);
void remove_local_rank(const communicator_token& token, const communicator* rank);
// Live ranks, `rank` itself not included.
std::vector<std::shared_ptr<communicator>> other_local_ranks(const communicator_token& token,
                                                       const communicator* rank);

}  // namespace isthmus
