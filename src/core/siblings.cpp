#include "core/siblings.hpp"

#include <map>
#include <mutex>

#include "core/communicator.hpp"

namespace isthmus {
namespace {

struct directory {
  std::mutex mutex;
  std::multimap<communicator_token, std::pair<const communicator*, std::weak_ptr<communicator>>> ranks;
};

directory& all() {
  static auto* directory_of_process = new directory;
  return *directory_of_process;
}

}  // namespace

void add_sibling(const communicator_token& token, const std::shared_ptr<communicator>& rank) {
  const std::lock_guard lock(all().mutex);
  all().ranks.emplace(token, std::pair(rank.get(), std::weak_ptr(rank)));
}

void remove_sibling(const communicator_token& token, const communicator* rank) {
  const std::lock_guard lock(all().mutex);
  auto [entry, end] = all().ranks.equal_range(token);
  while (entry != end && entry->second.first != rank) ++entry;
  if (entry != end) all().ranks.erase(entry);
}

std::vector<std::shared_ptr<communicator>> siblings_of(const communicator_token& token,
                                                       const communicator* rank) {
  const std::lock_guard lock(all().mutex);
  std::vector<std::shared_ptr<communicator>> live;
  const auto [begin, end] = all().ranks.equal_range(token);
  for (auto entry = begin; entry != end; ++entry)
    if (entry->second.first != rank)
      if (auto sibling = entry->second.second.lock()) live.push_back(std::move(sibling));
  return live;
}

}  // namespace isthmus
