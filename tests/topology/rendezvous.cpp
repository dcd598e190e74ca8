#include <algorithm>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "topology/topology.hpp"

namespace topology {

isthmus_error_info last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info;
}

rendezvous& rendezvous::create(int size) {
  if (size > max_ranks) throw std::runtime_error("rendezvous: size must be at most 16 ranks");
  return *new (map_shared(sizeof(rendezvous))) rendezvous(size);
}

rendezvous::rendezvous(int size) : m_size(size) {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&m_barrier, &attributes, static_cast<unsigned>(size));
  pthread_barrierattr_destroy(&attributes);
}

void rendezvous::wait() { pthread_barrier_wait(&m_barrier); }

isthmus_unique_id rendezvous::new_unique_id(int rank) {
  wait();  // all ranks have read the previous id
  if (rank == 0) {
    m_id_failed = isthmus_unique_id_create(nullptr, &m_id) != ISTHMUS_SUCCESS;
    if (m_id_failed) std::snprintf(m_id_error, sizeof m_id_error, "%s", last_error().message);
  }
  wait();
  if (m_id_failed) throw std::runtime_error(std::string("rank 0 could not create a unique id: ") + m_id_error);
  return m_id;
}

std::vector<std::vector<std::uint64_t>> rendezvous::exchange(int rank,
                                                             const std::vector<std::uint64_t>& values) {
  if (values.size() > max_values) throw std::runtime_error("rendezvous: too many values to exchange");
  m_counts[rank] = values.size();
  std::copy(values.begin(), values.end(), m_values[rank]);
  wait();
  std::vector<std::vector<std::uint64_t>> all;
  for (int rank_index = 0; rank_index < m_size; ++rank_index)
    all.emplace_back(m_values[rank_index], m_values[rank_index] + m_counts[rank_index]);
  wait();
  return all;
}

}  // namespace topology
