#include "core/local_ranks.hpp"

#include <map>
#include <mutex>

#include "core/communicator.hpp"

namespace isthmus {
namespace {

struct rank_directory {
  std::mutex mutex;
  std::multimap<communicator_token, std::pair<const communicator*, std::weak_ptr<communicator>>> ranks;
};

rank_directory& local_directory() {
  static auto* process_directory = new rank_directory;
  return *process_directory;
}

}  // namespace

void add_local_rank(const communicator_token& token, const std::shared_ptr<communicator>& rank) {
  const std::lock_guard lock(local_directory().mutex);
  local_directory().ranks.emplace(token, std::pair(rank.get(), std::weak_ptr(rank)));
}

void remove_local_rank(const communicator_token& token, const communicator* rank) {
  const std::lock_guard lock(local_directory().mutex);
  auto [entry, end] = local_directory().ranks.equal_range(token);
  while (entry != end && entry->second.first != rank) ++entry;
  if (entry != end) local_directory().ranks.erase(entry);
}

std::vector<std::shared_ptr<communicator>> other_local_ranks(const communicator_token& token,
                                                             const communicator* rank) {
  const std::lock_guard lock(local_directory().mutex);
  std::vector<std::shared_ptr<communicator>> live_ranks;
  const auto [begin, end] = local_directory().ranks.equal_range(token);
  for (auto entry = begin; entry != end; ++entry)
    if (entry->second.first != rank)
      if (auto local_rank = entry->second.second.lock()) live_ranks.push_back(std::move(local_rank));
  return live_ranks;
}

}  // namespace isthmus
