#include "frontends/mpi/message_store.hpp"

#include <sched.h>

#include <chrono>
#include <cstring>
#include <exception>

namespace isthmus::mpi_shim {
namespace {

constexpr int tag = 0;
constexpr int failed = 2;     // of isthmus_store_table::get
constexpr int timed_out = 1;  // likewise

// A rank that failed sets this key, which nobody asks for.
constexpr std::string_view failure_key = "";

message_store& self(void* context) { return *static_cast<message_store*>(context); }

}  // namespace

isthmus_store_table message_store::table() {
  isthmus_store_table result{};
  result.struct_bytes = sizeof result;
  result.context = this;
  result.set = [](void* context, const char* key, const void* value, std::size_t bytes) {
    try {
      return self(context).set(key, value, bytes);
    } catch (const std::exception&) {
      return failed;
    }
  };
  result.get = [](void* context, const char* key, void* value, std::size_t bytes, double timeout_s) {
    try {
      return self(context).get(key, value, bytes, timeout_s);
    } catch (const std::exception&) {
      return failed;
    }
  };
  return result;
}

int message_store::set(std::string_view key, const void* value, std::size_t bytes) {
  if (m_has_ended) return failed;
  const auto* const first = static_cast<const char*>(value);
  m_values.emplace(key, std::vector<char>(first, first + bytes));
  return tell_all(key, value, bytes);
}

// One message: the length of the key, the key, the value.
int message_store::tell_all(std::string_view key, const void* value, std::size_t bytes) {
  message& made = m_sent.emplace_back();
  const auto key_bytes = static_cast<std::uint32_t>(key.size());
  made.bytes.resize(sizeof key_bytes + key.size() + bytes);
  char* at = made.bytes.data();
  std::memcpy(at, &key_bytes, sizeof key_bytes);
  if (!key.empty()) std::memcpy(at + sizeof key_bytes, key.data(), key.size());
  if (bytes > 0) std::memcpy(at + sizeof key_bytes + key.size(), value, bytes);
  for (int peer = 0; peer < m_size; ++peer) {
    if (peer == m_rank) continue;
    MPI_Request& request = made.requests.emplace_back(MPI_REQUEST_NULL);
    if (PMPI_Isend(at, static_cast<int>(made.bytes.size()), MPI_BYTE, peer, tag, m_comm, &request) !=
        MPI_SUCCESS)
      return failed;
  }
  return 0;
}

int message_store::get(const std::string& key, void* value, std::size_t bytes, double timeout_s) {
  if (m_has_ended) return timed_out;
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  while (true) {
    if (const auto found = m_values.find(key); found != m_values.end()) {
      if (found->second.size() != bytes) return failed;
      if (bytes > 0) std::memcpy(value, found->second.data(), bytes);
      return 0;
    }
    if (m_peer_failed || receive() != 0) return failed;
    if (std::chrono::duration<double>(clock::now() - begin).count() > timeout_s) return timed_out;
    ::sched_yield();
  }
}

// What has come, if anything.
int message_store::receive() {
  while (true) {
    int has_come = 0, bytes = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    if (PMPI_Improbe(MPI_ANY_SOURCE, tag, m_comm, &has_come, &handle, &status) != MPI_SUCCESS) return failed;
    if (!has_come) return 0;
    PMPI_Get_count(&status, MPI_BYTE, &bytes);
    std::vector<char> text(static_cast<std::size_t>(bytes));
    if (PMPI_Mrecv(text.data(), bytes, MPI_BYTE, &handle, MPI_STATUS_IGNORE) != MPI_SUCCESS) return failed;
    ++m_received;
    std::uint32_t key_bytes = 0;
    if (text.size() < sizeof key_bytes) return failed;
    std::memcpy(&key_bytes, text.data(), sizeof key_bytes);
    if (text.size() - sizeof key_bytes < key_bytes) return failed;
    const auto key = text.begin() + sizeof key_bytes;
    if (key_bytes == 0)
      m_peer_failed = true;
    else
      m_values.emplace(std::string(key, key + key_bytes), std::vector<char>(key + key_bytes, text.end()));
  }
}

bool message_store::end(bool succeeded) {
  if (!succeeded && tell_all(failure_key, nullptr, 0) != 0) m_peer_failed = true;
  m_has_ended = true;
  const std::uint64_t mine[] = {m_sent.size(), succeeded ? 1u : 0u};
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(m_size));
  if (PMPI_Allgather(mine, 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, m_comm) != MPI_SUCCESS) return false;
  std::uint64_t expected = 0;
  bool all_succeeded = true;
  for (int rank = 0; rank < m_size; ++rank) {
    const auto at = 2 * static_cast<std::size_t>(rank);
    if (rank != m_rank) expected += all[at];
    all_succeeded = all_succeeded && all[at + 1] != 0;
  }
  while (m_received < expected)
    if (receive() != 0) return false;
  for (message& each : m_sent)
    PMPI_Waitall(static_cast<int>(each.requests.size()), each.requests.data(), MPI_STATUSES_IGNORE);
  m_sent.clear();
  m_values.clear();
  return all_succeeded;
}

}  // namespace isthmus::mpi_shim
