// Issues one call: words and copies on the caller's stream and on the rank's own streams beside it.
//
// Order. Whoever runs the commands of a rank one after the other, in the order in which they are issued,
// gets to the end of the call as long as the others do the same. That matters because a driver may put
// streams that seem independent into one queue.
#pragma once

#include <isthmus/backend.h>

#include <vector>

#include "backend/copy_engine/call_log.hpp"
#include "backend/copy_engine/lane.hpp"
#include "backend/copy_engine/movement.hpp"
#include "backend/copy_engine/peer_area.hpp"
#include "backend/copy_engine/settings.hpp"

namespace isthmus::copy_engine {

// What all calls of one rank use.
struct equipment {
  equipment(device_driver& driver, int device, int rank, int size, const settings& options);

  device_driver& driver;
  int device, rank, size;
  settings options;
  peer_area area;
  lane caller;                           // the stream of the call
  lane local;                            // own copies beside it
  std::vector<lane> beside;              // more lanes to peers; the first lane to peers is the caller's
  native_event fork{}, local_join{};     // one call uses each event once
  std::vector<native_event> joins;       // by lane of `beside`
  std::uint32_t* progress = nullptr;     // in pinned memory: the id of the call that the stream is in, else 0
  std::vector<std::uint64_t> slot_uses;  // by source: how often a slot of its outbox has been used
};

// Where every source's data lie when all of them are in the symmetric heap.
struct heap_sources {
  bool all = false;                    // else nothing else here means anything
  std::vector<const std::byte*> from;  // by source, the part that is for this rank; nullptr: nothing
  bool own_first = false;              // the own block must be in place before it is lent
  std::uint64_t where = 0;             // block and offset, equal on all ranks
};

class call {
 public:
  // `record` has the call's id; the rest of it is filled in here and goes to `log` before any command.
  call(equipment& tools, const isthmus_operation& operation, const movement& moved, call_record& record,
       call_log& log, bool captured);

  // Peers fetch out of the user's own buffers.
  void issue_from_heap(const heap_sources& sources);
  // Peers fetch out of the outbox, into which the data are copied piece by piece.
  void issue_staged();

 private:
  void begin(bool staged, std::uint64_t where);
  std::uint32_t tag_of(std::uint64_t bytes) const;
  std::uint64_t bytes_to(int reader) const;
  std::uint64_t bytes_from(int source) const;
  int next_source(int step) const { return (m_tools.rank + step) % m_tools.size; }
  int next_reader(int step) const { return (m_tools.rank + m_tools.size - step) % m_tools.size; }

  void borrow_lanes();
  void return_lanes();
  lane& lane_to(int step);
  void copy_own_block(lane& by);

  void lend(lane& by, thing what, std::uint64_t beyond);
  void announce(lane& by, thing what, std::uint64_t beyond);
  void await(lane& by, thing what, int source);
  void give_back(lane& by, thing what, int source);
  struct fetched {
    thing what;
    int source;
    const std::byte* from;
    std::byte* to;
    std::uint64_t bytes;
  };
  void fetch_all(const std::vector<fetched>& wanted);

  void stage(lane& by, std::uint64_t piece);
  void fetch_staged(std::uint64_t piece);
  std::uint64_t pieces_of(int source) const;

  equipment& m_tools;
  const isthmus_operation& m_operation;
  const movement& m_moved;
  call_record& m_record;
  call_log& m_log;
  bool m_captured;
  const std::byte* m_send;
  std::byte* m_recv;
  std::uint64_t m_where = 0;
  std::uint64_t m_piece_bytes = 0;
  bool m_together;            // small: wait for all peers, then copy from all
  bool m_one_stream = false;  // in place: fetching must not overtake staging
};

}  // namespace isthmus::copy_engine
