// How the ranks of a communicator exchange control data while it is set up. Not for payload.
#pragma once

#include <isthmus/mpi_table.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace isthmus {

class bootstrap {
 public:
  virtual ~bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;

  // Collective and blocking, at most the timeout, then throws error (TIMEOUT) that names the missing
  // ranks. `all` has size() blocks of mine.size() bytes, in rank order. Calls come from one thread at a time.
  virtual void allgather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Collective over all ranks, also those with color < 0, which get nullptr. Order: (key, rank).
  virtual std::unique_ptr<bootstrap> split(int color, int key) = 0;

  // Makes every wait of this bootstrap, now and later, throw error (ABORTED). Any thread may call it.
  virtual void cancel() noexcept {}

  // What the mpi backend works on: the user's table and this bootstrap's own duplicate of the
  // communicator, valid as long as the bootstrap. NULL without MPI.
  virtual const isthmus_mpi_table* mpi_table() const { return nullptr; }
  virtual isthmus_mpi_comm mpi_comm() const { return nullptr; }
};

// A key-value store that all ranks reach: in-process, TCP, or the user's own. Thread-safe.
class store {
 public:
  virtual ~store() = default;
  virtual void set(const std::string& key, std::span<const std::byte> value) = 0;
  // Waits at most `timeout_s` and throws error (TIMEOUT). `value` has exactly the stored size.
  virtual void get(const std::string& key, std::span<std::byte> value, double timeout_s) = 0;
  // Forgets a key that nobody will ask for again. A store that can't keeps it.
  virtual void erase(const std::string&) {}
};

// A bootstrap on a store. `scope` prefixes its keys, so that communicators do not meet each other.
std::unique_ptr<bootstrap> make_store_bootstrap(std::shared_ptr<store> store, std::string scope, int rank,
                                                int size, double timeout_s);

}  // namespace isthmus
