// A program that uses NCCL, as users write them. What it is run with (the preloaded library, and how Isthmus is
// configured) is its environment's. Usage: program WORLD RANKS CALLS SEED | program rank R N FILE WHAT ...
// Prints "N wrong" at its end.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nccl.hpp"
#include "rank_runner.hpp"

namespace {

using nccl_program::check;
using nccl_program::random_calls;
using nccl_program::rank_runner;

constexpr std::size_t batch = 8;  // calls that are issued before anybody waits

std::vector<std::unique_ptr<rank_runner>> make_runners(int size) {
  std::vector<std::unique_ptr<rank_runner>> runners;
  for (int rank = 0; rank < size; ++rank) runners.push_back(std::make_unique<rank_runner>(rank, size, rank));
  return runners;
}

// Calls in batches; some of them in groups of three.
int run_calls(rank_runner& mine, std::uint64_t seed, int calls) {
  int wrong = 0;
  const auto all = random_calls(seed, mine.size(), calls);
  for (std::size_t at = 0; at < all.size(); at += batch) {
    const std::vector some(all.begin() + static_cast<std::ptrdiff_t>(at),
                           all.begin() + static_cast<std::ptrdiff_t>(std::min(at + batch, all.size())));
    mine.prepare(some);
    const bool grouped = at / batch % 2 == 1;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (grouped && i % 3 == 0) check(ncclGroupStart(), "ncclGroupStart");
      check(mine.issue(i), "a call");
      if (grouped && (i % 3 == 2 || i + 1 == some.size())) check(ncclGroupEnd(), "ncclGroupEnd");
    }
    mine.synchronize();
    wrong += mine.wrong();
  }
  return wrong;
}

void run_in_threads(std::vector<std::unique_ptr<rank_runner>>& runners, const std::function<void(rank_runner&)>& work) {
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
  run_in_threads(runners, [&](rank_runner& mine) {
    check(ncclCommInitRank(&mine.comm, mine.size(), id, mine.rank()), "ncclCommInitRank");
  });
}

int threads(int size, int calls, std::uint64_t seed) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    wrong += run_calls(mine, seed, calls);
    check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
  });
  return wrong;
}

// One thread drives all ranks: each call of all of them is one group.
int one_thread(int size, int calls, std::uint64_t seed, bool by_all) {
  auto runners = make_runners(size);
  if (by_all) {
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
  for (std::size_t at = 0; at < all.size(); ++at) {
    for (auto& each : runners) each->prepare({all[at]});
    check(ncclGroupStart(), "ncclGroupStart");
    for (auto& each : runners) check(each->issue(0), "a call");
    check(ncclGroupEnd(), "ncclGroupEnd");
    for (auto& each : runners) each->synchronize();
    for (auto& each : runners) wrong += each->wrong();
  }
  for (auto& each : runners) check(ncclCommDestroy(each->comm), "ncclCommDestroy");
  return wrong;
}

// Parts of even and odd ranks, in reverse order, beside the whole; the last rank is in none.
int split(int size, int calls, std::uint64_t seed) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    void* part = nullptr;
    const int color = mine.rank() + 1 == size ? -1 : mine.rank() % 2;
    check(ncclCommSplit(mine.comm, color, -mine.rank(), &part, nullptr), "ncclCommSplit");
    wrong += run_calls(mine, seed, calls);
    if (part != nullptr) {
      int rank = 0, ranks = 0;
      ncclCommUserRank(part, &rank);
      ncclCommCount(part, &ranks);
      rank_runner there(rank, ranks, mine.rank());
      there.comm = part;
      wrong += run_calls(there, seed + static_cast<std::uint64_t>(color), calls);
      check(ncclCommDestroy(part), "ncclCommDestroy");
    }
    check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
  });
  return wrong;
}

// An allgather that not all ranks call.
void call_alone(rank_runner& mine) {
  conformance::test_case test;
  test.collective = ISTHMUS_ALLGATHER;
  test.count = 100;
  mine.prepare({test});
  check(mine.issue(0), "ncclAllGather");
}

// Rank 0 calls what nobody else does, and aborts: its stream ends, and so does the program.
int abort_one(int size) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  run_in_threads(runners, [&](rank_runner& mine) {
    if (mine.rank() == 0) call_alone(mine);
    check(ncclCommAbort(mine.comm), "ncclCommAbort");
    mine.synchronize();
  });
  return 0;
}

