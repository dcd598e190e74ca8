// Control channel of a communicator: its ranks exchange set-up data and failures over it, but
// never payload data.
#pragma once

#include <isthmus/isthmus.h>
#include <isthmus/mpi_table.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "failure/health.hpp"

namespace isthmus {

class bootstrap;

// Result of a shrink: the ranks that continue after a failure.
struct survivors {
  std::vector<int> ranks;              // their old ranks, ascending; the index is the new rank
  std::unique_ptr<bootstrap> control;  // control channel of the new communicator
};

// One rank's end of the control channel.
//
// Blocking: allgather, split and shrink wait for the other ranks. Every wait has a timeout.
// Thread safety: set-up calls come from one thread at a time. Functions that say "any thread" can run
// concurrently with them.
class bootstrap {
 public:
  virtual ~bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;

  // Collective. `all` holds size() blocks of contribution.size() bytes in rank order.
  // Blocking: waits up to the timeout until all ranks have called it.
  // Errors: TIMEOUT names the missing ranks; REMOTE names a rank that has exited.
  virtual void allgather(std::span<const std::byte> contribution, std::span<std::byte> all) = 0;

  // Collective over all ranks, including those with color < 0, which get nullptr. New ranks are ordered by
  // (key, old rank).
  std::unique_ptr<bootstrap> split(int color, int key);
  // Ranks of the parent, by rank; empty if this bootstrap results from neither split nor shrink.
  const std::vector<int>& parent_ranks() const { return m_parent_ranks; }

  // Makes every current and future wait of this bootstrap throw error (ABORTED). Any thread.
  virtual void cancel() noexcept {}
  // Closes the connections of this rank, because its process is exiting. Any thread.
  virtual void disconnect() noexcept {}

  // Sets the processes of the ranks, indexed by rank. After this call, waits detect within a second that a
  // process has exited or that a rank has published a failure. Must not run concurrently with other calls.
  virtual void watch_processes(std::span<const rank_process>) {}
  // Address of the fallback store that this rank can serve. The ranks exchange these addresses during set-up.
  virtual fallback_address own_fallback_address() { return {}; }

  // Collective over the surviving ranks; works after cancel(). If the agreed ranks fail to create the new
  // communicator, call it again to agree on a new set of ranks.
  // Blocking: waits at most `wait_s` for ranks that are not known to have exited.
  // Errors: TIMEOUT if too few ranks participate to rule out a second group of survivors; REMOTE if the other
  // ranks continued without this one, or if no store is left; UNSUPPORTED.
  virtual survivors shrink(double wait_s);
  // Returns whether one of `ranks` or their store has been lost since the shrink. Polls for half a second.
  virtual bool has_lost_any_of(std::span<const int> /*ranks*/) { return false; }

  // Returns true if an exchange failed on this rank. The exchanges of the ranks then no longer match, so no
  // other exchange may follow. The cause has been published if there is a channel for it.
  virtual bool is_out_of_sync() const { return false; }

  // Publishes a failure of this rank. The failure ends the waits of the other ranks, and wait_for_failure()
  // returns it. Only the first failure is kept. Any thread. Returns false if the ranks have no channel for it.
  virtual bool publish_failure(const failure_info&) noexcept { return false; }
  // Returns a failure that some rank has published. Blocking: at most `wait_s`. Any thread.
  virtual std::optional<failure_info> wait_for_failure(double /*wait_s*/) noexcept { return std::nullopt; }
  // Declares to ranks of other nodes that this rank has aborted and no longer waits for its peers. A rank that
  // waits for this one must look for the cause elsewhere. Any thread.
  virtual void mark_aborted() noexcept {}
  // Returns whether `rank` has aborted or aborts within `wait_s`; nullopt if unknown. Only valid after this
  // rank has aborted itself. Any thread.
  virtual std::optional<bool> has_aborted(int /*rank*/, double /*wait_s*/) noexcept { return std::nullopt; }

  // Returns whether `rank` has disconnected from the store; nullopt if unknown. Only valid after this rank has
  // aborted itself. Any thread.
  virtual std::optional<bool> is_disconnected(int /*rank*/) noexcept { return std::nullopt; }

