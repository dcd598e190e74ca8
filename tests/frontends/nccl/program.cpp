// An ordinary program that uses NCCL. The environment decides what it runs with: the preloaded library and the
// Isthmus configuration. Prints "N wrong" at the end.
//
// program WORLD RANKS CALLS SEED
// program rank R N FILE WHAT ...
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl.hpp"
#include "rank_runner.hpp"

namespace {

using nccl_program::check;
using nccl_program::random_calls;
using nccl_program::rank_runner;

constexpr std::size_t batch = 8;  // calls issued before waiting for them

std::vector<std::unique_ptr<rank_runner>> make_runners(int size) {
  std::vector<std::unique_ptr<rank_runner>> runners;
  for (int rank = 0; rank < size; ++rank) runners.push_back(std::make_unique<rank_runner>(rank, size, rank));
  return runners;
}

// Issues calls in batches. Every other batch uses groups of three.
int run_calls(rank_runner& runner, std::uint64_t seed, int calls) {
  int wrong = 0;
  const auto all = random_calls(seed, runner.size(), calls);
  for (std::size_t begin_index = 0; begin_index < all.size(); begin_index += batch) {
    const std::vector subset(
        all.begin() + static_cast<std::ptrdiff_t>(begin_index),
        all.begin() + static_cast<std::ptrdiff_t>(std::min(begin_index + batch, all.size())));
    runner.prepare(subset);
    const bool grouped = begin_index / batch % 2 == 1;
    for (std::size_t i = 0; i < subset.size(); ++i) {
      if (grouped && i % 3 == 0) check(ncclGroupStart(), "ncclGroupStart");
      check(runner.issue(i), "a call");
      if (grouped && (i % 3 == 2 || i + 1 == subset.size())) check(ncclGroupEnd(), "ncclGroupEnd");
    }
    runner.synchronize();
    wrong += runner.wrong();
  }
  return wrong;
}

void run_in_threads(std::vector<std::unique_ptr<rank_runner>>& runners,
                    const std::function<void(rank_runner&)>& work) {
  std::vector<std::jthread> threads;
  for (auto& each : runners)
    threads.emplace_back([&] {
      cudaSetDevice(each->rank());
      work(*each);
    });
}

void init_in_threads(std::vector<std::unique_ptr<rank_runner>>& runners) {
  nccl_id id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  run_in_threads(runners, [&](rank_runner& runner) {
    check(ncclCommInitRank(&runner.comm, runner.size(), id, runner.rank()), "ncclCommInitRank");
  });
}

int threads(int size, int calls, std::uint64_t seed) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    wrong += run_calls(runner, seed, calls);
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  });
  return wrong;
}

// One thread drives all ranks: each call forms one group across all ranks.
int one_thread(int size, int calls, std::uint64_t seed, bool use_init_all) {
  auto runners = make_runners(size);
  if (use_init_all) {
    std::vector<void*> comms(runners.size());
    check(ncclCommInitAll(comms.data(), size, nullptr), "ncclCommInitAll");
    for (std::size_t i = 0; i < runners.size(); ++i) runners[i]->comm = comms[i];
  } else {
    nccl_id id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    check(ncclGroupStart(), "ncclGroupStart");
    for (auto& each : runners) {
      cudaSetDevice(each->rank());
      check(ncclCommInitRank(&each->comm, size, id, each->rank()), "ncclCommInitRank");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  }
  int wrong = 0;
  const auto all = random_calls(seed, size, calls);
  for (std::size_t begin_index = 0; begin_index < all.size(); ++begin_index) {
    for (auto& each : runners) each->prepare({all[begin_index]});
    check(ncclGroupStart(), "ncclGroupStart");
    for (auto& each : runners) check(each->issue(0), "a call");
    check(ncclGroupEnd(), "ncclGroupEnd");
    for (auto& each : runners) each->synchronize();
    for (auto& each : runners) wrong += each->wrong();
  }
  for (auto& each : runners) check(ncclCommDestroy(each->comm), "ncclCommDestroy");
  return wrong;
}

// Subcommunicators of even and odd ranks, in reverse order, used together with the parent. The last
// rank is in none.
int split(int size, int calls, std::uint64_t seed) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    void* child_comm = nullptr;
    const int color = runner.rank() + 1 == size ? -1 : runner.rank() % 2;
    check(ncclCommSplit(runner.comm, color, -runner.rank(), &child_comm, nullptr), "ncclCommSplit");
    wrong += run_calls(runner, seed, calls);
    if (child_comm != nullptr) {
      int rank = 0, ranks = 0;
      ncclCommUserRank(child_comm, &rank);
      ncclCommCount(child_comm, &ranks);
      rank_runner child_runner(rank, ranks, runner.rank());
      child_runner.comm = child_comm;
      wrong += run_calls(child_runner, seed + static_cast<std::uint64_t>(color), calls);
      check(ncclCommDestroy(child_comm), "ncclCommDestroy");
    }
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  });
  return wrong;
}

