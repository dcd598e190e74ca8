// The traffic patterns that can be measured, their shapes for the oracle of the tests, and
// the bandwidth formulas.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "document.hpp"
#include "oracle/movement.hpp"

namespace bench {

// The collectives of the collective table, with equal counts also for those whose counts may differ, and two
// point-to-point patterns.
//   sendrecv  every rank sends to the next rank and receives from the previous one (as in nccl-tests)
//   ping      ranks 0 and 1 alternate; the time is half a round trip
enum class traffic_pattern {
  broadcast,
  reduce,
  allreduce,
  reduce_scatter,
  allgather,
  gather,
  scatter,
  alltoall,
  reduce_scatterv,
  allgatherv,
  gatherv,
  scatterv,
  alltoallv,
  sendrecv,
  ping,
  barrier
};

struct pattern_row {
  std::string name;
  traffic_pattern pattern;
  isthmus_collective collective;  // ISTHMUS_SEND: a ring of pairs
};

inline const std::vector<pattern_row>& pattern_rows() {
  static const std::vector<pattern_row> rows = {
      {"broadcast", traffic_pattern::broadcast, ISTHMUS_BROADCAST},
      {"reduce", traffic_pattern::reduce, ISTHMUS_REDUCE},
      {"allreduce", traffic_pattern::allreduce, ISTHMUS_ALLREDUCE},
      {"reduce_scatter", traffic_pattern::reduce_scatter, ISTHMUS_REDUCE_SCATTER},
      {"allgather", traffic_pattern::allgather, ISTHMUS_ALLGATHER},
      {"gather", traffic_pattern::gather, ISTHMUS_GATHER},
      {"scatter", traffic_pattern::scatter, ISTHMUS_SCATTER},
      {"alltoall", traffic_pattern::alltoall, ISTHMUS_ALLTOALL},
      {"reduce_scatterv", traffic_pattern::reduce_scatterv, ISTHMUS_REDUCE_SCATTERV},
      {"allgatherv", traffic_pattern::allgatherv, ISTHMUS_ALLGATHERV},
      {"gatherv", traffic_pattern::gatherv, ISTHMUS_GATHERV},
      {"scatterv", traffic_pattern::scatterv, ISTHMUS_SCATTERV},
      {"alltoallv", traffic_pattern::alltoallv, ISTHMUS_ALLTOALLV},
      {"sendrecv", traffic_pattern::sendrecv, ISTHMUS_SEND},
      {"ping", traffic_pattern::ping, ISTHMUS_SEND},
      {"barrier", traffic_pattern::barrier, ISTHMUS_BARRIER}};
  return rows;
}

inline const std::string& name_of(traffic_pattern pattern) {
  return pattern_rows()[static_cast<std::size_t>(pattern)].name;
}
inline isthmus_collective collective_of(traffic_pattern pattern) {
  return pattern_rows()[static_cast<std::size_t>(pattern)].collective;
}

// The collective without count arrays that moves the same data if all counts are equal.
inline isthmus_collective without_counts(isthmus_collective collective) {
  switch (collective) {
    case ISTHMUS_REDUCE_SCATTERV: return ISTHMUS_REDUCE_SCATTER;
    case ISTHMUS_ALLGATHERV: return ISTHMUS_ALLGATHER;
    case ISTHMUS_GATHERV: return ISTHMUS_GATHER;
    case ISTHMUS_SCATTERV: return ISTHMUS_SCATTER;
    case ISTHMUS_ALLTOALLV: return ISTHMUS_ALLTOALL;
    default: return collective;
  }
}

// `count` elements in each block; root is rank 0. Ping is a ring of two ranks; other ranks do not participate.
inline oracle::operation_shape shape_of(traffic_pattern pattern, std::uint64_t count, int rank, int size) {
  const isthmus_collective collective = without_counts(collective_of(pattern));
  const bool participates = pattern != traffic_pattern::ping || rank < 2;
  return {collective,
          pattern == traffic_pattern::ping ? 2 : size,
          collective == ISTHMUS_SEND ? 1 : 0,
          participates ? count : 0,
          {},
          {}};
}

inline bool reduces(isthmus_collective collective) {
  return collective == ISTHMUS_REDUCE || collective == ISTHMUS_ALLREDUCE ||
         collective == ISTHMUS_REDUCE_SCATTER || collective == ISTHMUS_REDUCE_SCATTERV;
}

// Returns true if a buffer holds one block per rank. `bytes` of a record is then the sum of the blocks. (For allgather
// it is the block of one rank.)
inline bool has_block_per_rank(isthmus_collective collective) {
  switch (collective) {
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_GATHER:
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTER:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALL:
    case ISTHMUS_ALLTOALLV: return true;
    default: return false;
  }
}

inline bool is_allgather(isthmus_collective collective) {
  return collective == ISTHMUS_ALLGATHER || collective == ISTHMUS_ALLGATHERV;
}

// As defined by nccl-tests (doc/PERFORMANCE.md): the first counts the larger of the send and receive buffers,
// the second the traffic of a link.
inline bandwidth bandwidth_of(isthmus_collective collective, std::uint64_t bytes, int ranks, double time_us) {
  const double n = ranks;
  const bool per_rank = is_allgather(collective);
  const double algbw = static_cast<double>(bytes) * (per_rank ? n : 1) / time_us / 1e3;
  if (collective == ISTHMUS_BARRIER) return {0, 0};
  if (collective == ISTHMUS_ALLREDUCE) return {algbw, algbw * 2 * (n - 1) / n};
  return {algbw, per_rank || has_block_per_rank(collective) ? algbw * (n - 1) / n : algbw};
}

}  // namespace bench