// Rank 1 aborts while it waits for what rank 0 never calls; rank 0, which waits for nothing, hears of no error
// and goes on to its end.
int abort_while_peer_is_idle(int size) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0}, ended{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    wrong += run_calls(mine, 3, 2);
    if (mine.rank() != 0) {
      call_alone(mine);
      check(ncclCommAbort(mine.comm), "ncclCommAbort");
      mine.synchronize();
      ++ended;
      return;
    }
    while (ended + 1 < size) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (int i = 0; i < 50; ++i) {
      int error = 0;
      check(ncclCommGetAsyncError(mine.comm, &error), "ncclCommGetAsyncError");
      if (error != 0) ++wrong;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
  });
  return wrong;
}

// Wrong arguments: the codes are for who compares them with those of another run.
int errors() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  void *const comm = runners[0]->comm, *const stream = runners[0]->stream(0);
  float data[8] = {};
  const int codes[] = {ncclAllReduce(data, data, 4, 99, 0, comm, stream),
                       ncclAllReduce(data, data, 4, 7, -2, comm, stream),
                       ncclAllReduce(data, data, 4, 7, 77, comm, stream),
                       ncclAllReduce(nullptr, nullptr, 4, 7, 0, comm, stream),
                       ncclBroadcast(data, data, 4, 7, 2, comm, stream),
                       ncclBroadcast(data, data, 4, 7, -1, comm, stream),
                       ncclReduce(data, data, 4, -3, 0, 0, comm, stream),
                       ncclAllReduce(data, data, 4, 7, 0, nullptr, stream),
                       ncclGroupEnd()};
  std::printf("codes");
  for (const int code : codes) std::printf(" %d", code);
  std::printf("\n");
  for (auto& each : runners) check(ncclCommDestroy(each->comm), "ncclCommDestroy");
  return 0;
}

// What Isthmus has no part in, between calls that it takes: messages, an operation of the program's own.
int mixed(int size, std::uint64_t seed) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    int op = 0;
    float two = 2;
    check(ncclRedOpCreatePreMulSum(&op, &two, 7, 1, mine.comm), "ncclRedOpCreatePreMulSum");
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const numbers = static_cast<float*>(memory);
    for (int i = 0; i < 4; ++i) {
      wrong += run_calls(mine, seed + static_cast<std::uint64_t>(i), 8);
      numbers[0] = static_cast<float>(mine.rank());
      numbers[1] = -1;
      check(ncclAllReduce(numbers, numbers + 2, 1, 7, op, mine.comm, mine.stream(0)), "ncclAllReduce");
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclSend(numbers, 1, 7, (mine.rank() + 1) % size, mine.comm, mine.stream(1)), "ncclSend");
      check(ncclRecv(numbers + 1, 1, 7, (mine.rank() + size - 1) % size, mine.comm, mine.stream(1)), "ncclRecv");
      check(ncclGroupEnd(), "ncclGroupEnd");
      mine.synchronize();
      if (numbers[1] != static_cast<float>((mine.rank() + size - 1) % size)) ++wrong;
    }
    cudaFree(memory);
    check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
  });
  return wrong;
}

// A rank groups what the next one calls one by one, each call reading what the one before it wrote: sums, and
// broadcasts, which rules give to NCCL.
int uneven_groups(int size, int calls) {
  auto runners = make_runners(size);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const sent = static_cast<float*>(memory);
    float* const summed = sent + 1;
    void* const stream = mine.stream(0);
    const std::vector<std::vector<bool>> orders = {{true, false}, {false, true}, {true, true, false, true}};
    for (int i = 0; i < calls; ++i) {
      const bool grouped = (i + mine.rank()) % 2 == 1;
      float wanted_sent = *sent = static_cast<float>(i + 1), wanted_sum = *summed = -1;
      if (grouped) check(ncclGroupStart(), "ncclGroupStart");
      for (const bool is_sum : orders[static_cast<std::size_t>(i) % orders.size()]) {
        check(is_sum ? ncclAllReduce(sent, summed, 1, 7, 0, mine.comm, stream)
                    : ncclBroadcast(summed, sent, 1, 7, 0, mine.comm, stream),
             "a call");
        (is_sum ? wanted_sum : wanted_sent) = is_sum ? wanted_sent * static_cast<float>(size) : wanted_sum;
      }
      if (grouped) check(ncclGroupEnd(), "ncclGroupEnd");
      mine.synchronize();
      if (*sent != wanted_sent || *summed != wanted_sum) ++wrong;
    }
    cudaFree(memory);
    check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
  });
  return wrong;
}