// An allgather that not every rank calls.
void call_alone(rank_runner& runner) {
  conformance::test_case test;
  test.collective = ISTHMUS_ALLGATHER;
  test.count = 100;
  runner.prepare({test});
  check(runner.issue(0), "ncclAllGather");
}

// Rank 0 issues a call that no other rank makes, and aborts. Its stream completes and the program ends.
int abort_one(int size) {
  const int events_before = standin_live_events();
  auto runners = make_runners(size);
  init_in_threads(runners);
  run_in_threads(runners, [&](rank_runner& runner) {
    if (runner.rank() == 0) call_alone(runner);
    check(ncclCommAbort(runner.comm), "ncclCommAbort");
    runner.synchronize();
  });
  return standin_live_events() - events_before;
}

// Rank 1 aborts while it waits for a call that rank 0 never makes. Rank 0, which waits for nothing, sees no
// error and continues to its end.
int abort_while_peer_is_idle(int size) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0}, ended_count{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    wrong += run_calls(runner, 3, 2);
    if (runner.rank() != 0) {
      call_alone(runner);
      check(ncclCommAbort(runner.comm), "ncclCommAbort");
      runner.synchronize();
      ++ended_count;
      return;
    }
    while (ended_count + 1 < size) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (int i = 0; i < 50; ++i) {
      int error = 0;
      check(ncclCommGetAsyncError(runner.comm, &error), "ncclCommGetAsyncError");
      if (error != 0) ++wrong;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  });
  return wrong;
}

// Invalid arguments. Prints the result codes, which the test compares with those of another run.
int errors() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  void *const comm = runners[0]->comm, *const stream = runners[0]->stream(0);
  float data[8] = {};
  const int codes[] = {
      ncclAllReduce(data, data, 4, 99, 0, comm, stream),      ncclAllReduce(data, data, 4, 12, 0, comm, stream),
      ncclAllReduce(data, data, 4, 7, -2, comm, stream),      ncclAllReduce(data, data, 4, 7, 77, comm, stream),
      ncclAllReduce(nullptr, nullptr, 4, 7, 0, comm, stream), ncclBroadcast(data, data, 4, 7, 2, comm, stream),
      ncclBroadcast(data, data, 4, 7, -1, comm, stream),      ncclReduce(data, data, 4, -3, 0, 0, comm, stream),
      ncclAllReduce(data, data, 4, 7, 0, nullptr, stream),    ncclGroupEnd()};
  std::printf("codes");
  for (const int code : codes) std::printf(" %d", code);
  std::printf("\n");
  for (auto& each : runners) check(ncclCommDestroy(each->comm), "ncclCommDestroy");
  return 0;
}

// The first fields of ncclConfig_t.
struct config {
  std::size_t size = sizeof(config);
  unsigned magic = 0xcafebeef, version = 21801;
  int blocking = INT_MIN, cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

void wait_until_ready(void* comm) {
  constexpr int in_progress = 7;
  for (int error = in_progress; error != 0; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    check(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
    if (error != in_progress) check(error, "ncclCommInitRankConfig");
  }
}

// Communicators with a configuration, blocking or nonblocking, created alone, in a group, or by a split that leaves out the
// last rank. The library prints its report because each rank also has a blocking communicator.
int configured(int size, bool is_blocking, const std::string& creation) {
  auto runners = make_runners(size);
  const bool splits = creation == "split", groups = creation == "group";
  init_in_threads(runners);
  nccl_id id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    config requested;
    requested.blocking = is_blocking ? 1 : 0;
    void* comm = nullptr;
    if (groups) check(ncclGroupStart(), "ncclGroupStart");
    if (splits) {
      const int color = runner.rank() + 1 == size ? -1 : 0;
      check(ncclCommSplit(runner.comm, color, runner.rank(), &comm, &requested), "ncclCommSplit");
    } else {
      const int code = ncclCommInitRankConfig(&comm, size, id, runner.rank(), &requested);
      if (is_blocking) check(code, "ncclCommInitRankConfig");
    }
    if (groups) check(ncclGroupEnd(), "ncclGroupEnd");
    if (comm != nullptr) {
      wait_until_ready(comm);
      rank_runner other_runner(runner.rank(), splits ? size - 1 : size, runner.rank());
      other_runner.comm = comm;
      wrong += run_calls(other_runner, 3, 24);
      check(ncclCommDestroy(comm), "ncclCommDestroy");
    }
    if (splits) wrong += run_calls(runner, 5, 8);
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  });
  return wrong;
}

// Communicators that the program creates in the loaded NCCL itself, so that Isthmus does not see them.
int unseen(int size) {
  void* const library = dlopen("libstandin_nccl.so", RTLD_LAZY | RTLD_NOLOAD);
  const auto init_rank = reinterpret_cast<decltype(&ncclCommInitRank)>(dlsym(library, "ncclCommInitRank"));
  auto runners = make_runners(size);
  nccl_id id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    check(init_rank(&runner.comm, size, id, runner.rank()), "ncclCommInitRank");
    wrong += run_calls(runner, 3, 8);
    wait_until_ready(runner.comm);
    check(runner.rank() == 0 ? ncclCommAbort(runner.comm) : ncclCommDestroy(runner.comm), "ncclCommAbort");
  });
  return wrong;
}

