// Reconfiguration of a process group with other members (torch.distributed._reconfigure, PyTorch 2.14 and newer).
#include <algorithm>
#include <random>

#include "failure/wait.hpp"
#include "process_group.hpp"
#include "works.hpp"

#ifdef C10D_BACKEND_HAS_RECONFIGURE
namespace isthmus::torch_backend {
namespace {

constexpr const char* claim_key = "claim";

constexpr std::string_view handle_prefix = "isthmus:";
std::string joined_key(std::size_t rank) { return "joined_" + std::to_string(rank); }

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Returns the handles in the order of the new ranks. A set is sorted, so that all members use the same order.
std::vector<std::string> ordered_members(const c10d::ReconfigureOptions& options) {
  std::vector<std::string> members;
  std::visit([&](const auto& handles) { members.assign(handles.begin(), handles.end()); }, options.handles);
  std::vector<std::string> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  TORCH_CHECK_VALUE(twice == sorted.end(), "isthmus: reconfigure: handle ", *twice,
                    " is listed twice; pass one handle per rank");
  for (const std::string& handle : sorted)
    TORCH_CHECK_VALUE(handle.starts_with(handle_prefix), "isthmus: reconfigure: handle ", handle,
                      " is not from a group with the backend isthmus; all ranks must use the same backend");
  return std::holds_alternative<std::vector<std::string>>(options.handles) ? members : sorted;
}

}  // namespace

// Two processes never have the same identity, also if one replaces the other.
std::string process_group::make_identity() {
  std::random_device random;
  return c10::str(random(), "-", random(), "-", random());
}

// The rank comes first and has a fixed width, so that a sorted set of handles keeps the order of the ranks.
c10d::ReconfigureHandle process_group::get_reconfigure_handle() const {
  std::string rank = std::to_string(getRank());
  rank.insert(0, 8 - std::min<std::size_t>(8, rank.size()), '0');
  return c10::str(handle_prefix, rank, ":", m_reconfigure_uuid, ":", m_identity);
}

work_ptr process_group::reconfigure(const c10d::ReconfigureOptions& options) {
  check_process();
  const std::string own_handle = get_reconfigure_handle();
  const std::vector<std::string> members = ordered_members(options);
  const auto own = std::find(members.begin(), members.end(), own_handle);
  TORCH_CHECK_VALUE(own != members.end(),
                    "isthmus: reconfigure: the handles do not contain that of this rank, ", own_handle,
                    "; every reconfiguration changes it");
  const auto rank = static_cast<std::size_t>(own - members.begin());
  const auto new_store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("isthmus_reconfigure_", options.uuid), m_base_store);
  join_members(*clone_store(store_ptr(new_store)), options, members, rank);
  communicator_set old;
  std::map<c10::DeviceType, backend_ptr> old_fallbacks;
  {
    const std::lock_guard lock(m_mutex);
    old = std::exchange(m_communicators, {});
    old_fallbacks = std::exchange(m_fallbacks, {});
    m_batches.clear();
    m_survivor_group = nullptr;
    m_lost_ranks.clear();
    m_store = new_store;
    m_generation = 0;
    m_monitored_barrier_count = 0;
    m_sequence = 0;
    m_reconfigure_uuid = options.uuid;
    rank_ = static_cast<int>(rank);
    size_ = static_cast<int>(members.size());
    m_settings.awaits_reconfigure = false;
  }
  old.close();
  for (const auto& [type, other] : old_fallbacks) shut_down_backend(*other);
  return c10::make_intrusive<joined_work>(getRank(), std::vector<work_ptr>{});
}

// Waits until all members have called reconfigure. Rank 0 claims the uuid, because the store still holds the keys of
// earlier reconfigurations.
void process_group::join_members(c10d::Store& store, const c10d::ReconfigureOptions& options,
                                 const std::vector<std::string>& members, std::size_t rank) {
  const auto reject = [&] {
    C10_THROW_ERROR(DistBackendError, c10::str("isthmus: reconfigure: uuid ", options.uuid,
                                               " was already used; pass a new uuid in every call"));
  };
  if (rank == 0 && store.add("claims", 1) != 1) reject();
  abort();  // releases the ranks that wait in a call of the old members
  if (rank == 0) store.set(claim_key, bytes_of(members.front()));
  store.set(joined_key(rank), bytes_of(members[rank]));

  const milliseconds timeout = options.timeout.value_or(m_settings.timeout);
  const auto deadline = deadline_after(timeout);
  const auto value_of = [&](const std::string& key) -> std::optional<std::string> {
    constexpr poll_pause pause{std::chrono::microseconds(200), std::chrono::milliseconds(10)};
    if (!poll_until([&] { return store.check({key}); }, deadline, pause)) return std::nullopt;
    const auto value = store.get(key);
    return std::string(value.begin(), value.end());
  };
  const auto claim = value_of(claim_key);
  if (claim && *claim != members.front()) reject();
  std::vector<std::size_t> missing;
  for (std::size_t other = 0; other < members.size(); ++other)
    if (value_of(joined_key(other)) != members[other]) missing.push_back(other);
  if (!missing.empty())
    C10_THROW_ERROR(DistBackendError,
                    c10::str("isthmus: reconfigure: ranks that did not join within ", timeout.count(),
                             " ms: ", c10::Join(", ", missing),
                             " (call reconfigure with a new uuid and the handles of the other ranks)"));
}

}  // namespace isthmus::torch_backend
#endif
