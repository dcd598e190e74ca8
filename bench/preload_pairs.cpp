// Effect of libisthmus_mpi_preload.so, also on a busy machine: in the processes of one MPI program, the same
// calls alternate between MPI_ names, which the library intercepts, and PMPI_ names, which call MPI directly.
// Both see the same disturbances, so their fastest batches (time_us.min) can be compared. The program does not
// link with Isthmus; isthmus run --mpi-shim starts it. Without the shim both variants are the same.
//
// A sample is a batch of consecutive calls divided by their number, and the maximum over ranks.
#include <mpi.h>

#include <cstring>
#include <functional>
#include <limits>

#include "harness/clock.hpp"
#include "harness/command.hpp"
#include "harness/document.hpp"
#include "harness/mpi_team.hpp"

namespace {

constexpr std::size_t min_pairs = 11, max_pairs = 2000;
constexpr std::uint64_t time_ns = 1'000'000'000;  // approximate time per point
constexpr double batch_us = 100;
constexpr int max_calls = 200;

struct call_pair {
  std::string collective;
  std::uint64_t bytes;
  std::function<void()> shim, plain;
};

double batch(const bench::team& ranks, const std::function<void()>& call, int calls) {
  ranks.barrier();
  const std::uint64_t start = bench::ticks();
  for (int i = 0; i < calls; ++i) call();
  const std::uint64_t elapsed = bench::ticks() - start;
  return ranks.slowest(static_cast<double>(elapsed) * bench::ns_per_tick() / 1e3 / calls);
}

// Sizes as in nccl-tests: of the larger buffer; for allgather, the contribution of one rank.
std::vector<call_pair> sized_call_pairs(std::uint64_t bytes, int size, float* send, float* recv) {
  const MPI_Comm comm = MPI_COMM_WORLD;
  const int count = static_cast<int>(bytes / sizeof(float)), block = std::max(1, count / size);
  // Each pair is the MPI_ call, then the same PMPI_ call.
  return {
      {"allreduce", bytes, [=] { MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, comm); },
       [=] { PMPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, comm); }},
      {"broadcast", bytes, [=] { MPI_Bcast(recv, count, MPI_FLOAT, 0, comm); },
       [=] { PMPI_Bcast(recv, count, MPI_FLOAT, 0, comm); }},
      {"allgather", bytes, [=] { MPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, comm); },
       [=] { PMPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, comm); }},
      {"alltoall", bytes, [=] { MPI_Alltoall(send, block, MPI_FLOAT, recv, block, MPI_FLOAT, comm); },
       [=] { PMPI_Alltoall(send, block, MPI_FLOAT, recv, block, MPI_FLOAT, comm); }},
      {"reduce_scatter", bytes, [=] { MPI_Reduce_scatter_block(send, recv, block, MPI_FLOAT, MPI_SUM, comm); },
       [=] { PMPI_Reduce_scatter_block(send, recv, block, MPI_FLOAT, MPI_SUM, comm); }},
  };
}

// A barrier, calls that the shim passes through, and a nonblocking call, which is handled by MPI under both
// names. Compared with the blocking call it shows what a progress engine of our own could gain.
std::vector<call_pair> small_call_pairs(int* in, int* out) {
  const auto nonblocking = [=] {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(in, out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  };
  return {
      {"barrier", 0, [] { MPI_Barrier(MPI_COMM_WORLD); }, [] { PMPI_Barrier(MPI_COMM_WORLD); }},
      {"allreduce of one rank", 4, [=] { MPI_Allreduce(in, out, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF); },
       [=] { PMPI_Allreduce(in, out, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF); }},
      {"allreduce with MPI_LAND", 4, [=] { MPI_Allreduce(in, out, 1, MPI_INT, MPI_LAND, MPI_COMM_SELF); },
       [=] { PMPI_Allreduce(in, out, 1, MPI_INT, MPI_LAND, MPI_COMM_SELF); }},
      {"iallreduce and wait", 4, nonblocking, nonblocking},
  };
}

std::string family() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text);
  if (version.find("Open MPI") != std::string::npos) return "openmpi";
  return version.find("Intel") != std::string::npos ? "impi" : "mpich";
}

