// Registry of the ranks of each communicator in this process. Through it, a failed rank notifies the other
// ranks of its process.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace isthmus {

class communicator;

using communicator_token = std::array<std::uint64_t, 2>;

void add_local_rank(const communicator_token& token, const std::shared_ptr<communicator>& rank);
void remove_local_rank(const communicator_token& token, const communicator* rank);
// Returns the live ranks of the communicator in this process, except `rank`.
std::vector<std::shared_ptr<communicator>> other_local_ranks(const communicator_token& token,
                                                             const communicator* rank);

}  // namespace isthmus
