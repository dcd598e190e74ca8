#include "frontends/nccl/communicators.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace isthmus::nccl_shim {

namespace {

std::uintptr_t key_of(nccl_comm comm) { return reinterpret_cast<std::uintptr_t>(comm); }

}  // namespace

// All communicators of the process.
class communicator_registry {
 public:
  static communicator_registry& get() {
    static auto* const only = new communicator_registry;
    return *only;
  }

  attached_communicator* find(nccl_comm comm) {
    if (attached_communicator* const known = m_handle_cache.find(key_of(comm))) [[likely]]
      return known;
    if (comm == nullptr) return nullptr;
    const std::lock_guard lock(m_mutex);
    const auto found = m_live.find(comm);
    if (found == m_live.end()) return nullptr;
    m_handle_cache.insert(key_of(comm), found->second);
    return found->second;
  }

  attached_communicator& add(nccl_comm comm, reason why) {
    const std::lock_guard lock(m_mutex);
    attached_communicator*& place = m_live[comm];
    if (place == nullptr) {
      if (m_spare.empty()) m_spare.push_back(new attached_communicator);
      place = m_spare.back();
      m_spare.pop_back();
    }
    place->reset(comm, why);
    return *place;
  }

  void remove(attached_communicator& ended) {
    const std::lock_guard lock(m_mutex);
    m_live.erase(ended.m_comm);
    ended.m_key.store(0, std::memory_order_release);
    m_spare.push_back(&ended);
  }

  // The lowest rank in the largest communicator is taken for the process' own in the report.
  void note_rank(int rank, int size) {
    const std::lock_guard lock(m_mutex);
    if (m_size == 0 && statistics().is_reporting()) std::atexit([] { get().report(); });
    if (size < m_size || (size == m_size && rank > m_rank)) return;
    m_rank = rank;
    m_size = size;
  }

 private:
  void report() {
    if (m_rank == 0) statistics().print(m_rank, m_size);
  }

  std::mutex m_mutex;
  std::map<nccl_comm, attached_communicator*> m_live;
  std::vector<attached_communicator*> m_spare;
  preload::handle_cache<attached_communicator> m_handle_cache;
  int m_rank = 0, m_size = 0;
};

std::uint64_t bytes_of(const isthmus_operation& operation) {
  return operation.count * isthmus_datatype_bytes(operation.datatype);
}

attached_communicator* attached_communicator::find(nccl_comm comm) { return communicator_registry::get().find(comm); }

attached_communicator& attached_communicator::add(nccl_comm comm, reason why) { return communicator_registry::get().add(comm, why); }

void attached_communicator::reset(nccl_comm comm, reason why) {
  m_comm = comm;
  m_pass_reason = why;
  m_rank = m_device = -1;
  m_size = 0;
  m_choices.fill({});
  m_key.store(key_of(comm), std::memory_order_release);
}

bool attached_communicator::query_properties() {
  const nccl_functions& nccl = real_nccl();
  if (nccl.comm_count(m_comm, &m_size) != nccl_success ||
      nccl.comm_user_rank(m_comm, &m_rank) != nccl_success ||
      nccl.comm_device(m_comm, &m_device) != nccl_success)
    return false;
  communicator_registry::get().note_rank(m_rank, m_size);
  return m_order.open(m_comm, m_rank, m_device);
}

void attached_communicator::attach(isthmus_communicator handle) {
  m_handle = handle;
  m_is_attached.store(true, std::memory_order_release);
}

void attached_communicator::detach() {
  m_pass_reason = reason::lost;
  m_is_attached.store(false, std::memory_order_release);
}

// NCCL's ends the waits of the rank that calls it. The others may have nothing to wait for, and end in their
// own way.
void attached_communicator::abort() {
  if (m_handle != nullptr) isthmus_communicator_abort_local(m_handle);
}

void attached_communicator::release() {
  m_is_attached.store(false, std::memory_order_release);
  {
    const std::lock_guard lock(m_mutex);
    if (m_handle != nullptr) isthmus_communicator_destroy(m_handle);
    m_handle = nullptr;
    m_order.close();
  }
  communicator_registry::get().remove(*this);
}

nccl_result attached_communicator::async_error() {
  const std::lock_guard lock(m_mutex);
  if (m_handle == nullptr || isthmus_communicator_async_error(m_handle) == ISTHMUS_SUCCESS) return nccl_success;
  return nccl_remote_error;
}

bool attached_communicator::wait_until_idle() const {
  constexpr int looks = 500;
  for (int i = 0; i < looks; ++i) {
    if (m_order.is_idle()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

attached_communicator::verdict attached_communicator::decide(const isthmus_operation& operation) {
  const std::uint64_t shape =
      static_cast<std::uint64_t>(operation.collective) | static_cast<std::uint64_t>(operation.datatype) << 8 |
      static_cast<std::uint64_t>(operation.op) << 16 | static_cast<std::uint64_t>(operation.root) << 32;
  const std::uint64_t mixed = (shape * 0x9e3779b97f4a7c15u) ^ (operation.count * 0xc2b2ae3d27d4eb4fu);
  choice& known = m_choices[(mixed >> 32) % m_choices.size()];
  if (known.shape != shape || known.count != operation.count) [[unlikely]]
    known = {shape, operation.count, ask(operation)};
  return known.what;
}

attached_communicator::verdict attached_communicator::ask(const isthmus_operation& operation) {
  char path[96] = "";
  if (isthmus_communicator_path(m_handle, &operation, path, sizeof path) != ISTHMUS_SUCCESS)
    return {false, reason::left_to_check, nullptr};
  if (*path == '\0') return {false, reason::no_backend, nullptr};
  for (const char* const nccl : {"nccl", "rccl"})
    if (std::strcmp(path, nccl) == 0) return {false, reason::rule, nullptr};
  return {true, reason::rule,
          statistics().is_reporting() ? &statistics().counter_of(static_cast<int>(operation.collective), path) : nullptr};
}

int attached_communicator::run(const isthmus_operation& operation, preload::call_counter* count) {
  const std::lock_guard lock(m_mutex);
  const preload::stopwatch time(statistics());
  if (const int code = m_order.before(operation.stream, carrier::isthmus); code != nccl_success) return code;
  const isthmus_status status = isthmus_enqueue(m_handle, &operation);
  if (status != ISTHMUS_SUCCESS) return handle_failure(status);
  m_order.after(operation.stream, carrier::isthmus);
  if (count != nullptr) count->add(bytes_of(operation), time.nanoseconds());
  return nccl_success;
}

// What is lost with a rank is NCCL's to tell: it gets this call and those after it, and waits, or reports, as
// it would have.
int attached_communicator::handle_failure(isthmus_status status) {
  switch (status) {
    case ISTHMUS_SUCCESS: return nccl_success;
    case ISTHMUS_ERROR_UNSUPPORTED: return pass_to_nccl;
    case ISTHMUS_ERROR_REMOTE:
    case ISTHMUS_ERROR_ABORTED:
    case ISTHMUS_ERROR_TIMEOUT:
    case ISTHMUS_ERROR_INVALID_USAGE: detach(); return pass_to_nccl;
    default: break;
  }
  isthmus_error_info failure;
  isthmus_last_error(&failure);
  statistics().warn_once((std::string("a call failed: ") + failure.message).c_str());
  return status == ISTHMUS_ERROR_INVALID_ARGUMENT ? nccl_invalid_argument : nccl_internal_error;
}

}  // namespace isthmus::nccl_shim
