#include <algorithm>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "world/world.hpp"

namespace world {

isthmus_error_info last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info;
}

meeting& meeting::make(int size) {
  if (size > most_ranks) throw std::runtime_error("a meeting is for at most 16 ranks");
  return *new (map_shared(sizeof(meeting))) meeting(size);
}

meeting::meeting(int size) : m_size(size) {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&m_gate, &attributes, static_cast<unsigned>(size));
  pthread_barrierattr_destroy(&attributes);
}

void meeting::wait() { pthread_barrier_wait(&m_gate); }

isthmus_unique_id meeting::fresh_id(int rank) {
  wait();  // all have read the one before
  if (rank == 0) {
    m_id_failed = isthmus_unique_id_create(nullptr, &m_id) != ISTHMUS_SUCCESS;
    if (m_id_failed) std::snprintf(m_problem, sizeof m_problem, "%s", last_error().message);
  }
  wait();
  if (m_id_failed) throw std::runtime_error(std::string("rank 0 has no unique id: ") + m_problem);
  return m_id;
}

std::vector<std::vector<std::uint64_t>> meeting::exchange(int rank, const std::vector<std::uint64_t>& mine) {
  if (mine.size() > most_values) throw std::runtime_error("too many values to exchange");
  m_counts[rank] = mine.size();
  std::copy(mine.begin(), mine.end(), m_values[rank]);
  wait();
  std::vector<std::vector<std::uint64_t>> all;
  for (int other = 0; other < m_size; ++other)
    all.emplace_back(m_values[other], m_values[other] + m_counts[other]);
  wait();
  return all;
}

}  // namespace world
