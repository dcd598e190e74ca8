#include "bootstrap/membership.hpp"

#include <isthmus/backend.h>
#include <isthmus/isthmus.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>

#include "base/process.hpp"
#include "base/text.hpp"
#include "base/trust.hpp"
#include "bootstrap/exchange.hpp"
#include "bootstrap/tcp_protocol.hpp"

namespace isthmus {
namespace {

template <typename Value>
Value random_value() {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(store_secret));
  const store_secret bytes = make_secret();
  Value value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Returns "" if the file does not exist. Throws if descriptors or memory are exhausted, because that condition
// must not look like another node.
std::string boot_id() {
  errno = 0;
  const std::string id = current_boot_id();
  const int code = errno;
  if (id.empty() && is_shortage(code))
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     fmt::format("communicator_create: cannot read /proc/sys/kernel/random/boot_id: {}",
                                 std::strerror(code)),
                     shortage_hint, code);
  return id;
}

// Returns 0 if the kernel has no user namespaces, because then there is only one.
std::uint64_t own_user_namespace() {
  struct stat status{};
  return ::stat("/proc/self/ns/user", &status) == 0 ? status.st_ino : 0;
}

// Value of ISTHMUS_NODE; "" if it is not set.
std::string configured_name() {
  constexpr const char* variable = "ISTHMUS_NODE";
  const char* const text = environment_variable(variable);
  const std::string name = text == nullptr ? "" : text;
  if (name.size() > max_node_name_bytes)
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("environment {}: the name has {} bytes, must have at most {}", variable,
                                 name.size(), max_node_name_bytes),
                     "use a short name that differs between nodes");
  return name;
}

// Wire form of a rank_info: plain bytes. All ranks with the same ABI version use the same layout.
struct membership_record {
  std::uint32_t version;  // major, minor and patch, one byte each
  std::uint32_t abi;
  std::int32_t platform;
  std::int64_t pid;
  std::uint64_t start;    // start time of the process (base/process.hpp)
  std::uint64_t process;  // random id of the process: pids are not unique across machines
  std::uint64_t rules_hash;
  std::array<std::uint64_t, 2> token;
  char node[192];  // longer than any own_node_id()
  fallback_address fallback;
};

constexpr std::uint32_t version_number =
    ISTHMUS_VERSION_MAJOR << 16 | ISTHMUS_VERSION_MINOR << 8 | ISTHMUS_VERSION_PATCH;

void fill_record(membership_record& record, const rank_info& contribution, const fallback_address& fallback) {
  static const auto process = random_value<std::uint64_t>();
  record.version = version_number;
  record.abi = ISTHMUS_BACKEND_ABI;
  record.platform = contribution.device.platform;
  record.pid = getpid();
  record.start = process_start_time(record.pid);
  record.process = process;
  record.rules_hash = fnv1a(contribution.rules);
  record.token = random_value<std::array<std::uint64_t, 2>>();
  copy_text(record.node, sizeof record.node, own_node_id());
  record.fallback = fallback;
}

// Returns the ranks whose `field` differs from that of rank 0.
template <typename Record, typename Field>
std::vector<int> ranks_unlike_first(const std::vector<Record>& all, Field field) {
  std::vector<int> ranks;
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (field(all[rank]) != field(all[0])) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

// Throws an error if `field` differs between ranks. The error names the ranks that differ from rank 0.
template <typename Field, typename Format>
void check_equal(const std::vector<membership_record>& all, const char* subject, Field field, Format format,
                 const char* hint) {
  const std::vector<int> other_ranks = ranks_unlike_first(all, field);
  if (other_ranks.empty()) return;
  const auto first = static_cast<std::size_t>(other_ranks.front());
  throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                   fmt::format("communicator_create: {} must be equal on all ranks: rank 0 has {}, rank {} has "
                               "{} (differing ranks: {})",
                               subject, format(all[0]), first, format(all[first]), format_list(other_ranks)),
                   hint);
}

std::string quote_line(const std::vector<std::string>& lines, std::size_t index) {
  return index < lines.size() ? fmt::format("\"{}\"", lines[index]) : std::string("nothing");
}