// Two calls on one stream and one on another: how often a stream was made to wait, by both ranks.
int order() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  const int before = standin_driver_calls("cuStreamWaitEvent");
  run_in_threads(runners, [&](rank_runner& mine) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    for (const std::size_t stream : {0, 0, 1})
      check(ncclAllReduce(memory, memory, 4, 2, 0, mine.comm, mine.stream(stream)), "ncclAllReduce");
    mine.synchronize();
    cudaFree(memory);
  });
  std::printf("waits %d\n", standin_driver_calls("cuStreamWaitEvent") - before);
  run_in_threads(runners, [](rank_runner& mine) { check(ncclCommDestroy(mine.comm), "ncclCommDestroy"); });
  return 0;
}

// Calls that NCCL carries out, from `aside` to the place behind it.
void broadcast_in_a_row(rank_runner& mine, float* unrelated, void* stream, int calls) {
  for (int i = 0; i < calls; ++i)
    check(ncclBroadcast(unrelated, unrelated + 1, 1, 7, 0, mine.comm, stream), "ncclBroadcast");
}

// What is called on the stream next comes so much later.
template <int Milliseconds>
void delay_stream(void* stream) {
  standin_stream_submit(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(Milliseconds)); }, nullptr);
}

// A rank's value and poison behind it, NCCL's calls on stream 0, and a delay there.
void start_delayed(rank_runner& mine, float* own, int earlier_calls) {
  own[0] = static_cast<float>(mine.rank() + 3);
  own[1] = own[2] = own[3] = -100;
  broadcast_in_a_row(mine, own + 8, mine.stream(0), earlier_calls);
  delay_stream<200>(mine.stream(0));
}

// Calls on one stream, as many as it takes until it is trusted to be the only one; messages or a broadcast that
// NCCL carries out late there, then a sum of what it brings on another one. In a group, NCCL's group has begun
// with another communicator's call when the sum is called.
int after_nccl_call(int earlier_calls, bool configured, bool grouped) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    void *memory = nullptr, *other = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    check(ncclCommSplit(mine.comm, 0, mine.rank(), &other, nullptr), "ncclCommSplit");
    auto* const own = static_cast<float*>(memory);
    start_delayed(mine, own, earlier_calls);
    if (configured) {
      const int configuration = 1;  // only handed on
      check(ncclBroadcastConfig(own, own + 1, 1, 7, 1, mine.comm, mine.stream(0), &configuration),
           "ncclBroadcastConfig");
    } else {
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclSend(own, 1, 7, 1 - mine.rank(), mine.comm, mine.stream(0)), "ncclSend");
      check(ncclRecv(own + 1, 1, 7, 1 - mine.rank(), mine.comm, mine.stream(0)), "ncclRecv");
      check(ncclGroupEnd(), "ncclGroupEnd");
    }
    if (grouped) {
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclBroadcast(own + 8, own + 9, 1, 7, 0, other, mine.stream(0)), "ncclBroadcast");
    }
    check(ncclAllReduce(own + 1, own + 2, 1, 7, 0, mine.comm, mine.stream(1)), "ncclAllReduce");
    if (grouped) check(ncclGroupEnd(), "ncclGroupEnd");
    mine.synchronize();
    if (own[2] != (configured ? 4 + 4 : 3 + 4)) ++wrong;
    cudaFree(memory);
    for (void* const each : {other, mine.comm}) check(ncclCommDestroy(each), "ncclCommDestroy");
  });
  return wrong;
}

