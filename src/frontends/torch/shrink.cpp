// After a failure: the group of the ranks that are left (docs/shrink.md).
#include <algorithm>
#include <numeric>

#include "process_group.hpp"
#include "status.hpp"

namespace isthmus::torch_backend {
namespace {

std::vector<int64_t> others(int size, const std::vector<int>& ranks) {
  std::vector<int64_t> all(static_cast<std::size_t>(size)), rest;
  std::iota(all.begin(), all.end(), 0);
  std::set_difference(all.begin(), all.end(), ranks.begin(), ranks.end(), std::back_inserter(rest));
  return rest;
}

}  // namespace

c10::Device process_group::used_device() {
  const std::lock_guard lock(m_mutex);
  for (const auto& [key, made] : m_made.executors) {
    const auto& [type, index, through] = key;
    if (through == channel{}) return {type, index};
  }
  C10_THROW_ERROR(DistBackendError, c10::str("isthmus: process group ", m_settings.name,
                                             " can't shrink: it has made no collective call yet"));
}

std::vector<int64_t> process_group::agree_on_lost(double wait_s) {
  const c10::Device where = used_device();
  shrink_result made = executor_of(where)->endpoint()->shrink(wait_s);
  const std::vector<int64_t> lost = others(getSize(), made.ranks);
  c10::intrusive_ptr<process_group> rest;
  if (!lost.empty()) {
    // The store holds the keys of this group: those of the next one begin differently.
    const std::string prefix = c10::str("isthmus_without_", c10::Join("_", lost));
    settings chosen = m_settings;
    chosen.name += "_shrunk";
    const auto own = std::find(made.ranks.begin(), made.ranks.end(), getRank()) - made.ranks.begin();
    rest = c10::make_intrusive<process_group>(c10::make_intrusive<c10d::PrefixStore>(prefix, m_store),
                                              static_cast<int>(own), static_cast<int>(made.ranks.size()),
                                              std::move(chosen));
  } else {
    renew();
  }
  process_group& next = lost.empty() ? *this : *rest;
  auto endpoint = std::make_shared<device_endpoint>(next.m_store, next.settings_on(where), std::move(made));
  {
    const std::lock_guard lock(next.m_mutex);
    next.m_made.executors[{where.type(), where.index(), channel{}}] =
        next.make_executor(where, std::move(endpoint));
  }
  const std::lock_guard lock(m_mutex);
  m_rest = std::move(rest);
  m_lost = lost;
  return lost;
}

process_group::backend_ptr process_group::shrink(const std::vector<int64_t>& excluded, int /*flags*/,
                                                 const c10::intrusive_ptr<Options>& /*changed*/) {
  if (!m_rest) agree_on_lost(0);
  const std::lock_guard lock(m_mutex);
  if (m_lost != excluded)
    C10_THROW_ERROR(DistBackendError, c10::str("isthmus: process group ", m_settings.name,
                                               " was to shrink without rank ", c10::Join(", ", excluded),
                                               ", but those that are lost are: ", c10::Join(", ", m_lost)));
  return std::exchange(m_rest, nullptr);
}

}  // namespace isthmus::torch_backend
