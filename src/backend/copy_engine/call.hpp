// Issues one call: words and copies on the caller's stream and on the rank's own streams beside it.
//
// Order. Whoever runs the commands of a rank one after the other, in the order in which they are issued,
// gets to the end of the call as long as the others do the same. That matters because a driver may put
// streams that seem independent into one queue.
#pragma once

#include <isthmus/backend.h>

#include <span>
#include <vector>

#include "backend/copy_engine/call_log.hpp"
#include "backend/copy_engine/lane.hpp"
#include "backend/copy_engine/movement.hpp"
#include "backend/copy_engine/peer_area.hpp"
#include "backend/copy_engine/reduction.hpp"
#include "backend/copy_engine/settings.hpp"

namespace isthmus::copy_engine {

// What all calls of one rank use.
struct equipment {
  equipment(device_driver& driver, int device, int rank, int size, const settings& options);

  device_driver& driver;
  int device, rank, size;
  settings options;
  peer_area area;
  lane caller;    // the stream of the call
  lane local;     // own copies beside it
  lane combiner;  // the kernels of reduce_scatter, ahead of others that wait for room
  reduction kernels;
  std::vector<lane> beside;  // more lanes to peers; the first lane to peers is the caller's
  // Recorded again and again: a wait that has been issued is for the record before it.
  native_event fork{}, local_join{}, started{}, slot_ready{};
  std::vector<native_event> joins;       // by lane of `beside`
  std::uint32_t* progress = nullptr;     // in pinned memory: the id of the call that the stream is in, else 0
  std::vector<std::uint64_t> slot_uses;  // by rank: how often a slot of its transit area has been used
};

// Who copies. staged: readers fetch from the sources' transit areas; pull: out of the sources' own buffers;
// push: sources put into the readers' own buffers; deposit: into the readers' transit areas, where they are
// combined.
enum class way : std::uint8_t { staged, pull, push, deposit };

// Where the peers' buffers are when all of them are in the symmetric heap.
struct heap_places {
  bool all = false;            // else nothing else here means anything
  std::vector<std::byte*> at;  // by peer: the part of its buffer that this rank fetches from or puts to
  bool own_first = false;      // the own block must be in place before it is lent
  std::uint64_t where = 0;     // block and offset, equal on all ranks
};

class call {
 public:
  // `record` has the call's id; the rest of it is filled in here and goes to `log` before any command.
  call(equipment& tools, const isthmus_operation& operation, const movement& moved, call_record& record,
       call_log& log, bool captured);

  // `how` is pull or push.
  void issue_in_heap(way how, const heap_places& places);
  void issue_staged();
  // reduce_scatter.
  void issue_deposit(native_kernel kernel);

 private:
  void begin(way how, std::uint64_t where);
  std::uint32_t tag_of(std::uint64_t bytes) const;
  bool sources_copy() const { return m_how == way::push || m_how == way::deposit; }
  bool through_transit() const { return m_how == way::staged || m_how == way::deposit; }
  // Bytes between this rank and a peer (0 for itself): what it may copy of ours, and we of its.
  std::uint64_t bytes_lent_to(int peer) const;
  std::uint64_t bytes_copied_of(int peer) const;
  // Everybody starts with its right neighbour and is served by its left one first.
  int neighbour(int step) const { return (m_tools.rank + step) % m_tools.size; }
  int served_at(int step) const { return (m_tools.rank + m_tools.size - step) % m_tools.size; }

  lane& lane_to(int peer);
  void borrow_lanes();
  void return_lanes();
  void start_own_block();
  void copy_own_block(lane& by);

  void lend(lane& by, thing what, std::uint64_t beyond);
  void mark(lane& by, thing what, std::uint64_t beyond);
  void announce(lane& by, thing what, std::uint64_t beyond);
  struct transfer {
    thing what;
    int lender;
    const std::byte* from;
    std::byte* to;
    std::uint64_t bytes;
  };
  void await(lane& by, std::span<const transfer> wanted);
  void give_back(lane& by, const transfer& one);
  void copy_all(const std::vector<transfer>& wanted);

  void fill(lane& by, std::uint64_t piece);
  void announce_piece(lane& by, std::uint64_t piece);
  // Ranks that copy a piece as soon as its lender is ready get out of step, and two then share a port. In
  // allgatherv some ranks may keep step and others not, since each has its own bytes to get.
  bool keeps_step() const { return m_together && m_tools.size > 2; }
  std::vector<transfer> staged_by_peers(std::uint64_t piece) const;
  void fetch_freely(lane& stager, std::uint64_t pieces);
  void fetch_in_step(lane& stager, std::uint64_t pieces);
  void set_piece_bytes();
  std::uint64_t pieces_of(int source) const;
  thing slot_for(int owner, std::uint64_t piece) const {
    return slot_of(m_tools.slot_uses[static_cast<std::size_t>(owner)] + piece);
  }
  // A peer's part of a slot, among those of all ranks but the owner.
  std::byte* part_of_slot(int owner, thing slot, int peer) const {
    const int row = peer < owner ? peer : peer - 1;
    return m_tools.area.slot(owner, slot) + static_cast<std::uint64_t>(row) * m_piece_bytes;
  }
  void await_return(lane& by, thing slot);
  void clear_slot(lane& by, std::uint64_t piece);
  void deposit(std::uint64_t piece);
  void combine(lane& by, std::uint64_t piece, native_kernel kernel);
  void note_progress() { m_tools.caller.write(m_tools.progress, m_record.id); }

  equipment& m_tools;
  const isthmus_operation& m_operation;
  const movement& m_moved;
  call_record& m_record;
  call_log& m_log;
  bool m_captured;
  const std::byte* m_send;
  std::byte* m_recv;
  way m_how = way::staged;
  std::uint64_t m_where = 0;
  std::uint64_t m_piece_bytes = 0;
  bool m_together;            // small: wait for all peers, then copy from all
  bool m_one_stream = false;  // in place: fetching must not overtake staging
  bool m_own_beside = false;  // the own block is being copied on the local lane
};

}  // namespace isthmus::copy_engine
