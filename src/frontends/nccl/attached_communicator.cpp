#include "frontends/nccl/attached_communicator.hpp"

#include <isthmus/tools.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "failure/wait.hpp"

namespace isthmus::nccl_shim {

namespace {

std::uintptr_t key_of(native_comm comm) { return reinterpret_cast<std::uintptr_t>(comm); }

constexpr std::array reason_texts = {NCCL_PASS_REASONS(ISTHMUS_PASS_REASON_TEXT)};

constexpr auto call_names = [] {
  std::array<const char*, ISTHMUS_COLLECTIVE_COUNT> names{};
#define NATIVE_COLLECTIVE(Name, member, requirement, COLLECTIVE, shape) \
  names[ISTHMUS_##COLLECTIVE] = "nccl" #Name;
#define NATIVE_MESSAGE NATIVE_COLLECTIVE
#include "nccl/functions.def"
  return names;
}();

constexpr preload::statistics_labels labels = {"nccl",
                                               "NCCL",
                                               "ISTHMUS_NCCL_REPORT",
                                               call_names.data(),
                                               ISTHMUS_COLLECTIVE_COUNT,
                                               reason_texts.data(),
                                               static_cast<int>(reason_texts.size())};

}  // namespace

// All NCCL communicators of the process.
class communicator_registry {
 public:
  static communicator_registry& get() {
    static auto* const instance = new communicator_registry;
    return *instance;
  }

  attached_communicator* find(native_comm comm) {
    if (attached_communicator* const entry = m_pool.find_cached(key_of(comm))) [[likely]]
      return entry;
    if (comm == nullptr) return nullptr;
    const std::lock_guard lock(m_mutex);
    const auto position = m_live.find(comm);
    if (position == m_live.end()) return nullptr;
    m_pool.cache(key_of(comm), position->second);
    return position->second;
  }

  attached_communicator& add(native_comm comm, pass_reason_code reason) {
    const std::lock_guard lock(m_mutex);
    attached_communicator*& slot = m_live[comm];
    if (slot == nullptr) slot = m_pool.acquire();
    slot->reset(comm, reason);
    return *slot;
  }

  void remove(attached_communicator& communicator) {
    const std::lock_guard lock(m_mutex);
    m_live.erase(communicator.m_comm);
    communicator.retract();
    m_pool.recycle(&communicator);
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
  std::map<native_comm, attached_communicator*> m_live;
  preload::communicator_pool<attached_communicator> m_pool;
  int m_rank = 0, m_size = 0;
};

preload::call_statistics& statistics() {
  static auto* const instance = new preload::call_statistics(labels);
  return *instance;
}

const char* reason_text(pass_reason_code reason) { return reason_texts[static_cast<std::size_t>(reason)]; }

std::uint64_t bytes_of(const isthmus_operation& operation) {
  return operation.count * isthmus_datatype_bytes(operation.datatype);
}

attached_communicator* attached_communicator::find(native_comm comm) {
  return communicator_registry::get().find(comm);
}

attached_communicator& attached_communicator::add(native_comm comm, pass_reason_code reason) {
  return communicator_registry::get().add(comm, reason);
}

void attached_communicator::reset(native_comm comm, pass_reason_code reason) {
  m_comm = comm;
  m_pass_reason = reason;
  m_rank = m_device = -1;
  m_size = 0;
  m_decisions.clear();
  publish(key_of(comm));
}

bool attached_communicator::query_properties() {
  const native_functions& nccl = real_nccl();
  if (nccl.comm_count(m_comm, &m_size) != native_success ||
      nccl.comm_user_rank(m_comm, &m_rank) != native_success ||
      nccl.comm_device(m_comm, &m_device) != native_success)
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

native_result attached_communicator::async_error() {
  const std::lock_guard lock(m_mutex);
  if (m_handle == nullptr || isthmus_communicator_async_error(m_handle) == ISTHMUS_SUCCESS)
    return native_success;
  return native_remote_error;
}

bool attached_communicator::wait_until_idle() const {
  return poll_until([&] { return m_order.is_idle(); }, deadline_after(std::chrono::milliseconds(500)),
                    std::chrono::milliseconds(1));
}

attached_communicator::call_decision attached_communicator::query_decision(const isthmus_operation& operation) {
  const std::string path = preload::select_path(m_handle, operation);
  if (path.empty()) return {false, pass_reason_code::no_backend, nullptr};
  if (path == "nccl" || path == "rccl") return {false, pass_reason_code::rule, nullptr};
  return {true, pass_reason_code::rule,
          statistics().is_reporting()
              ? &statistics().counter_of(static_cast<int>(operation.collective), path.c_str())
              : nullptr};
}

int attached_communicator::execute(const isthmus_operation& operation, preload::call_counter* counter) {
  const std::lock_guard lock(m_mutex);
  const preload::stopwatch timer(statistics());
  if (const int code = m_order.begin_call(operation.stream, call_owner::isthmus); code != native_success)
    return code;
  const isthmus_status status = isthmus_enqueue(m_handle, &operation);
  if (status != ISTHMUS_SUCCESS) return handle_failure(status);
  m_order.end_call(operation.stream, call_owner::isthmus);
  if (counter != nullptr) counter->add(bytes_of(operation), timer.nanoseconds());
  return native_success;
}

int attached_communicator::handle_failure(isthmus_status status) {
  if (status == ISTHMUS_SUCCESS) return native_success;
  if (preload::is_rank_lost(status)) detach();
  if (preload::is_rank_lost(status) || status == ISTHMUS_ERROR_UNSUPPORTED) return pass_to_nccl;
  statistics().warn_once(("an NCCL call handled by Isthmus failed: " + preload::last_error_message()).c_str());
  return status == ISTHMUS_ERROR_INVALID_ARGUMENT ? native_invalid_argument : native_internal_error;
}

}  // namespace isthmus::nccl_shim
