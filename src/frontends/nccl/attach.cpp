#include "frontends/nccl/attach.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace isthmus::nccl_shim {
namespace {

// The longest that the core takes: NCCL waits for ever, so its calls do.
constexpr double no_timeout_s = 1e9;

// How long ranks wait for those that may never come, since they run without this library or elsewhere.
double attach_timeout_s() {
  const char* const text = std::getenv("ISTHMUS_NCCL_ATTACH_S");
  const double value = text == nullptr ? 0 : std::strtod(text, nullptr);
  return value > 0 ? value : 10;
}

isthmus_communicator_options options_for(int device) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.device = {ISTHMUS_PLATFORM_CUDA, device};
  options.timeout_s = no_timeout_s;
  options.setup_timeout_s = attach_timeout_s();
  options.external_backends = external_backend_names;
  return options;
}

// ---- the id of Isthmus in the one of NCCL -----------------------------------------------------------------
// Most of its 128 bytes are zeros in one piece, behind the short address; without them it fits behind NCCL's.
// At the end of all, where the zeros were, how many, and a magic number.
struct trailer {
  unsigned char zeros_at, zeros;
  char magic[4];
};
constexpr char magic[4] = {'I', 'S', 'N', '1'};
constexpr std::size_t id_bytes = sizeof(isthmus_unique_id);
static_assert(id_bytes == sizeof(nccl_unique_id));

std::pair<std::size_t, std::size_t> longest_zeros(const unsigned char* bytes) {
  std::pair<std::size_t, std::size_t> longest_run{0, 0};  // where, how many
  for (std::size_t begin = 0; begin < id_bytes; ++begin) {
    std::size_t end = begin;
    while (end < id_bytes && bytes[end] == 0) ++end;
    if (end - begin > longest_run.second) longest_run = {begin, end - begin};
    begin = std::max(begin, end);
  }
  return longest_run;
}

bool read_mark(const nccl_unique_id& from, isthmus_unique_id& id) {
  trailer last;
  std::memcpy(&last, from.internal + id_bytes - sizeof last, sizeof last);
  const std::size_t kept = id_bytes - last.zeros;
  if (std::memcmp(last.magic, magic, sizeof magic) != 0 || last.zeros_at + last.zeros > id_bytes ||
      kept + sizeof last > id_bytes)
    return false;
  const char* const text = from.internal + id_bytes - sizeof last - kept;
  std::memset(&id, 0, sizeof id);
  std::memcpy(id.bytes, text, last.zeros_at);
  std::memcpy(id.bytes + last.zeros_at + last.zeros, text + last.zeros_at, kept - last.zeros_at);
  return true;
}

// ---- one rank's part -------------------------------------------------------------------------------------

void warn_of(const attached_communicator& rank, const std::string& reason) {
  if (rank.rank() == 0)
    statistics().warn_once(
        ("all calls of a communicator of " + std::to_string(rank.size()) + " ranks go to NCCL: " + reason)
            .c_str());
}

std::string last_failure() {
  isthmus_error_info failure;
  isthmus_last_error(&failure);
  return failure.message;
}

void settle(attached_communicator& rank, isthmus_status status, isthmus_communicator made) {
  if (rank.size() == 1) {  // a part of a split
    rank.set_pass_reason(pass_reason_code::one_rank);
    isthmus_communicator_destroy(made);
    return;
  }
  if (status == ISTHMUS_SUCCESS && made != nullptr)
    rank.attach(made);
  else
    warn_of(rank, status == ISTHMUS_SUCCESS ? reason_text(rank.pass_reason()) : last_failure());
}

void meet(const creation& wanted, attached_communicator& rank) {
  const isthmus_communicator_options options = options_for(rank.device());
  isthmus_communicator made = nullptr;
  const isthmus_status status =
      isthmus_communicator_create(&wanted.id, rank.rank(), rank.size(), &options, &made);
  settle(rank, status, made);
}

// The parent's ranks all come, those without a part, too.
void split(const creation& wanted, attached_communicator* rank) {
  isthmus_communicator made = nullptr;
  const isthmus_status status = isthmus_communicator_split(
      wanted.parent->handle(), std::max(wanted.color, ISTHMUS_NO_COLOR), wanted.key, &made);
  if (rank != nullptr) settle(*rank, status, made);
}