  // For the mpi backend: the user's function table and this bootstrap's own duplicate of the MPI communicator.
  // Lifetime: as long as the bootstrap. NULL without MPI.
  virtual const isthmus_mpi_table* mpi_table() const { return nullptr; }
  virtual isthmus_mpi_comm mpi_comm() const { return nullptr; }

 protected:
  // Creates the bootstrap of `ranks`, the ranks with this color in their new order. All ranks call it.
  virtual std::unique_ptr<bootstrap> split_off(int color, int key, const std::vector<int>& ranks) = 0;

  std::vector<int> m_parent_ranks;
};

class fallback_store;

// Key-value store that all ranks can reach: in-process, TCP, or provided by the user.
// Thread safety: all functions are thread-safe.
class store {
 public:
  virtual ~store() = default;
  // Name for error messages.
  virtual std::string name() const { return "the store"; }
  virtual void set(const std::string& key, std::span<const std::byte> value) = 0;
  // Sets the key only if it has no value yet. Errors: UNSUPPORTED if the store has no such operation.
  virtual void set_if_absent(const std::string& key, std::span<const std::byte> value) = 0;
  // Reads a key; `value` must have exactly the stored size.
  // Blocking: until the key is set, at most `timeout_s`.
  // Errors: TIMEOUT, with native code ETIMEDOUT if the store itself did not answer; MISMATCH if
  // the size differs.
  virtual void get(const std::string& key, std::span<std::byte> value, double timeout_s) = 0;
  // Returns whether the rank that joined with this number has closed its connection. The keys of that rank
  // remain. Returns false if the store does not know the rank.
  virtual bool is_disconnected(int) { return false; }
  // Closes the connection of this rank. Later calls fail.
  virtual void disconnect() noexcept {}
  // Removes a key that no rank will read again. If the store does not support this operation, the key remains.
  virtual void erase(const std::string&) {}
  // Removes all keys that start with `scope` and a colon after `size` ranks have called this function. If the store does
  // not support this operation, the keys remain.
  virtual void release(const std::string& /*scope*/, int /*size*/) {}
  // Prepares a store that this rank can serve if the current store is lost. Returns nullptr if the current
  // store does not depend on the process of a rank, or if that is unknown.
  virtual std::unique_ptr<fallback_store> make_fallback_store();
  // Connects to the fallback store that another rank of this store serves. Throws error.
  virtual std::shared_ptr<store> connect_fallback_store(const fallback_address& address, int rank, int size,
                                                        double timeout_s);
};

// Creates a bootstrap on a store. `scope` is the prefix of its keys and separates communicators.
std::unique_ptr<bootstrap> make_store_bootstrap(std::shared_ptr<store> store, std::string scope, int rank,
                                                int size, double timeout_s);

// Collective over table->comm, which is duplicated twice: for control messages and, as mpi_comm(), for payload.
// Blocking: waits for all ranks to duplicate the communicator. If this takes longer than the timeout, MPI_Abort
// ends the job.
// Lifetime: `table` must not be NULL and must outlive the bootstrap.
// Errors: INVALID_ARGUMENT for a table of another version, INVALID_USAGE on a thread that must not call MPI,
// BACKEND with MPI's code and text.
std::unique_ptr<bootstrap> make_mpi_bootstrap(const isthmus_mpi_table* table, double timeout_s);

// ---- stores ------------------------------------------------------------------------------------------------

std::shared_ptr<store> make_local_store();

// Adapter that presents the store of the caller as a store of the core.
// Lifetime: `table` must outlive the store. Errors: INVALID_ARGUMENT if the table is incomplete.
std::shared_ptr<store> make_user_store(const isthmus_store_table* table);

// Creates a bootstrap on the store of the caller. The store may contain the keys of earlier communicators, and
// keys cannot be set twice. Therefore, each creation is a round with its own keys: the n-th creation of a rank
// joins the n-th creations of the other ranks. Communicators of different sizes are counted separately.
// Lifetime and errors: as of make_user_store, and BACKEND if the store fails.
std::unique_ptr<bootstrap> make_user_bootstrap(const isthmus_store_table* table, int rank, int size,
                                               double timeout_s);

}  // namespace isthmus
