#include "frontends/nccl/attached_communicator.hpp"

#include <isthmus/tools.h>

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

// All NCCL communicators of the process.
class communicator_registry {
 public:
  static communicator_registry& get() {
    static auto* const instance = new communicator_registry;
    return *instance;
  }

  attached_communicator* find(nccl_comm comm) {
    if (attached_communicator* const entry = m_handle_cache.find(key_of(comm))) [[likely]]
      return entry;
    if (comm == nullptr) return nullptr;
    const std::lock_guard lock(m_mutex);
    const auto position = m_live.find(comm);
    if (position == m_live.end()) return nullptr;
    m_handle_cache.insert(key_of(comm), position->second);
    return position->second;
  }

  attached_communicator& add(nccl_comm comm, pass_reason_code reason) {
    const std::lock_guard lock(m_mutex);
    attached_communicator*& slot = m_live[comm];
    if (slot == nullptr) {
      if (m_spare.empty()) m_spare.push_back(new attached_communicator);
      slot = m_spare.back();
      m_spare.pop_back();
    }
    slot->reset(comm, reason);
    return *slot;
  }

  void remove(attached_communicator& communicator) {
    const std::lock_guard lock(m_mutex);
    m_live.erase(communicator.m_comm);
    communicator.m_key.store(0, std::memory_order_release);
    m_spare.push_back(&communicator);
  }

  // The report uses the lowest rank in the largest communicator as the rank of the process.
  void record_rank(int rank, int size) {
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

attached_communicator* attached_communicator::find(nccl_comm comm) {
  return communicator_registry::get().find(comm);
}

attached_communicator& attached_communicator::add(nccl_comm comm, pass_reason_code reason) {
  return communicator_registry::get().add(comm, reason);
}

void attached_communicator::reset(nccl_comm comm, pass_reason_code reason) {
  m_comm = comm;
  m_pass_reason = reason;
  m_rank = m_device = -1;
  m_size = 0;
  m_decisions.fill({});
  m_key.store(key_of(comm), std::memory_order_release);
}

bool attached_communicator::query_properties() {
  const nccl_functions& nccl = real_nccl();
  if (nccl.comm_count(m_comm, &m_size) != nccl_success ||
      nccl.comm_user_rank(m_comm, &m_rank) != nccl_success ||
      nccl.comm_device(m_comm, &m_device) != nccl_success)
    return false;
  communicator_registry::get().record_rank(m_rank, m_size);
  return m_order.open(m_comm, m_rank, m_device);
}

void attached_communicator::attach(isthmus_communicator handle) {
  m_handle = handle;
  m_is_attached.store(true, std::memory_order_release);
}

void attached_communicator::detach() {
  m_pass_reason = pass_reason_code::rank_lost;
  m_is_attached.store(false, std::memory_order_release);
}

// Like ncclCommAbort, this ends only the waits of the calling rank. Peers may not be waiting, and they abort
// their communicators themselves.
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
  constexpr int max_polls = 500;
  for (int i = 0; i < max_polls; ++i) {
    if (m_order.is_idle()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

attached_communicator::call_decision attached_communicator::decide(const isthmus_operation& operation) {
  const std::uint64_t signature =
      static_cast<std::uint64_t>(operation.collective) | static_cast<std::uint64_t>(operation.datatype) << 8 |
      static_cast<std::uint64_t>(operation.op) << 16 | static_cast<std::uint64_t>(operation.root) << 32;
  const std::uint64_t hash = (signature * 0x9e3779b97f4a7c15u) ^ (operation.count * 0xc2b2ae3d27d4eb4fu);
  cached_decision& entry = m_decisions[(hash >> 32) % m_decisions.size()];
  if (entry.signature != signature || entry.count != operation.count) [[unlikely]]
    entry = {signature, operation.count, query_decision(operation)};
  return entry.decision;
}

attached_communicator::call_decision attached_communicator::query_decision(const isthmus_operation& operation) {
  char path[96] = "";
  if (isthmus_communicator_path(m_handle, &operation, path, sizeof path) != ISTHMUS_SUCCESS)
    return {false, pass_reason_code::checked_by_nccl, nullptr};
  if (*path == '\0') return {false, pass_reason_code::no_backend, nullptr};
  for (const char* const nccl : {"nccl", "rccl"})
    if (std::strcmp(path, nccl) == 0) return {false, pass_reason_code::rule, nullptr};
  return {true, pass_reason_code::rule,
          statistics().is_reporting() ? &statistics().counter_of(static_cast<int>(operation.collective), path)
                                      : nullptr};
}

int attached_communicator::execute(const isthmus_operation& operation, preload::call_counter* counter) {
  const std::lock_guard lock(m_mutex);
  const preload::stopwatch timer(statistics());
  if (const int code = m_order.begin_call(operation.stream, call_owner::isthmus); code != nccl_success)
    return code;
  const isthmus_status status = isthmus_enqueue(m_handle, &operation);
  if (status != ISTHMUS_SUCCESS) return handle_failure(status);
  m_order.end_call(operation.stream, call_owner::isthmus);
  if (counter != nullptr) counter->add(bytes_of(operation), timer.nanoseconds());
  return nccl_success;
}

// After the loss of a rank, NCCL determines what the program sees: it executes this call and all later calls,
// and waits or reports an error as it would without Isthmus.
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
  statistics().warn_once((std::string("an NCCL call handled by Isthmus failed: ") + failure.message).c_str());
  return status == ISTHMUS_ERROR_INVALID_ARGUMENT ? nccl_invalid_argument : nccl_internal_error;
}

}  // namespace isthmus::nccl_shim