void add(const bench::team& ranks, const call_pair& pair, const std::string& provider,
         const std::vector<double>& samples_us, nlohmann::json& records) {
  records.push_back(bench::record_of(
      {pair.collective, "float32", pair.bytes, ranks.size(), provider, "", "host"}, samples_us, {}));
  records.back()["samples"] = samples_us.size();
}

void measure(const bench::team& ranks, const call_pair& pair, nlohmann::json& records) {
  constexpr int warm_up = 20;
  double estimate_us = std::numeric_limits<double>::max();
  for (int i = 0; i < (pair.bytes > (1 << 20) ? 2 : warm_up); ++i)
    estimate_us = std::min({estimate_us, batch(ranks, pair.shim, 1), batch(ranks, pair.plain, 1)});
  const int calls = std::clamp(static_cast<int>(batch_us / estimate_us), 1, max_calls);
  std::vector<double> shim, plain;
  const std::uint64_t begin = bench::steady_ns();
  for (bool more = true; more;) {
    const bool is_shim_first = plain.size() % 2 == 0;
    if (is_shim_first) shim.push_back(batch(ranks, pair.shim, calls));
    plain.push_back(batch(ranks, pair.plain, calls));
    if (!is_shim_first) shim.push_back(batch(ranks, pair.shim, calls));
    const bool has_time = bench::steady_ns() - begin < time_ns;
    more = ranks.decide(plain.size() < min_pairs || (has_time && plain.size() < max_pairs)) != 0;
  }
  add(ranks, pair, family(), plain, records);
  add(ranks, pair, family() + "+shim", shim, records);
  if (ranks.rank() != 0) return;
  const auto plain_summary = bench::summarize(plain), shim_summary = bench::summarize(shim);
  std::printf("%-24s %9llu B %5zu pairs  min: %10.3f us, shim %10.3f, ratio %6.2f  median: ratio %6.2f\n",
              pair.collective.c_str(), static_cast<unsigned long long>(pair.bytes), plain.size(),
              plain_summary.min_us, shim_summary.min_us, plain_summary.min_us / shim_summary.min_us,
              plain_summary.median_us / shim_summary.median_us);
  std::fflush(stdout);
}

void measure_all(const bench::team& ranks, const std::vector<std::uint64_t>& sizes, const std::string& json) {
  const std::uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<float> send(largest / sizeof(float) + 1, 1.5f);
  std::vector<float> recv((largest / sizeof(float) + 1) * static_cast<std::size_t>(ranks.size()));
  int in = ranks.rank(), out = 0;
  nlohmann::json records = nlohmann::json::array();
  for (const call_pair& each : small_call_pairs(&in, &out)) measure(ranks, each, records);
  for (const std::uint64_t bytes : sizes)
    for (const call_pair& each : sized_call_pairs(bytes, ranks.size(), send.data(), recv.data()))
      measure(ranks, each, records);
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  if (ranks.rank() == 0)
    bench::write_records(json, "preload_pairs",
                         {{family(), std::string(version, std::strcspn(version, ",\n"))}}, std::move(records));
}

}  // namespace

// preload_pairs [SIZES [FILE]]
int main(int argc, char** argv) {
  setenv("ISTHMUS_MPI_ATTACH_MS", "0", 1);
  MPI_Init(&argc, &argv);
  int status = 1;
  try {
    const bench::team ranks = bench::create_mpi_team(120);
    const auto sizes = bench::parse_sizes(argc > 1 ? argv[1] : "8,1K,16K,256K,4M,32M");
    measure_all(ranks, sizes, argc > 2 ? argv[2] : "");
    status = 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "preload_pairs: %s\n", failure.what());
  }
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
