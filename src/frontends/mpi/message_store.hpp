// A temporary key-value store on top of MPI messages. The ranks of an MPI communicator use it to create
// an Isthmus communicator.
// Lifetime: until that communicator exists; no MPI objects remain afterwards.
#pragma once

#include <isthmus/isthmus.h>
#include <mpi.h>

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::mpi_shim {

class message_store {
 public:
  // The communicator must be private to the store and use MPI_ERRORS_RETURN.
  message_store(MPI_Comm comm, int rank, int size) : m_comm(comm), m_rank(rank), m_size(size) {}
  message_store(const message_store&) = delete;
  message_store& operator=(const message_store&) = delete;

  // For isthmus_communicator_create_store. Its functions fail after finish().
  isthmus_store_table table();

  // Collective. Returns whether all ranks were successful. No message is in flight afterwards.
  bool finish(bool is_successful);

 private:
  struct outgoing_message {
    std::vector<char> bytes;
    std::vector<MPI_Request> requests;
  };

  int set(std::string_view key, const void* value, std::size_t bytes);
  int get(const std::string& key, void* value, std::size_t bytes, double timeout_s);
  int send_to_all(std::string_view key, const void* value, std::size_t bytes);
  int receive_pending();

  MPI_Comm m_comm;
  int m_rank, m_size;
  std::list<outgoing_message> m_sent_messages;
  std::uint64_t m_received_count = 0;
  std::map<std::string, std::vector<char>, std::less<>> m_values;
  bool m_is_finished = false;
  bool m_has_failed_peer = false;
};

}  // namespace isthmus::mpi_shim
