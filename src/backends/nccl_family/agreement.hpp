// Agreement of all ranks before a native communicator is created. It detects mismatches that would
// hang inside the library.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <string>

namespace isthmus::nccl_family {

// The contribution of one rank. Trivially copyable, because it is exchanged as bytes.
template <std::size_t IdBytes>
struct probe {
  std::int32_t version = 0;
  std::int32_t capability = 0;      // major compute capability; 0 if the platform has none
  std::int32_t has_split_comm = 0;  // 1 if a split has already created the native communicator
  char device[32] = {};             // PCI bus id, unique within a machine
  unsigned char id[IdBytes] = {};   // unique id of the native communicator; only that of rank 0 is used
};

// Returns "" if the contributions of all ranks are compatible, otherwise the reason. The result is equal
// on all ranks.
template <std::size_t IdBytes>
std::string find_mismatch(const votes<probe<IdBytes>>& all, const int* node_of, bool may_share_device) {
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].value.version != all[0].value.version)
      return "ranks 0 and " + std::to_string(rank) + " loaded different versions of the library (codes " +
             std::to_string(all[0].value.version) + " and " + std::to_string(all[rank].value.version) + ")";
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b)
      if (!may_share_device && node_of[a] == node_of[b] && all[a].value.device[0] != '\0' &&
          std::strcmp(all[a].value.device, all[b].value.device) == 0)
        return "ranks " + std::to_string(a) + " and " + std::to_string(b) + " use the same device (" +
               all[a].value.device + "); give each rank its own device";
  return {};
}

// Collective. Gathers the probes of all ranks in `all`. If a rank has no usable library (`reason` is not empty)
// or the probes are not compatible, the backend is UNSUPPORTED on every rank.
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

}  // namespace isthmus::nccl_family