// NCCL allocates a communicator where a destroyed one was. Each has its own state.
int reused_handles(int size) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    void* const parent = runner.comm;
    for (int round = 0; round < 4; ++round) {
      std::vector<void*> children(static_cast<std::size_t>(2 + round));
      for (void*& child : children)
        check(ncclCommSplit(parent, 0, runner.rank(), &child, nullptr), "ncclCommSplit");
      for (void* const child : children) {
        runner.comm = child;
        wrong += run_calls(runner, 3, 4);
      }
      for (void* const child : children) check(ncclCommDestroy(child), "ncclCommDestroy");
    }
    config nonblocking;
    nonblocking.blocking = 0;
    void* passed_through = nullptr;
    check(ncclCommSplit(parent, 0, runner.rank(), &passed_through, &nonblocking), "ncclCommSplit");
    wait_until_ready(passed_through);
    check(ncclCommDestroy(passed_through), "ncclCommDestroy");
    check(ncclCommDestroy(parent), "ncclCommDestroy");
  });
  return wrong;
}

void send_to_self(rank_runner& runner) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, 64), "cudaMalloc");
  auto* const bytes = static_cast<char*>(memory);
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(bytes, 1, 0, runner.rank(), runner.comm, runner.stream(0)), "ncclSend");
  check(ncclRecv(bytes + 1, 1, 0, runner.rank(), runner.comm, runner.stream(0)), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
  runner.synchronize();
}

// An operation of NCCL fails on rank 0. Prints the asynchronous errors of both ranks.
int asynchronous_error() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  standin_fail_half_way(5);
  cudaSetDevice(0);
  send_to_self(*runners[0]);
  std::printf("errors");
  for (auto& each : runners) {
    int error = -1;
    check(ncclCommGetAsyncError(each->comm, &error), "ncclCommGetAsyncError");
    std::printf(" %d", error);
  }
  std::printf("\n");
  for (auto& each : runners) check(ncclCommDestroy(each->comm), "ncclCommDestroy");
  return 0;
}

// Rank 0 revokes its communicator. Its next call goes to NCCL. Prints the result of both.
int revoke() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) { wrong += run_calls(runner, 3, 8); });
  cudaSetDevice(0);
  rank_runner& runner = *runners[0];
  const int revoked = ncclCommRevoke(runner.comm, 0);
  float data[2] = {};
  std::printf("revoked %d %d\n", revoked, ncclAllGather(data, data, 1, 7, runner.comm, runner.stream(0)));
  std::fflush(stdout);
  for (auto& each : runners) check(ncclCommDestroy(each->comm), "ncclCommDestroy");
  return wrong;
}

// Issues a sum on a stream of rank 0 and prints its result code, then aborts the communicators.
void print_sum_of_rank_0(const std::vector<std::unique_ptr<rank_runner>>& runners, std::size_t stream) {
  cudaSetDevice(0);
  float data[2] = {};
  rank_runner& runner = *runners[0];
  std::printf("code %d\n", ncclAllReduce(data, data + 1, 1, 7, 0, runner.comm, runner.stream(stream)));
  std::fflush(stdout);
  for (auto& each : runners) check(ncclCommAbort(each->comm), "ncclCommAbort");
}

// The backend that executes a sum refuses it on rank 0. Prints the result code.
int refused_by_backend() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  void* const library = dlopen(std::getenv("MOVER_LIBRARY"), RTLD_LAZY | RTLD_NOLOAD);
  reinterpret_cast<decltype(&standin_fail)>(dlsym(library, "standin_fail"))("ncclAllReduce", 1, 5);
  print_sum_of_rank_0(runners, 0);
  return 0;
}

// Calls that Isthmus never handles, between calls that it does: messages and a user-defined operation.
int mixed(int size, std::uint64_t seed) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    int op = 0;
    float two = 2;
    check(ncclRedOpCreatePreMulSum(&op, &two, 7, 1, runner.comm), "ncclRedOpCreatePreMulSum");
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const numbers = static_cast<float*>(memory);
    for (int i = 0; i < 4; ++i) {
      wrong += run_calls(runner, seed + static_cast<std::uint64_t>(i), 8);
      numbers[0] = static_cast<float>(runner.rank());
      numbers[1] = -1;
      check(ncclAllReduce(numbers, numbers + 2, 1, 7, op, runner.comm, runner.stream(0)), "ncclAllReduce");
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclSend(numbers, 1, 7, (runner.rank() + 1) % size, runner.comm, runner.stream(1)), "ncclSend");
      check(ncclRecv(numbers + 1, 1, 7, (runner.rank() + size - 1) % size, runner.comm, runner.stream(1)),
            "ncclRecv");
      check(ncclGroupEnd(), "ncclGroupEnd");
      runner.synchronize();
      if (numbers[1] != static_cast<float>((runner.rank() + size - 1) % size)) ++wrong;
    }
    cudaFree(memory);
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  });
  return wrong;
}

