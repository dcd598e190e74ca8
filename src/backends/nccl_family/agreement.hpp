// What the ranks tell each other before a native communicator is made, so that nothing that would hang inside
// the library is started.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <string>

namespace isthmus::nccl_family {

// One rank's part. Plain data: it travels as bytes.
template <std::size_t IdBytes>
struct probe {
  std::int32_t version = 0;
  std::int32_t capability = 0;     // major compute capability; 0 where the platform has none
  std::int32_t has_split_comm = 0;       // of a split: the native communicator is there already
  char device[32] = {};            // PCI bus id, unique on its machine
  unsigned char id[IdBytes] = {};  // rank 0's
};

// "" when the ranks' parts go together, else why not. All ranks come to the same answer.
template <std::size_t IdBytes>
std::string find_mismatch(const votes<probe<IdBytes>>& all, const int* node_of, bool may_share_device) {
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].value.version != all[0].value.version)
      return "ranks 0 and " + std::to_string(rank) + " have loaded different versions of the library (codes " +
             std::to_string(all[0].value.version) + " and " + std::to_string(all[rank].value.version) + ")";
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b)
      if (!may_share_device && node_of[a] == node_of[b] && all[a].value.device[0] != '\0' &&
          std::strcmp(all[a].value.device, all[b].value.device) == 0)
        return "ranks " + std::to_string(a) + " and " + std::to_string(b) + " are on the same device (" +
               all[a].value.device + "); give every rank a device of its own";
  return {};
}

// Collective. Every rank's probe; where a rank has none (`reason` says why), or they do not go together, the
// backend is UNSUPPORTED on all ranks.
template <std::size_t IdBytes>
isthmus_status agree_on_probes(const isthmus_backend_context& context, const char* location, const char* hint,
                               vote<probe<IdBytes>>& local_vote, const std::string& reason,
                               votes<probe<IdBytes>>& all) {
  bool may_share_device = false;
  const std::string option_error = read_flag(context, "share_device", may_share_device);
  if (const std::string& problem = reason.empty() ? option_error : reason; !problem.empty())
    local_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem, hint);
  if (const isthmus_status status = agree(context, location, local_vote, all); status != ISTHMUS_SUCCESS)
    return status;
  const std::string problem = find_mismatch(all, context.node_of, may_share_device);
  if (problem.empty()) return ISTHMUS_SUCCESS;
  return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, location, hint, "%s", problem.c_str());
}

}  // namespace isthmus::xccl