// A call that NCCL refuses between a sum that is late on stream 0 and what reads it on another one: a call of
// Isthmus' on that of the refused call's, or NCCL's own on a third.
int after_refused_call(int earlier_calls, bool nccl_reads, bool grouped) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    void *memory = nullptr, *third = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    check(cudaStreamCreateWithFlags(&third, 1), "cudaStreamCreateWithFlags");
    auto* const own = static_cast<float*>(memory);
    start_delayed(mine, own, earlier_calls);
    check(ncclAllReduce(own, own + 1, 1, 7, 0, mine.comm, mine.stream(0)), "ncclAllReduce");
    if (grouped) check(ncclGroupStart(), "ncclGroupStart");
    const int refused = ncclAllReduce(own, own, 1, 7, 77, mine.comm, mine.stream(nccl_reads ? 1 : 0));
    const int ended = grouped ? ncclGroupEnd() : refused;
    if (refused == 0 || ended == 0) ++wrong;
    if (nccl_reads)
      check(ncclBroadcast(own + 1, own + 2, 1, 7, 1, mine.comm, third), "ncclBroadcast");
    else
      check(ncclAllGather(own + 1, own + 2, 1, 7, mine.comm, mine.stream(1)), "ncclAllGather");
    check(cudaStreamSynchronize(third), "cudaStreamSynchronize");
    mine.synchronize();
    if (own[2] != 3 + 4) ++wrong;
    check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
    check(cudaStreamDestroy(third), "cudaStreamDestroy");
    cudaFree(memory);
  });
  return wrong;
}

// A group whose end is simulated moves nothing; the next one is carried out.
int simulated() {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const own = static_cast<float*>(memory);
    std::fill(own, own + 8, -100.0f);
    own[0] = static_cast<float>(mine.rank() + 3);
    for (const bool simulates : {true, false}) {
      check(ncclGroupStart(), "ncclGroupStart");
      check(ncclAllReduce(own, own + 1, 1, 7, 0, mine.comm, mine.stream(0)), "ncclAllReduce");
      check(ncclBroadcast(own, own + 2, 1, 7, 1, mine.comm, mine.stream(0)), "ncclBroadcast");
      check(simulates ? ncclGroupSimulateEnd(nullptr) : ncclGroupEnd(), "the group's end");
      mine.synchronize();
      if (own[1] != (simulates ? -100 : 3 + 4) || own[2] != (simulates ? -100 : 4)) ++wrong;
    }
    check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
    cudaFree(memory);
  });
  return wrong;
}