// One rank groups calls that the next rank issues one by one. Each call reads the result of the previous one:
// sums, and broadcasts that rules assign to NCCL.
int uneven_groups(int size, int calls) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const sent = static_cast<float*>(memory);
    float* const summed = sent + 1;
    void* const stream = runner.stream(0);
    const std::vector<std::vector<bool>> orders = {{true, false}, {false, true}, {true, true, false, true}};
    for (int i = 0; i < calls; ++i) {
      const bool grouped = (i + runner.rank()) % 2 == 1;
      float expected_sent = *sent = static_cast<float>(i + 1), expected_sum = *summed = -1;
      if (grouped) check(ncclGroupStart(), "ncclGroupStart");
      for (const bool is_sum : orders[static_cast<std::size_t>(i) % orders.size()]) {
        check(is_sum ? ncclAllReduce(sent, summed, 1, 7, 0, runner.comm, stream)
                     : ncclBroadcast(summed, sent, 1, 7, 0, runner.comm, stream),
              "a call");
        (is_sum ? expected_sum : expected_sent) =
            is_sum ? expected_sent * static_cast<float>(size) : expected_sum;
      }
      if (grouped) check(ncclGroupEnd(), "ncclGroupEnd");
      runner.synchronize();
      if (*sent != expected_sent || *summed != expected_sum) ++wrong;
    }
    cudaFree(memory);
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  });
  return wrong;
}

// Two calls on one stream, then one on another. Prints how often both ranks made a stream wait.
int order() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  const int before = standin_driver_calls("cuStreamWaitEvent");
  run_in_threads(runners, [&](rank_runner& runner) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    for (const std::size_t stream : {0, 0, 1})
      check(ncclAllReduce(memory, memory, 4, 2, 0, runner.comm, runner.stream(stream)), "ncclAllReduce");
    runner.synchronize();
    cudaFree(memory);
  });
  std::printf("waits %d\n", standin_driver_calls("cuStreamWaitEvent") - before);
  run_in_threads(runners, [](rank_runner& runner) { check(ncclCommDestroy(runner.comm), "ncclCommDestroy"); });
  return 0;
}

// Broadcasts that NCCL executes, from `unrelated` to the next element.
void broadcast_in_a_row(rank_runner& runner, float* unrelated, void* stream, int calls) {
  for (int i = 0; i < calls; ++i)
    check(ncclBroadcast(unrelated, unrelated + 1, 1, 7, 0, runner.comm, stream), "ncclBroadcast");
}

// Delays the next call on the stream.
template <int Milliseconds>
void delay_stream(void* stream) {
  standin_stream_submit(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(Milliseconds)); }, nullptr);
}

// Writes a rank's value followed by fill values, issues NCCL calls on stream 0 and then delays that stream.
void start_delayed(rank_runner& runner, float* own, int earlier_calls) {
  own[0] = static_cast<float>(runner.rank() + 3);
  own[1] = own[2] = own[3] = -100;
  broadcast_in_a_row(runner, own + 8, runner.stream(0), earlier_calls);
  delay_stream<200>(runner.stream(0));
}

// NCCL refuses the message to the own rank that orders a sum after many NCCL calls. Prints the number of events that
// both ranks have recorded after these calls, and the result of the sum.
int refused_self_message(const std::string& function) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  const int before = standin_driver_calls("cuEventRecord");
  run_in_threads(runners, [&](rank_runner& runner) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    broadcast_in_a_row(runner, static_cast<float*>(memory), runner.stream(0), 40);
    runner.synchronize();
    cudaFree(memory);
  });
  std::printf("records %d\n", standin_driver_calls("cuEventRecord") - before);
  standin_fail(function.c_str(), 1, 5);
  print_sum_of_rank_0(runners, 1);
  return 0;
}

