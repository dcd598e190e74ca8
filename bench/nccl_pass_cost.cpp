// What a call of NCCL costs that libisthmus_nccl_preload.so passes on: in one process the same calls go by
// turns through the library and straight to NCCL. Their difference is the library's. On a communicator of one
// rank, which is never attached, or on one of several processes, where the library keeps the order with its own
// calls. Not linked with either: nccl_pass_cost LIBRARY NCCL [FILE [--rank R --size N
// --id MEETING_FILE]], as scripts/each_rank calls it; NCCL may be its stand-in of tests/standins.
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>

#include "harness/clock.hpp"
#include "harness/document.hpp"

namespace {

constexpr int batches = 400, calls = 500;

template <typename Function>
Function function_of(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("no ") + name);
  return reinterpret_cast<Function>(found);
}

void* open(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

double batch_us(const std::function<void()>& call) {
  const std::uint64_t start = bench::ticks();
  for (int i = 0; i < calls; ++i) call();
  return static_cast<double>(bench::ticks() - start) * bench::ns_per_tick() / 1e3 / calls;
}

// A question, a collective without elements, an empty group: nothing for a device to do.
std::vector<std::pair<std::string, std::function<void()>>> calls_of(void* library, void* comm, int* answer) {
  using count_function = int (*)(void*, int*);
  using sum_function = int (*)(const void*, void*, std::size_t, int, int, void*, void*);
  using group_function = int (*)();
  const auto count = function_of<count_function>(library, "ncclCommCount");
  const auto sum = function_of<sum_function>(library, "ncclAllReduce");
  const auto start = function_of<group_function>(library, "ncclGroupStart");
  const auto end = function_of<group_function>(library, "ncclGroupEnd");
  return {{"ncclCommCount", [=] { count(comm, answer); }},
          {"ncclAllReduce of nothing", [=] { sum(answer, answer, 0, 7, 0, comm, nullptr); }},
          {"an empty group", [=] {
             start();
             end();
           }}};
}

struct nccl_id {
  char internal[128];
};

struct seat {
  int rank = 0, ranks = 1;
  std::string meeting_file;
};

void must(int code, const char* what) {
  if (code != 0) throw std::runtime_error(std::string(what) + " failed");
}

nccl_id shared_id(void* shim, const seat& mine) {
  nccl_id id{};
  if (mine.rank == 0) {
    must(function_of<int (*)(nccl_id*)>(shim, "ncclGetUniqueId")(&id), "ncclGetUniqueId");
    std::ofstream(mine.meeting_file + ".new", std::ios::binary).write(id.internal, sizeof id.internal);
    std::rename((mine.meeting_file + ".new").c_str(), mine.meeting_file.c_str());
  }
  while (!std::ifstream(mine.meeting_file, std::ios::binary).read(id.internal, sizeof id.internal))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return id;
}

void* make_communicator(void* shim, const seat& mine) {
  void* comm = nullptr;
  if (mine.ranks == 1)
    must(function_of<int (*)(void**, int, const int*)>(shim, "ncclCommInitAll")(&comm, 1, nullptr),
         "ncclCommInitAll");
  else
    must(function_of<int (*)(void**, int, nccl_id, int)>(shim, "ncclCommInitRank")(
             &comm, mine.ranks, shared_id(shim, mine), mine.rank),
         "ncclCommInitRank");
  return comm;
}

void measure(const char* shim_path, const char* nccl_path, const std::string& json, const seat& mine) {
  setenv("ISTHMUS_NCCL_LIBRARY", nccl_path, 1);
  void *const shim = open(shim_path), *const nccl = open(nccl_path);
  void* const comm = make_communicator(shim, mine);
  int answer = 0;
  const auto ours = calls_of(shim, comm, &answer), plain = calls_of(nccl, comm, &answer);
  nlohmann::json records = nlohmann::json::array();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    std::vector<double> with_us, without_us;
    for (int each = 0; each < batches; ++each) {
      with_us.push_back(batch_us(ours[i].second));
      without_us.push_back(batch_us(plain[i].second));
    }
    records.push_back(
        bench::record_of({ours[i].first, "float32", 0, mine.ranks, "nccl", "", "host"}, without_us, {}));
    records.push_back(
        bench::record_of({ours[i].first, "float32", 0, mine.ranks, "nccl+shim", "", "host"}, with_us, {}));
    if (mine.rank == 0)
      std::printf("%-26s medians: %8.4f us, through the library %8.4f\n", ours[i].first.c_str(),
                  bench::median(without_us), bench::median(with_us));
  }
  must(function_of<int (*)(void*)>(shim, "ncclCommDestroy")(comm), "ncclCommDestroy");
  if (mine.rank != 0) return;
  const std::string file(nccl_path);
  bench::write_records(json, "nccl_pass_cost", {{"nccl", file.substr(file.rfind('/') + 1)}},
                       std::move(records));
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("What a call of NCCL costs that the preloaded library passes on");
  std::string library, nccl, json;
  seat mine;
  app.add_option("library", library, "libisthmus_nccl_preload.so")->required();
  app.add_option("nccl", nccl, "NCCL, or its stand-in")->required();
  app.add_option("json", json, "write the records to this file");
  app.add_option("--rank", mine.rank, "of several processes: this one's rank");
  app.add_option("--size", mine.ranks, "their number");
  app.add_option("--id", mine.meeting_file, "the file through which they meet");
  CLI11_PARSE(app, argc, argv);
  measure(library.c_str(), nccl.c_str(), json, mine);
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "nccl_pass_cost: %s\n", failure.what());
  return 1;
}
