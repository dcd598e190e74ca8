// Communicators of the stand-in and the operations on them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mailboxes.hpp"

namespace standin {

enum class collective_kind {
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  gather,
  scatter,
  send,
  recv
};

// One native call. `root` is the peer of send and recv.
struct request {
  collective_kind kind;
  const char* send = nullptr;
  char* recv = nullptr;
  std::size_t count = 0;
  int datatype = 0;
  int op = 0;
  int root = 0;
  void* stream = nullptr;
};

struct standin_comm {
  std::string name;  // of its mailboxes
  int rank = 0, size = 1;
  int device = 0;
  bool blocking = true, shares_resources = false;
  int splits = 0;
  std::unique_ptr<mailboxes> boxes;
  std::shared_ptr<std::atomic<bool>> abort_flag = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> async_error{0};  // the result of ncclCommGetAsyncError
  std::thread setup;                // runs a non-blocking init or split

  // Operations of one communicator run in the order in which they were started, on any stream.
  std::mutex ticket_mutex;
  std::condition_variable ticket_changed;
  std::uint64_t next_ticket = 0, current_ticket = 0;

  ~standin_comm() {
    if (setup.joinable()) setup.join();
  }
};

// Starts requests that were issued together. They progress together on their streams.
void launch(standin_comm& comm, std::vector<request> requests);

// Exchanges one fixed-size record with every rank, in the calling thread. Returns false if aborted.
bool exchange(standin_comm& comm, const void* own_data, void* all, std::size_t bytes);

// Makes the next collective of this process fail halfway with this code; 0: none.
extern std::atomic<int> partial_failure_code;

}  // namespace standin