// Issues enough calls on one stream that events are no longer recorded, then messages or a broadcast that NCCL
// executes late on it, then a sum of their results on another stream. With `grouped`, NCCL's group already
// contains a call of another communicator when the sum is issued.
int after_nccl_call(int earlier_calls, bool configured, bool grouped) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    void *memory = nullptr, *other = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    check(ncclCommSplit(runner.comm, 0, runner.rank(), &other, nullptr), "ncclCommSplit");
    auto* const own = static_cast<float*>(memory);
    start_delayed(runner, own, earlier_calls);
    if (configured) {
      const int configuration = 1;  // only passed through
      check(ncclBroadcastConfig(own, own + 1, 1, 7, 1, runner.comm, runner.stream(0), &configuration),
            "ncclBroadcastConfig");
    } else {
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclSend(own, 1, 7, 1 - runner.rank(), runner.comm, runner.stream(0)), "ncclSend");
      check(ncclRecv(own + 1, 1, 7, 1 - runner.rank(), runner.comm, runner.stream(0)), "ncclRecv");
      check(ncclGroupEnd(), "ncclGroupEnd");
    }
    if (grouped) {
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclBroadcast(own + 8, own + 9, 1, 7, 0, other, runner.stream(0)), "ncclBroadcast");
    }
    check(ncclAllReduce(own + 1, own + 2, 1, 7, 0, runner.comm, runner.stream(1)), "ncclAllReduce");
    if (grouped) check(ncclGroupEnd(), "ncclGroupEnd");
    runner.synchronize();
    if (own[2] != (configured ? 4 + 4 : 3 + 4)) ++wrong;
    cudaFree(memory);
    for (void* const each : {other, runner.comm}) check(ncclCommDestroy(each), "ncclCommDestroy");
  });
  return wrong;
}

// A call that NCCL refuses, between a delayed sum on stream 0 and a call on another stream that reads its
// result. The reader is an Isthmus call, or an NCCL call on a third stream.
int after_refused_call(int earlier_calls, bool nccl_reads, bool grouped) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    void *memory = nullptr, *third_stream = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    check(cudaStreamCreateWithFlags(&third_stream, 1), "cudaStreamCreateWithFlags");
    auto* const own = static_cast<float*>(memory);
    start_delayed(runner, own, earlier_calls);
    check(ncclAllReduce(own, own + 1, 1, 7, 0, runner.comm, runner.stream(0)), "ncclAllReduce");
    if (grouped) check(ncclGroupStart(), "ncclGroupStart");
    const int error_status = ncclAllReduce(own, own, 1, 7, 77, runner.comm, runner.stream(nccl_reads ? 1 : 0));
    const int end_status = grouped ? ncclGroupEnd() : error_status;
    if (error_status == 0 || end_status == 0) ++wrong;
    if (nccl_reads)
      check(ncclBroadcast(own + 1, own + 2, 1, 7, 1, runner.comm, third_stream), "ncclBroadcast");
    else
      check(ncclAllGather(own + 1, own + 2, 1, 7, runner.comm, runner.stream(1)), "ncclAllGather");
    check(cudaStreamSynchronize(third_stream), "cudaStreamSynchronize");
    runner.synchronize();
    if (own[2] != 3 + 4) ++wrong;
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
    check(cudaStreamDestroy(third_stream), "cudaStreamDestroy");
    cudaFree(memory);
  });
  return wrong;
}

// A group whose end is simulated moves no data; the next group is executed.
int simulated() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const own = static_cast<float*>(memory);
    std::fill(own, own + 8, -100.0f);
    own[0] = static_cast<float>(runner.rank() + 3);
    for (const bool simulates : {true, false}) {
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclAllReduce(own, own + 1, 1, 7, 0, runner.comm, runner.stream(0)), "ncclAllReduce");
      check(ncclBroadcast(own, own + 2, 1, 7, 1, runner.comm, runner.stream(0)), "ncclBroadcast");
      check(simulates ? ncclGroupSimulateEnd(nullptr) : ncclGroupEnd(), "the group's end");
      runner.synchronize();
      if (own[1] != (simulates ? -100 : 3 + 4) || own[2] != (simulates ? -100 : 4)) ++wrong;
    }
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
    cudaFree(memory);
  });
  return wrong;
}

