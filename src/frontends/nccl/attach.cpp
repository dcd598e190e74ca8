#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/trust.hpp"
#include "frontends/nccl/engine.hpp"

namespace isthmus::nccl_shim {
namespace {

// Time for which ranks wait for peers that may never attach because they run without this library
// or on another machine.
double attach_timeout_s() {
  const char* const text = environment_variable("ISTHMUS_NCCL_ATTACH_S");
  const double value = text == nullptr ? 0 : std::strtod(text, nullptr);
  return value > 0 ? value : 10;
}

isthmus_communicator_options options_for(int device) {
  isthmus_communicator_options options = preload::attach_options(external_backend_names);
  options.device = {ISTHMUS_PLATFORM_CUDA, device};
  options.setup_timeout_s = attach_timeout_s();
  return options;
}

// ---- the Isthmus id inside ncclUniqueId ----
// The 128 bytes of an Isthmus id contain one long run of zeros, after the short address. Without that
// run, the id fits into the unused end of NCCL's id. A trailer follows it: position and length of the
// run, and a magic number.
struct trailer {
  unsigned char zero_begin, zero_count;
  char magic[4];
};
constexpr char magic[4] = {'I', 'S', 'N', '1'};
constexpr std::size_t id_bytes = sizeof(isthmus_unique_id);
static_assert(id_bytes == sizeof(native_unique_id));

std::pair<std::size_t, std::size_t> longest_zero_run(const unsigned char* bytes) {
  std::pair<std::size_t, std::size_t> longest_run{0, 0};  // begin, length
  for (std::size_t begin = 0; begin < id_bytes; ++begin) {
    std::size_t end = begin;
    while (end < id_bytes && bytes[end] == 0) ++end;
    if (end - begin > longest_run.second) longest_run = {begin, end - begin};
    begin = std::max(begin, end);
  }
  return longest_run;
}

bool extract_id(const native_unique_id& from, isthmus_unique_id& id) {
  trailer last;
  std::memcpy(&last, from.internal + id_bytes - sizeof last, sizeof last);
  const std::size_t stored_bytes = id_bytes - last.zero_count;
  if (std::memcmp(last.magic, magic, sizeof magic) != 0 || last.zero_begin + last.zero_count > id_bytes ||
      stored_bytes + sizeof last > id_bytes)
    return false;
  const char* const text = from.internal + id_bytes - sizeof last - stored_bytes;
  std::memset(&id, 0, sizeof id);
  std::memcpy(id.bytes, text, last.zero_begin);
  std::memcpy(id.bytes + last.zero_begin + last.zero_count, text + last.zero_begin,
              stored_bytes - last.zero_begin);
  return true;
}

// ---- attaching one rank ----

void warn_not_attached(const attached_communicator& communicator, const std::string& reason) {
  if (communicator.rank() == 0)
    statistics().warn_once(("all calls of a communicator with " + std::to_string(communicator.size()) +
                            " ranks are passed through to NCCL: " + reason)
                               .c_str());
}

// `handle`: NULL if the creation failed in the calling thread.
void finish_attach(attached_communicator& communicator, isthmus_communicator handle) {
  if (communicator.size() == 1) {  // a subcommunicator of one rank
    communicator.set_pass_reason(pass_reason_code::one_rank);
    isthmus_communicator_destroy(handle);
    return;
  }
  if (handle != nullptr)
    communicator.attach(handle);
  else
    warn_not_attached(communicator, preload::last_error_message());
}

void attach_by_id(const pending_communicator& pending, attached_communicator& communicator) {
  const isthmus_communicator_options options = options_for(communicator.device());
  isthmus_communicator handle = nullptr;
  isthmus_communicator_create(&pending.id, communicator.rank(), communicator.size(), &options, &handle);
  finish_attach(communicator, handle);
}

// All ranks of the parent participate, including those without a subcommunicator.
void attach_split(const pending_communicator& pending, attached_communicator* communicator) {
  isthmus_communicator handle = nullptr;
  isthmus_communicator_split(pending.parent->handle(), std::max(pending.color, ISTHMUS_NO_COLOR), pending.key,
                             &handle);
  if (communicator != nullptr) finish_attach(*communicator, handle);
}

// Returns the reason why the communicator cannot attach, or not_attached if it can.
pass_reason_code find_attach_failure(const pending_communicator& pending,
                                     const attached_communicator& communicator) {
  if (communicator.size() == 1) return pass_reason_code::one_rank;
  return pending.has_id ? pass_reason_code::not_attached : pass_reason_code::no_id;
}

void attach(const pending_communicator& pending) {
  native_comm const comm = *pending.handle;
  attached_communicator* const communicator =
      comm == nullptr ? nullptr : &attached_communicator::add(comm, pass_reason_code::not_attached);
  if (!pending.is_blocking) {  // on all ranks, including those without a subcommunicator
    if (communicator != nullptr) communicator->set_pass_reason(pass_reason_code::non_blocking);
    return;
  }
  if (communicator != nullptr && !communicator->query_properties()) return;
  const bool has_parent = pending.parent != nullptr && pending.parent->is_attached();
  if (pending.kind == pending_communicator::creation_kind::split) {
    if (has_parent) return attach_split(pending, communicator);
    if (communicator != nullptr && pending.parent != nullptr)
      communicator->set_pass_reason(pending.parent->pass_reason());
    return;
  }
  if (communicator == nullptr) return;
  const pass_reason_code reason = find_attach_failure(pending, *communicator);
  communicator->set_pass_reason(reason);
  if (reason == pass_reason_code::not_attached)
    attach_by_id(pending, *communicator);
  else if (reason != pass_reason_code::one_rank)
    warn_not_attached(*communicator, reason_text(reason));
}

bool is_blocking(const native_config* config) { return config == nullptr || config->blocking != 0; }

}  // namespace

void embed_id(native_unique_id& id) {
  isthmus_unique_id isthmus_id;
  if (isthmus_unique_id_create(nullptr, &isthmus_id) != ISTHMUS_SUCCESS) return;
  const auto [zero_begin, zero_count] = longest_zero_run(isthmus_id.bytes);
  const trailer last = {static_cast<unsigned char>(zero_begin),
                        static_cast<unsigned char>(zero_count),
                        {magic[0], magic[1], magic[2], magic[3]}};
  const std::size_t stored_bytes = id_bytes - zero_count, begin = id_bytes - sizeof last - stored_bytes;
  if (stored_bytes + sizeof last > id_bytes) return;
  if (!std::all_of(id.internal + begin, id.internal + id_bytes, [](char each) { return each == 0; })) return;
  std::memcpy(id.internal + begin, isthmus_id.bytes, zero_begin);
  std::memcpy(id.internal + begin + zero_begin, isthmus_id.bytes + zero_begin + zero_count,
              stored_bytes - zero_begin);
  std::memcpy(id.internal + id_bytes - sizeof last, &last, sizeof last);
}

pending_communicator describe_init(native_comm* handle, const native_unique_id* id,
                                   const native_config* config) {
  pending_communicator pending{pending_communicator::creation_kind::init, handle};
  pending.has_id = id != nullptr && extract_id(*id, pending.id);
  pending.is_blocking = is_blocking(config);
  return pending;
}

pending_communicator describe_split(native_comm* handle, native_comm parent, int color, int key,
                                    const native_config* config) {
  pending_communicator pending{pending_communicator::creation_kind::split, handle};
  pending.parent = attached_communicator::find(parent);
  pending.color = color;
  pending.key = key;
  pending.is_blocking = is_blocking(config);
  return pending;
}

// Each communicator gets its own thread, because communicators of one process wait for each other.
void attach_all(const pending_communicator* creations, std::size_t n) {
  if (n == 1) return attach(creations[0]);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < n; ++i) threads.emplace_back([&, i] { attach(creations[i]); });
}

void attach_init_all(native_comm* handle, int n) {
  std::vector<attached_communicator*> ranks;
  std::vector<isthmus_device> devices;
  for (int i = 0; i < n; ++i) {
    ranks.push_back(&attached_communicator::add(
        handle[i], n == 1 ? pass_reason_code::one_rank : pass_reason_code::not_attached));
    if (!ranks.back()->query_properties()) return;
    devices.push_back({ISTHMUS_PLATFORM_CUDA, ranks.back()->device()});
  }
  if (n == 1) return;
  const isthmus_communicator_options options = options_for(0);
  std::vector<isthmus_communicator> all(static_cast<std::size_t>(n));
  isthmus_communicator_create_all(n, devices.data(), &options, all.data());
  for (std::size_t i = 0; i < all.size(); ++i) finish_attach(*ranks[i], all[i]);
}

}  // namespace isthmus::nccl_shim
