// Shrinks a process group to the surviving ranks after a failure (docs/guide/failures.md).
#include <algorithm>
#include <numeric>

#include "process_group.hpp"
#include "status.hpp"

namespace isthmus::torch_backend {
namespace {

std::vector<int64_t> missing_ranks(int size, const std::vector<int>& ranks) {
  std::vector<int64_t> all(static_cast<std::size_t>(size)), missing;
  std::iota(all.begin(), all.end(), 0);
  std::set_difference(all.begin(), all.end(), ranks.begin(), ranks.end(), std::back_inserter(missing));
  return missing;
}

}  // namespace

c10::Device process_group::used_device() {
  const std::lock_guard lock(m_mutex);
  for (const auto& [key, entry] : m_communicators.executors) {
    const auto& [type, index, channel] = key;
    if (channel == message_channel{}) return {type, index};
  }
  C10_THROW_ERROR(DistBackendError, c10::str("isthmus: shrink: process group ", m_settings.name,
                                             " has made no collective call yet; there is nothing to shrink"));
}

std::vector<int64_t> process_group::agree_on_lost_ranks(double wait_s) {
  const c10::Device device = used_device();
  shrink_result result = executor_for(device)->endpoint()->shrink(wait_s);
  const std::vector<int64_t> lost_ranks = missing_ranks(getSize(), result.ranks);
  c10::intrusive_ptr<process_group> survivor_group;
  if (!lost_ranks.empty()) {
    // The store still holds the keys of this group, so the new group uses a different prefix.
    const std::string prefix = c10::str("isthmus_without_", c10::Join("_", lost_ranks));
    group_settings settings = m_settings;
    settings.name += "_shrunk";
    const auto own_rank = std::find(result.ranks.begin(), result.ranks.end(), getRank()) - result.ranks.begin();
    survivor_group = c10::make_intrusive<process_group>(
        c10::make_intrusive<c10d::PrefixStore>(prefix, m_store), static_cast<int>(own_rank),
        static_cast<int>(result.ranks.size()), std::move(settings));
  } else {
    renew();
  }
  process_group& next_group = lost_ranks.empty() ? *this : *survivor_group;
  auto endpoint = std::make_shared<device_endpoint>(
      next_group.m_store, next_group.endpoint_settings_for(device), std::move(result));
  {
    const std::lock_guard lock(next_group.m_mutex);
    next_group.m_communicators.executors[{device.type(), device.index(), message_channel{}}] =
        next_group.make_executor(device, std::move(endpoint));
  }
  const std::lock_guard lock(m_mutex);
  m_survivor_group = std::move(survivor_group);
  m_lost_ranks = lost_ranks;
  return lost_ranks;
}

process_group::backend_ptr process_group::shrink(const std::vector<int64_t>& excluded, int /*flags*/,
                                                 const c10::intrusive_ptr<Options>& /*new_options*/) {
  if (!m_survivor_group) agree_on_lost_ranks(0);
  const std::lock_guard lock(m_mutex);
  if (m_lost_ranks != excluded)
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("isthmus: shrink: process group ", m_settings.name, ": excluded ranks are ",
                 c10::Join(", ", excluded), "; they must be the lost ranks: ", c10::Join(", ", m_lost_ranks)));
  return std::exchange(m_survivor_group, nullptr);
}

}  // namespace isthmus::torch_backend