// A chain of calls, executed by Isthmus or NCCL according to rules. Each call reads the result of the previous
// one. Streams are chosen at random and sometimes delayed. In between there are calls of another communicator,
// inside or outside of a group, calls that NCCL refuses, and long runs of calls on one stream. Only the
// sequence of collectives is the same on all ranks.
int chain(int length, std::uint64_t seed) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    std::mt19937_64 shared_random(seed), own_random(seed * 2 + static_cast<std::uint64_t>(runner.rank()));
    const auto draw_shared = [&](unsigned n) { return shared_random() % n; };
    const auto draw_private = [&](unsigned n) { return own_random() % n; };
    void *memory = nullptr, *other = nullptr, *third_stream = nullptr;
    check(cudaMalloc(&memory, 65536), "cudaMalloc");
    check(cudaStreamCreateWithFlags(&third_stream, 1), "cudaStreamCreateWithFlags");
    check(ncclCommSplit(runner.comm, 0, runner.rank(), &other, nullptr), "ncclCommSplit");
    void* const streams[] = {runner.stream(0), runner.stream(1), third_stream};
    auto* const cells = static_cast<float*>(memory);
    float* const unrelated = cells + 8192;
    std::fill(cells, cells + 2 * length + 2, -100.0f);
    cells[0] = 7;
    for (int i = 0; i < length; ++i) {
      float *const from = cells + 2 * i, *const to = from + 2;
      void* const stream = streams[draw_private(3)];
      if (draw_private(3) == 0) delay_stream<4>(stream);
      if (draw_shared(6) == 0) broadcast_in_a_row(runner, unrelated, stream, 20);
      if (draw_private(4) == 0 && ncclAllReduce(from, to, 1, 7, 77, runner.comm, streams[draw_private(3)]) == 0)
        ++wrong;
      const bool has_other = draw_shared(3) == 0, other_first = draw_shared(2) == 0;
      const bool grouped = draw_private(2) == 0;
      if (grouped) check(ncclGroupStart(), "ncclGroupStart");
      const auto call_other = [&] {
        check(ncclBroadcast(unrelated + 2, unrelated + 3, 1, 7, 0, other, streams[draw_private(3)]),
              "ncclBroadcast");
      };
      if (has_other && other_first) call_other();
      switch (draw_shared(3)) {
        case 0: check(ncclAllReduce(from, to, 1, 7, 3, runner.comm, stream), "ncclAllReduce"); break;
        case 1: check(ncclAllGather(from, to, 1, 7, runner.comm, stream), "ncclAllGather"); break;
        default: check(ncclBroadcast(from, to, 1, 7, i % 2, runner.comm, stream), "ncclBroadcast"); break;
      }
      if (has_other && !other_first) call_other();
      if (grouped) check(ncclGroupEnd(), "ncclGroupEnd");
    }
    runner.synchronize();
    check(cudaStreamSynchronize(third_stream), "cudaStreamSynchronize");
    for (int i = 1; i <= length; ++i)
      if (cells[2 * i] != 7) ++wrong;
    for (void* const each : {other, runner.comm}) check(ncclCommDestroy(each), "ncclCommDestroy");
    check(cudaStreamDestroy(third_stream), "cudaStreamDestroy");
    cudaFree(memory);
  });
  return wrong;
}

// Random exchanges of two ranks, with short and long messages, which rules can assign to different libraries. NCCL runs the
// k-th send and the k-th receive of a group together, so each rank may divide the exchanges into groups as it likes, or
// issue one of them without a group while the other rank groups it.
class exchange_program {
 public:
  exchange_program(rank_runner& runner, int length, std::uint64_t seed)
      : m_runner(runner), m_shared(seed), m_private(seed * 2 + static_cast<std::uint64_t>(runner.rank())) {
    check(cudaMalloc(&m_memory, static_cast<std::size_t>(length) * 8 * longest), "cudaMalloc");
    m_next = static_cast<unsigned char*>(m_memory);
    std::memset(m_next, poison, static_cast<std::size_t>(length) * 8 * longest);
  }
  ~exchange_program() {
    for (void* const stream : {m_runner.stream(0), m_runner.stream(1)})
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    cudaFree(m_memory);
  }

  int run(int length) {
    for (int i = 0; i < length; ++i) {
      const auto kind = draw_shared(8);
      if (kind == 0) {
        end_group();
        exchange_without_group(static_cast<int>(draw_shared(2)));
      } else if (kind == 1) {
        end_group();
        send_several(static_cast<int>(draw_shared(2)));
      } else {
        if (kind == 2) end_group();
        begin_group();
        if (kind == 2) post_collective();
        if (kind == 3) post(m_runner.rank(), m_runner.rank(), draw_message());
        const message pair[] = {draw_message(), draw_message()};  // by sending rank
        // The stand-in for NCCL requires one order of collectives and messages.
        const int first = static_cast<int>(kind == 2 ? draw_shared(2) : draw_private(2));
        for (const int from : {first, 1 - first}) post(from, 1 - from, pair[from]);
        if (kind == 2 || draw_private(3) == 0) end_group();
      }
    }
    end_group();
    m_runner.synchronize();
    int wrong = m_wrong;
    for (const arrival& each : m_arrivals) wrong += is_wrong(each) ? 1 : 0;
    return wrong;
  }

 private:
  static constexpr std::size_t longest = 100'000;
  static constexpr unsigned char poison = 0xa5;
  struct message {
    std::size_t length;
    std::uint64_t seed;
  };
  struct arrival {
    unsigned char* data;
    std::size_t length;
    std::uint64_t seed;
  };
  struct inspection {
    std::vector<arrival> arrivals;
    std::atomic<int>* wrong;
  };