// Collective if the hashes differ. All ranks make the same decision because they see the same hashes.
void check_rules(bootstrap& ranks, const std::vector<membership_record>& all, const std::string& rules) {
  if (ranks_unlike_first(all, std::mem_fn(&membership_record::rules_hash)).empty()) return;
  const auto texts = gather_texts(ranks, rules);
  const std::vector<int> other_ranks = ranks_unlike_first(texts, std::identity());
  const auto first = other_ranks.empty() ? 0 : static_cast<std::size_t>(other_ranks.front());
  const auto first_lines = split_lines(texts[0]), other_lines = split_lines(texts[first]);
  std::size_t line = 0;
  while (line < first_lines.size() && line < other_lines.size() && first_lines[line] == other_lines[line])
    ++line;
  throw make_error(
      ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
      fmt::format("ranks have different selection rules; first difference: rank 0 has {}, rank {} has {} "
                  "(ranks that differ from rank 0: {})",
                  quote_line(first_lines, line), first, quote_line(other_lines, line),
                  format_list(other_ranks)),
      "give every rank the same config file and ISTHMUS_ environment variables");
}

// Numbers the distinct keys in order of first appearance, so all ranks use the same numbers.
template <typename Key>
std::vector<int> number_by_first_appearance(const std::vector<Key>& keys) {
  std::map<Key, int> number_of;
  std::vector<int> numbers;
  for (const Key& key : keys)
    numbers.push_back(number_of.try_emplace(key, static_cast<int>(number_of.size())).first->second);
  return numbers;
}

}  // namespace

std::string own_node_id() {
  const std::string id = boot_id();
  const std::uint64_t pid_namespace = current_pid_namespace();
  if (id.empty() || pid_namespace == 0) {  // shares memory with no other process
    static const auto suffix = random_value<std::uint64_t>();
    return fmt::format("unknown/{}/{}", getpid(), suffix);
  }
  return fmt::format("{}/{}/{}/{}/{}", id, pid_namespace, own_user_namespace(), getuid(), configured_name());
}

membership exchange_membership(bootstrap& ranks, const rank_info& contribution) {
  membership_record own_record{};
  std::optional<error> failure =
      capture_error([&] { fill_record(own_record, contribution, ranks.own_fallback_address()); });
  if (contribution.failure) failure = contribution.failure;
  const auto ballots = gather_votes(ranks, own_record, failure);
  std::vector<membership_record> all;
  for (const auto& each : ballots) all.push_back(each.value);
  check_equal(
      all, "the version of Isthmus",
      [](const membership_record& record) { return std::tuple(record.version, record.abi); },
      [](const membership_record& record) {
        return fmt::format("{}.{}.{} (ABI {})", record.version >> 16, record.version >> 8 & 255,
                           record.version & 255, record.abi);
      },
      "start every rank with the same version of libisthmus.so");
  check_votes(ranks.rank(), ballots, failure, "joining the communicator failed");
  check_rules(ranks, all, contribution.rules);

  membership result;
  result.rank = ranks.rank();
  result.size = ranks.size();
  result.device = contribution.device;
  result.has_mixed_platforms = std::ranges::any_of(
      all, [&](const membership_record& record) { return record.platform != all[0].platform; });
  result.token = all[0].token;
  result.parent_rank_of = ranks.parent_ranks();
  result.parent_rank_of.resize(all.size(), -1);
  std::vector<std::string> nodes;
  std::vector<std::tuple<std::string, std::int64_t, std::uint64_t>> processes;
  for (const membership_record& record : all) {
    nodes.emplace_back(record.node);
    processes.emplace_back(record.node, record.pid, record.process);
    result.pid_of.push_back(record.pid);
  }
  result.node_of = number_by_first_appearance(nodes);
  result.process_of = number_by_first_appearance(processes);
  const auto own_index = static_cast<std::size_t>(result.rank);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const bool is_local = result.node_of[rank] == result.node_of[own_index];
    result.rank_processes.push_back(
        {is_local ? all[rank].pid : 0, is_local ? all[rank].start : 0, nullptr, all[rank].fallback});
  }
  ranks.watch_processes(result.rank_processes);
  result.nodes = 1 + *std::max_element(result.node_of.begin(), result.node_of.end());
  const auto count = [](const std::vector<int>& values, std::size_t end, int value) {
    return static_cast<int>(
        std::count(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(end), value));
  };
  result.node_rank = count(result.node_of, own_index, result.node_of[own_index]);
  result.node_size = count(result.node_of, result.node_of.size(), result.node_of[own_index]);
  result.process_size = count(result.process_of, result.process_of.size(), result.process_of[own_index]);
  return result;
}

}  // namespace isthmus
