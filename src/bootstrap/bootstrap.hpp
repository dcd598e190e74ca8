// How the ranks of a communicator exchange control data while it is set up. Not for payload.
#pragma once

#include <isthmus/mpi_table.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/peer_monitor.hpp"

namespace isthmus {

class bootstrap;

// Who goes on after a failure.
struct survivors {
  std::vector<int> ranks;              // their numbers so far, ascending: the new ones are the indices
  std::unique_ptr<bootstrap> control;  // what they exchange over from now on
};

class bootstrap {
 public:
  virtual ~bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;

  // Collective and blocking, at most the timeout, then throws error (TIMEOUT) that names the missing
  // ranks, or error (REMOTE) that names one that has ended. `all` has size() blocks of mine.size() bytes, in
  // rank order. Calls come from one thread at a time.
  virtual void allgather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Collective over all ranks, also those with color < 0, which get nullptr. Order: (key, rank).
  virtual std::unique_ptr<bootstrap> split(int color, int key) = 0;

  // Makes every wait of this bootstrap, now and later, throw error (ABORTED). Any thread may call it.
  virtual void cancel() noexcept {}

  // By rank: from now on waits notice within a second when one of them ends or has written a notice. While no
  // other thread uses this bootstrap.
  virtual void watch_processes(std::span<const rank_process>) {}
  // Where this rank could serve the others, for them to be told.
  virtual fallback_address own_fallback_address() { return {}; }

  // Collective over the ranks that still call it, also after cancel(). Ranks that have not ended are waited for
  // `wait_s` at most. Throws error: TIMEOUT where too few came to be sure that no others go on, REMOTE where
  // the others went on without this rank or nothing is left to meet over, UNSUPPORTED. Called again after those
  // who agreed could not go on, it finds others.
  virtual survivors shrink(double wait_s);
  // Whether one of `ranks`, or what they met over, is lost since; looks for a moment.
  virtual bool has_lost_any_of(std::span<const int> /*ranks*/) { return false; }

  // An exchange failed here, so the ranks' exchanges no longer match: no other one may follow. The other ranks
  // have been told why, where there is a way.
  virtual bool is_out_of_sync() const { return false; }

  // Leaves this rank's failure where the other ranks' waits in this bootstrap, and `announced`, find it; the
  // first one stays. Any thread may call it. False where the ranks have no place for it.
  virtual bool publish_failure(const failure_info&) noexcept { return false; }
  // What a rank has announced, waiting at most `wait_s` for it. Any thread may call it.
  virtual std::optional<failure_info> wait_for_failure(double /*wait_s*/) noexcept { return std::nullopt; }
  // The same of ranks that share memory with this one, by a look into that memory: cheap enough for every call.
  virtual std::optional<failure_info> poll_local_failure() const noexcept { return std::nullopt; }

  // This rank waits for nobody any more: who waits for it must look further for the cause. Any thread.
  virtual void mark_aborted() noexcept {}
  // For a rank that has given up itself: whether that one has, or does within this time; nothing where that
  // can't be told. Any thread.
  virtual std::optional<bool> has_aborted(int /*rank*/, double /*wait_s*/) noexcept { return std::nullopt; }

  // For a rank that has given up: whether that one is gone from what they meet over; nothing where that can't
  // be told. Any thread.
  virtual std::optional<bool> is_disconnected(int /*rank*/) noexcept { return std::nullopt; }

  // What the mpi backend works on: the user's table and this bootstrap's own duplicate of the
  // communicator, valid as long as the bootstrap. NULL without MPI.
  virtual const isthmus_mpi_table* mpi_table() const { return nullptr; }
  virtual isthmus_mpi_comm mpi_comm() const { return nullptr; }
};

class fallback_store;

// A key-value store that all ranks reach: in-process, TCP, or the user's own. Thread-safe.
class store {
 public:
  virtual ~store() = default;
  virtual void set(const std::string& key, std::span<const std::byte> value) = 0;
  // The same, unless the key has a value: the first one stays. Throws error (UNSUPPORTED) where the store
  // can't.
  virtual void set_if_absent(const std::string& key, std::span<const std::byte> value) = 0;
  // Waits at most `timeout_s` and throws error (TIMEOUT), with the native code ETIMEDOUT where the store itself
  // did not answer. `value` has exactly the stored size.
  virtual void get(const std::string& key, std::span<std::byte> value, double timeout_s) = 0;
  // Whether the rank that joined under this number has closed its connection; what it had set stays. False
  // where the store can't tell.
  virtual bool is_disconnected(int) { return false; }
  // Forgets a key that nobody will ask for again. A store that can't keeps it.
  virtual void erase(const std::string&) {}
  // A socket of this rank's that can take the store's place; nullptr where the store ends with no rank, or
  // where that is not known.
  virtual std::unique_ptr<fallback_store> make_fallback_store();
  // The store that another rank of this one serves on its standby. Throws error.
  virtual std::shared_ptr<store> connect_fallback_store(const fallback_address& address, int rank, int size,
                                                 double timeout_s);
};

// A bootstrap on a store. `scope` prefixes its keys, so that communicators do not meet each other.
std::unique_ptr<bootstrap> make_store_bootstrap(std::shared_ptr<store> store, std::string scope, int rank,
                                                int size, double timeout_s);

}  // namespace isthmus