  std::uint64_t draw_shared(unsigned n) { return m_shared() % n; }
  std::uint64_t draw_private(unsigned n) { return m_private() % n; }
  message draw_message() {
    const std::size_t length = draw_shared(6) == 0   ? 0
                               : draw_shared(2) == 0 ? draw_shared(4096)
                                                     : draw_shared(longest);
    return {length, m_shared()};
  }
  static void fill(unsigned char* data, std::size_t length, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < length; ++i) data[i] = static_cast<unsigned char>(random());
  }
  static bool is_wrong(const arrival& each) {
    std::vector<unsigned char> expected(each.length + 1, poison);
    fill(expected.data(), each.length, each.seed);
    return std::memcmp(expected.data(), each.data, expected.size()) != 0;
  }
  unsigned char* allocate(std::size_t length) { return std::exchange(m_next, m_next + length + 1); }
  void* random_stream() {
    void* const stream = m_runner.stream(draw_private(2));
    if (draw_private(8) == 0) delay_stream<2>(stream);
    return stream;
  }
  void* message_stream() {
    void* const stream = random_stream();
    if (m_is_grouped) m_streams.push_back(stream);
    return stream;
  }

  void begin_group() {
    if (!std::exchange(m_is_grouped, true)) check(ncclGroupStart(), "ncclGroupStart");
  }
  // Later work on each stream with messages finds all messages of the group.
  void end_group() {
    if (std::exchange(m_is_grouped, false)) check(ncclGroupEnd(), "ncclGroupEnd");
    for (void* const stream : m_streams)
      standin_stream_submit(
          stream,
          [](void* argument) {
            const std::unique_ptr<inspection> work(static_cast<inspection*>(argument));
            for (const arrival& each : work->arrivals) *work->wrong += is_wrong(each) ? 1 : 0;
          },
          new inspection{m_group_arrivals, &m_wrong});
    m_streams.clear();
    m_group_arrivals.clear();
  }

  // Issues this rank's part of a message.
  void post(int from, int to, const message& each) {
    if (from == m_runner.rank()) {
      unsigned char* const data = allocate(each.length);
      fill(data, each.length, each.seed);
      check(ncclSend(each.length == 0 ? nullptr : data, each.length, 1, to, m_runner.comm, message_stream()),
            "ncclSend");
    }
    if (to == m_runner.rank()) {
      m_arrivals.push_back({allocate(each.length), each.length, each.seed});
      if (m_is_grouped) m_group_arrivals.push_back(m_arrivals.back());
      check(ncclRecv(m_arrivals.back().data, each.length, 1, from, m_runner.comm, message_stream()),
            "ncclRecv");
    }
  }
  void post_collective() {
    const bool is_sum = draw_shared(2) == 0;
    const std::uint64_t seed = m_shared();
    unsigned char* const data = allocate(64);
    fill(data, 64, m_runner.rank() == 0 ? seed : 0);
    if (is_sum && m_runner.rank() != 0) std::memset(data, 0, 64);
    check(is_sum ? ncclAllReduce(data, data, 64, 1, 0, m_runner.comm, random_stream())
                 : ncclBroadcast(data, data, 64, 1, 0, m_runner.comm, random_stream()),
          "a collective");
    m_arrivals.push_back({data, 64, seed});
  }
  // One rank groups its two messages, the other rank issues them one by one.
  void exchange_without_group(int ungrouped_rank) {
    const message pair[] = {draw_message(), draw_message()};
    if (m_runner.rank() != ungrouped_rank) begin_group();
    for (const int from : {0, 1}) post(from, 1 - from, pair[from]);
    end_group();
  }
  // Each rank divides these messages into groups as it likes.
  void send_several(int from) {
    for (std::uint64_t n = 1 + draw_shared(6); n > 0; --n) {
      if (draw_private(2) == 0) begin_group();
      post(from, 1 - from, draw_message());
      if (draw_private(2) == 0) end_group();
    }
    end_group();
  }

  rank_runner& m_runner;
  std::mt19937_64 m_shared, m_private;
  void* m_memory = nullptr;
  unsigned char* m_next;
  bool m_is_grouped = false;
  std::vector<void*> m_streams;  // of the open group
  std::vector<arrival> m_arrivals, m_group_arrivals;
  std::atomic<int> m_wrong{0};
};

int messages(int length, std::uint64_t seed) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    wrong += exchange_program(runner, length, seed).run(length);
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  });
  return wrong;
}

// Rank 0 groups a short message of one communicator and a long one of another; rank 1 receives them one by one on one stream.
int two_communicators() {
  auto runners = make_runners(2), others = make_runners(2);
  init_in_threads(runners);
  init_in_threads(others);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& runner) {
    constexpr std::size_t lengths[] = {64, 1 << 20};
    rank_runner& other = *others[static_cast<std::size_t>(runner.rank())];
    void* const communicators[] = {runner.comm, other.comm};
    void* const stream = runner.stream(0);
    if (runner.rank() == 0) check(ncclGroupStart(), "ncclGroupStart");
    std::vector<unsigned char*> blocks;
    for (const int i : {0, 1}) {
      void* memory = nullptr;
      check(cudaMalloc(&memory, lengths[i]), "cudaMalloc");
      blocks.push_back(static_cast<unsigned char*>(memory));
      std::memset(memory, runner.rank() == 0 ? 17 + i : 0xa5, lengths[i]);
      check(runner.rank() == 0 ? ncclSend(memory, lengths[i], 1, 1, communicators[i], stream)
                               : ncclRecv(memory, lengths[i], 1, 0, communicators[i], stream),
            "a message");
    }
    if (runner.rank() == 0) check(ncclGroupEnd(), "ncclGroupEnd");
    runner.synchronize();
    for (const int i : {0, 1})
      wrong += static_cast<int>(
          std::count_if(blocks[i], blocks[i] + lengths[i], [i](unsigned char each) { return each != 17 + i; }));
    check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
    check(ncclCommDestroy(other.comm), "ncclCommDestroy");
  });
  return wrong;
}