// Calls by whoever rules say, each of which reads what the one before wrote, on streams that are drawn anew and
// sometimes late; between them calls of another communicator, in a group with them or not, calls that NCCL
// refuses, and as many on one stream as it takes until that is trusted. Ranks share only which calls come.
int chain(int length, std::uint64_t seed) {
  auto runners = make_runners(2);
  init_in_threads(runners);
  std::atomic<int> wrong{0};
  run_in_threads(runners, [&](rank_runner& mine) {
    std::mt19937_64 together(seed), alone(seed * 2 + static_cast<std::uint64_t>(mine.rank()));
    const auto of_all = [&](unsigned n) { return together() % n; };
    const auto of_one = [&](unsigned n) { return alone() % n; };
    void *memory = nullptr, *other = nullptr, *third = nullptr;
    check(cudaMalloc(&memory, 65536), "cudaMalloc");
    check(cudaStreamCreateWithFlags(&third, 1), "cudaStreamCreateWithFlags");
    check(ncclCommSplit(mine.comm, 0, mine.rank(), &other, nullptr), "ncclCommSplit");
    void* const streams[] = {mine.stream(0), mine.stream(1), third};
    auto* const cells = static_cast<float*>(memory);
    float* const unrelated = cells + 8192;
    std::fill(cells, cells + 2 * length + 2, -100.0f);
    cells[0] = 7;
    for (int i = 0; i < length; ++i) {
      float *const from = cells + 2 * i, *const to = from + 2;
      void* const stream = streams[of_one(3)];
      if (of_one(3) == 0) delay_stream<4>(stream);
      if (of_all(6) == 0) broadcast_in_a_row(mine, unrelated, stream, 20);
      if (of_one(4) == 0 && ncclAllReduce(from, to, 1, 7, 77, mine.comm, streams[of_one(3)]) == 0) ++wrong;
      const bool has_other = of_all(3) == 0, other_first = of_all(2) == 0;
      const bool grouped = of_one(2) == 0;
      if (grouped) check(ncclGroupStart(), "ncclGroupStart");
      const auto call_other = [&] {
        check(ncclBroadcast(unrelated + 2, unrelated + 3, 1, 7, 0, other, streams[of_one(3)]), "ncclBroadcast");
      };
      if (has_other && other_first) call_other();
      switch (of_all(3)) {
        case 0: check(ncclAllReduce(from, to, 1, 7, 3, mine.comm, stream), "ncclAllReduce"); break;
        case 1: check(ncclAllGather(from, to, 1, 7, mine.comm, stream), "ncclAllGather"); break;
        default: check(ncclBroadcast(from, to, 1, 7, i % 2, mine.comm, stream), "ncclBroadcast"); break;
      }
      if (has_other && !other_first) call_other();
      if (grouped) check(ncclGroupEnd(), "ncclGroupEnd");
    }
    mine.synchronize();
    check(cudaStreamSynchronize(third), "cudaStreamSynchronize");
    for (int i = 1; i <= length; ++i)
      if (cells[2 * i] != 7) ++wrong;
    for (void* const each : {other, mine.comm}) check(ncclCommDestroy(each), "ncclCommDestroy");
    check(cudaStreamDestroy(third), "cudaStreamDestroy");
    cudaFree(memory);
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

// A process of its own for each rank. `lost`: rank 1 ends in the middle, and the others ask what NCCL says.
int one_rank(int rank, int size, const std::string& file, const std::string& what) {
  rank_runner mine(rank, size, rank);
  check(ncclCommInitRank(&mine.comm, size, shared_id(file, rank), rank), "ncclCommInitRank");
  if (what == "lost") {
    if (rank == 1) std::_Exit(0);
    int error = 0;
    while (error == 0) {
      check(ncclCommGetAsyncError(mine.comm, &error), "ncclCommGetAsyncError");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::printf("error %d\n", error);
    // NCCL knows of no error: what it asks itself is not Isthmus' to answer.
    void* memory = nullptr;
    check(cudaMalloc(&memory, 4096), "cudaMalloc");
    auto* const bytes = static_cast<signed char*>(memory);
    bytes[0] = 7;
    check(ncclGroupStart(), "ncclGroupStart");
    const int sent = ncclSend(bytes, 1, 0, rank, mine.comm, mine.stream(0));
    const int received = ncclRecv(bytes + 1, 1, 0, rank, mine.comm, mine.stream(0));
    const int ended = ncclGroupEnd();
    if (sent == 0) mine.synchronize();
    std::printf("sent %d %d %d %d\n", sent, received, ended, bytes[1]);
    // From a call that Isthmus can't carry out on all are NCCL's, whose answers to itself still are its own.
    const int handed_on = ncclAllReduce(bytes, bytes, 1, 0, 0, mine.comm, mine.stream(0));
    const int again[] = {ncclGroupStart(), ncclSend(bytes, 1, 0, rank, mine.comm, mine.stream(0)),
                         ncclRecv(bytes + 1, 1, 0, rank, mine.comm, mine.stream(0)), ncclGroupEnd()};
    std::printf("again %d %d %d %d %d\n", handed_on, again[0], again[1], again[2], again[3]);
    std::fflush(stdout);
    std::_Exit(0);
  }
  const int wrong = run_calls(mine, 5, 40);
  check(ncclCommDestroy(mine.comm), "ncclCommDestroy");
  return wrong;
}

int run(const std::vector<std::string>& words) {
  const std::string& what = words.at(0);
  if (what == "errors") return errors();
  if (what == "order") return order();
  if (what == "simulated") return simulated();
  if (what == "behind_nccl")
    return after_nccl_call(std::stoi(words.at(1)), words.at(2) == "broadcast", words.size() > 3);
  if (what == "chain") return chain(std::stoi(words.at(1)), std::stoull(words.at(2)));
  if (what == "behind_refused")
    return after_refused_call(std::stoi(words.at(1)), words.at(2) == "nccl", words.size() > 3);
  const int size = std::stoi(words.at(1));
  if (what == "rank") return one_rank(size, std::stoi(words.at(2)), words.at(3), words.at(4));
  if (what == "abort") return abort_one(size);
  if (what == "abort_beside") return abort_while_peer_is_idle(size);
  const int calls = std::stoi(words.at(2));
  const std::uint64_t seed = std::stoull(words.at(3));
  if (what == "threads") return threads(size, calls, seed);
  if (what == "init_all") return one_thread(size, calls, seed, true);
  if (what == "init_group") return one_thread(size, calls, seed, false);
  if (what == "split") return split(size, calls, seed);
  if (what == "uneven_groups") return uneven_groups(size, calls);
  if (what == "mixed") return mixed(size, seed);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int wrong = run(std::vector<std::string>(argv + 1, argv + argc));
  std::printf("%d wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