// Why there is nothing to attach; not_attached: there is.
pass_reason_code obstacle_of(const creation& wanted, const attached_communicator& rank) {
  if (rank.size() == 1) return pass_reason_code::one_rank;
  return wanted.has_id ? pass_reason_code::not_attached : pass_reason_code::no_id;
}

void attach(const creation& wanted) {
  nccl_comm const comm = *wanted.made;
  attached_communicator* const rank = comm == nullptr ? nullptr : &attached_communicator::add(comm, pass_reason_code::not_attached);
  if (rank != nullptr && !wanted.is_blocking) return rank->set_pass_reason(pass_reason_code::non_blocking);
  if (rank != nullptr && !rank->query_properties()) return;
  const bool has_parent = wanted.parent != nullptr && wanted.parent->is_attached();
  if (wanted.what == creation::kind::split) {
    if (has_parent) return split(wanted, rank);
    if (rank != nullptr && wanted.parent != nullptr) rank->set_pass_reason(wanted.parent->pass_reason());
    return;
  }
  if (rank == nullptr) return;
  const pass_reason_code reason = obstacle_of(wanted, *rank);
  rank->set_pass_reason(reason);
  if (reason == pass_reason_code::not_attached)
    meet(wanted, *rank);
  else if (reason != pass_reason_code::one_rank)
    warn_of(*rank, reason_text(reason));
}

bool is_blocking(const nccl_config* config) { return config == nullptr || config->blocking != 0; }

}  // namespace

void mark(nccl_unique_id& id) {
  isthmus_unique_id isthmus_id;
  if (isthmus_unique_id_create(nullptr, &isthmus_id) != ISTHMUS_SUCCESS) return;
  const auto [zeros_at, zeros] = longest_zeros(isthmus_id.bytes);
  const trailer last = {static_cast<unsigned char>(zeros_at),
                        static_cast<unsigned char>(zeros),
                        {magic[0], magic[1], magic[2], magic[3]}};
  const std::size_t kept = id_bytes - zeros, begin = id_bytes - sizeof last - kept;
  if (kept + sizeof last > id_bytes) return;
  if (!std::all_of(id.internal + begin, id.internal + id_bytes, [](char each) { return each == 0; })) return;
  std::memcpy(id.internal + begin, isthmus_id.bytes, zeros_at);
  std::memcpy(id.internal + begin + zeros_at, isthmus_id.bytes + zeros_at + zeros, kept - zeros_at);
  std::memcpy(id.internal + id_bytes - sizeof last, &last, sizeof last);
}

creation meeting(nccl_comm* made, const nccl_unique_id* id, const nccl_config* config) {
  creation wanted{creation::kind::meet, made};
  wanted.has_id = id != nullptr && read_mark(*id, wanted.id);
  wanted.is_blocking = is_blocking(config);
  return wanted;
}

creation splitting(nccl_comm* made, nccl_comm parent, int color, int key, const nccl_config* config) {
  creation wanted{creation::kind::split, made};
  wanted.parent = attached_communicator::find(parent);
  wanted.color = color;
  wanted.key = key;
  wanted.is_blocking = is_blocking(config);
  return wanted;
}

// Several of one process meet each other, so each has a thread.
void attach_all(const creation* creations, std::size_t n) {
  if (n == 1) return attach(creations[0]);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < n; ++i) threads.emplace_back([&, i] { attach(creations[i]); });
}

void attach_whole(nccl_comm* made, int n) {
  std::vector<attached_communicator*> ranks;
  std::vector<isthmus_device> devices;
  for (int i = 0; i < n; ++i) {
    ranks.push_back(&attached_communicator::add(made[i], n == 1 ? pass_reason_code::one_rank : pass_reason_code::not_attached));
    if (!ranks.back()->query_properties()) return;
    devices.push_back({ISTHMUS_PLATFORM_CUDA, ranks.back()->device()});
  }
  if (n == 1) return;
  const isthmus_communicator_options options = options_for(0);
  std::vector<isthmus_communicator> all(static_cast<std::size_t>(n));
  const isthmus_status status = isthmus_communicator_create_all(n, devices.data(), &options, all.data());
  for (std::size_t i = 0; i < all.size(); ++i) settle(*ranks[i], status, all[i]);
}

}  // namespace isthmus::nccl_shim