nccl_id shared_id(const std::string& file, int rank) {
  nccl_id id{};
  if (rank == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::ofstream(file + ".new", std::ios::binary).write(id.internal, sizeof id.internal);
    std::rename((file + ".new").c_str(), file.c_str());
  }
  while (!std::ifstream(file, std::ios::binary).read(id.internal, sizeof id.internal))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return id;
}

// One process per rank. `lost`: rank 1 exits, and the others check what NCCL reports.
int one_rank(int rank, int size, const std::string& file, const std::string& mode) {
  rank_runner runner(rank, size, rank);
  check(ncclCommInitRank(&runner.comm, size, shared_id(file, rank), rank), "ncclCommInitRank");
  if (mode == "lost") {
    if (rank == 1) std::_Exit(0);
    int error = 0;
    while (error == 0) {
      check(ncclCommGetAsyncError(runner.comm, &error), "ncclCommGetAsyncError");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::printf("error %d\n", error);
    // NCCL has no error: its internal queries must not get Isthmus's result.
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const bytes = static_cast<signed char*>(memory);
    bytes[0] = 7;
    check(ncclGroupStart(), "ncclGroupStart");
    const int sent = ncclSend(bytes, 1, 0, rank, runner.comm, runner.stream(0));
    const int received = ncclRecv(bytes + 1, 1, 0, rank, runner.comm, runner.stream(0));
    const int end_status = ncclGroupEnd();
    if (sent == 0) runner.synchronize();
    std::printf("sent %d %d %d %d\n", sent, received, end_status, bytes[1]);
    // After the first call that Isthmus cannot execute, all calls go to NCCL, whose internal queries
    // still get NCCL's result.
    const int allreduce_status = ncclAllReduce(bytes, bytes, 1, 0, 0, runner.comm, runner.stream(0));
    const int group_results[] = {ncclGroupStart(), ncclSend(bytes, 1, 0, rank, runner.comm, runner.stream(0)),
                                 ncclRecv(bytes + 1, 1, 0, rank, runner.comm, runner.stream(0)),
                                 ncclGroupEnd()};
    std::printf("again %d %d %d %d %d\n", allreduce_status, group_results[0], group_results[1],
                group_results[2], group_results[3]);
    std::fflush(stdout);
    std::_Exit(0);
  }
  const int wrong = run_calls(runner, 5, 40);
  check(ncclCommDestroy(runner.comm), "ncclCommDestroy");
  return wrong;
}

int run(const std::vector<std::string>& words) {
  const std::string& mode = words.at(0);
  if (mode == "errors") return errors();
  if (mode == "order") return order();
  if (mode == "simulated") return simulated();
  if (mode == "asynchronous_error") return asynchronous_error();
  if (mode == "revoke") return revoke();
  if (mode == "refused_by_backend") return refused_by_backend();
  if (mode == "refused_self_message") return refused_self_message(words.at(1));
  if (mode == "behind_nccl")
    return after_nccl_call(std::stoi(words.at(1)), words.at(2) == "broadcast", words.size() > 3);
  if (mode == "messages") return messages(std::stoi(words.at(1)), std::stoull(words.at(2)));
  if (mode == "two_communicators") return two_communicators();
  if (mode == "chain") return chain(std::stoi(words.at(1)), std::stoull(words.at(2)));
  if (mode == "behind_refused")
    return after_refused_call(std::stoi(words.at(1)), words.at(2) == "nccl", words.size() > 3);
  const int size = std::stoi(words.at(1));
  if (mode == "rank") return one_rank(size, std::stoi(words.at(2)), words.at(3), words.at(4));
  if (mode == "abort") return abort_one(size);
  if (mode == "unseen") return unseen(size);
  if (mode == "reused_handles") return reused_handles(size);
  if (mode == "configured") return configured(size, words.at(2) == "blocking", words.at(3));
  if (mode == "abort_beside") return abort_while_peer_is_idle(size);
  const int calls = std::stoi(words.at(2));
  const std::uint64_t seed = std::stoull(words.at(3));
  if (mode == "threads") return threads(size, calls, seed);
  if (mode == "init_all") return one_thread(size, calls, seed, true);
  if (mode == "init_group") return one_thread(size, calls, seed, false);
  if (mode == "split") return split(size, calls, seed);
  if (mode == "uneven_groups") return uneven_groups(size, calls);
  if (mode == "mixed") return mixed(size, seed);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int wrong = run(std::vector<std::string>(argv + 1, argv + argc));
  std::printf("%d wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
