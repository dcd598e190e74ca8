#include "frontends/mpi/message_store.hpp"

#include <cstring>
#include <exception>

#include "failure/wait.hpp"

namespace isthmus::mpi_shim {
namespace {

constexpr int tag = 0;
constexpr int status_failed = 2;     // result of isthmus_store_table::get
constexpr int status_timed_out = 1;  // result of isthmus_store_table::get

// A rank that failed sends this key, which is never requested.
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
      return status_failed;
    }
  };
  result.get = [](void* context, const char* key, void* value, std::size_t bytes, double timeout_s) {
    try {
      return self(context).get(key, value, bytes, timeout_s);
    } catch (const std::exception&) {
      return status_failed;
    }
  };
  return result;
}

int message_store::set(std::string_view key, const void* value, std::size_t bytes) {
  if (m_is_finished) return status_failed;
  const auto* const first = static_cast<const char*>(value);
  m_values.emplace(key, std::vector<char>(first, first + bytes));
  return send_to_all(key, value, bytes);
}

// Message format: length of the key, key, value.
int message_store::send_to_all(std::string_view key, const void* value, std::size_t bytes) {
  outgoing_message& outgoing = m_sent_messages.emplace_back();
  const auto key_bytes = static_cast<std::uint32_t>(key.size());
  outgoing.bytes.resize(sizeof key_bytes + key.size() + bytes);
  char* payload = outgoing.bytes.data();
  std::memcpy(payload, &key_bytes, sizeof key_bytes);
  if (!key.empty()) std::memcpy(payload + sizeof key_bytes, key.data(), key.size());
  if (bytes > 0) std::memcpy(payload + sizeof key_bytes + key.size(), value, bytes);
  for (int peer = 0; peer < m_size; ++peer) {
    if (peer == m_rank) continue;
    MPI_Request& request = outgoing.requests.emplace_back(MPI_REQUEST_NULL);
    if (PMPI_Isend(payload, static_cast<int>(outgoing.bytes.size()), MPI_BYTE, peer, tag, m_comm, &request) !=
        MPI_SUCCESS)
      return status_failed;
  }
  return 0;
}

int message_store::get(const std::string& key, void* value, std::size_t bytes, double timeout_s) {
  if (m_is_finished) return status_timed_out;
  auto entry = m_values.end();
  bool has_failed = false;
  const auto has_arrived = [&] {
    entry = m_values.find(key);
    has_failed = entry == m_values.end() && (m_has_failed_peer || receive_pending() != 0);
    return entry != m_values.end() || has_failed;
  };
  if (!poll_until(has_arrived, deadline_after(timeout_s), yielding)) return status_timed_out;
  if (has_failed || entry->second.size() != bytes) return status_failed;
  if (bytes > 0) std::memcpy(value, entry->second.data(), bytes);
  return 0;
}

// Receives all messages that have arrived. Does not block.
int message_store::receive_pending() {
  while (true) {
    int has_message = 0, bytes = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    if (PMPI_Improbe(MPI_ANY_SOURCE, tag, m_comm, &has_message, &handle, &status) != MPI_SUCCESS)
      return status_failed;
    if (!has_message) return 0;
    PMPI_Get_count(&status, MPI_BYTE, &bytes);
    std::vector<char> received(static_cast<std::size_t>(bytes));
    if (PMPI_Mrecv(received.data(), bytes, MPI_BYTE, &handle, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return status_failed;
    ++m_received_count;
    std::uint32_t key_bytes = 0;
    if (received.size() < sizeof key_bytes) return status_failed;
    std::memcpy(&key_bytes, received.data(), sizeof key_bytes);
    if (received.size() - sizeof key_bytes < key_bytes) return status_failed;
    const auto key = received.begin() + sizeof key_bytes;
    if (key_bytes == 0)
      m_has_failed_peer = true;
    else
      m_values.emplace(std::string(key, key + key_bytes), std::vector<char>(key + key_bytes, received.end()));
  }
}

bool message_store::finish(bool is_successful) {
  if (!is_successful && send_to_all(failure_key, nullptr, 0) != 0) m_has_failed_peer = true;
  m_is_finished = true;
  const std::uint64_t own_state[] = {m_sent_messages.size(), is_successful ? 1u : 0u};
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(m_size));
  if (PMPI_Allgather(own_state, 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, m_comm) != MPI_SUCCESS)
    return false;
  std::uint64_t expected = 0;
  bool is_successful_everywhere = true;
  for (int rank = 0; rank < m_size; ++rank) {
    const auto index = 2 * static_cast<std::size_t>(rank);
    if (rank != m_rank) expected += all[index];
    is_successful_everywhere = is_successful_everywhere && all[index + 1] != 0;
  }
  while (m_received_count < expected)
    if (receive_pending() != 0) return false;
  for (outgoing_message& message : m_sent_messages)
    PMPI_Waitall(static_cast<int>(message.requests.size()), message.requests.data(), MPI_STATUSES_IGNORE);
  m_sent_messages.clear();
  m_values.clear();
  return is_successful_everywhere;
}

}  // namespace isthmus::mpi_shim
