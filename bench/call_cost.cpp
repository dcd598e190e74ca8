// Host cost of a call with nothing to communicate: on a communicator of one rank the time is validation,
// selection and dispatch. For comparison: the same call through the mpi backend on MPI_COMM_SELF, and the plain
// MPI call; the difference is what Isthmus adds to MPI. Start it with mpiexec -n 1.
#include <isthmus/isthmus.h>

#include <isthmus/mpi.hpp>

#include "harness/clock.hpp"
#include "harness/report.hpp"

namespace {

using isthmus::detail::check;

constexpr int calls = 20000, repetitions = 25;

struct cost {
  std::string provider, backend, collective;
  std::uint64_t count;
  std::vector<double> call_us;
};

template <typename Call>
cost measure(std::string provider, std::string backend, std::string collective, std::uint64_t count,
             Call&& call) {
  std::vector<double> samples;
  for (int r = 0; r < repetitions; ++r) {
    const std::uint64_t start = bench::ticks();
    for (int i = 0; i < calls; ++i) call();
    samples.push_back(static_cast<double>(bench::ticks() - start) * bench::ns_per_tick() / 1e3 / calls);
  }
  return {std::move(provider), std::move(backend), std::move(collective), count, std::move(samples)};
}

// A communicator of only this rank, created with the current rules of the environment.
class self_communicator {
 public:
  explicit self_communicator(const char* backend) {
    setenv("ISTHMUS_BACKEND", backend, 1);
    m_communicator = isthmus::mpi::create(MPI_COMM_SELF);
  }
  ~self_communicator() { isthmus_communicator_destroy(m_communicator); }
  self_communicator(const self_communicator&) = delete;
  self_communicator& operator=(const self_communicator&) = delete;
  isthmus_communicator get() const { return m_communicator; }

 private:
  isthmus_communicator m_communicator = nullptr;
};

std::vector<cost> measure_all() {
  std::vector<cost> costs;
  float send = 1, recv = 0;
  for (const char* backend : {"shm", "mpi"}) {
    const self_communicator communicator(backend);
    for (const std::uint64_t count : {0, 1})
      costs.push_back(measure("isthmus", backend, "allreduce", count, [&] {
        check(
            isthmus_allreduce(&send, &recv, count, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicator.get(), nullptr));
      }));
    costs.push_back(measure("isthmus", backend, "barrier", 0,
                            [&] { check(isthmus_barrier(communicator.get(), nullptr)); }));
  }
  MPI_Comm comm = MPI_COMM_NULL;  // a duplicate, as in Isthmus
  MPI_Comm_dup(MPI_COMM_SELF, &comm);
  costs.push_back(
      measure("mpi", "", "allreduce", 1, [&] { MPI_Allreduce(&send, &recv, 1, MPI_FLOAT, MPI_SUM, comm); }));
  costs.push_back(measure("mpi", "", "barrier", 0, [&] { MPI_Barrier(comm); }));
  MPI_Comm_free(&comm);
  return costs;
}

nlohmann::json record_of(const cost& entry) {
  nlohmann::json record =
      bench::record_of({entry.collective, "float32", 4 * entry.count, 1, entry.provider, entry.backend, "host"},
                       entry.call_us, {});
  record["op"] = "sum";
  record["host_overhead_us"] = bench::median(entry.call_us);
  return record;
}

}  // namespace

int main(int argc, char** argv) {
  bench::options settings;
  CLI::App app("Measures the cost of a call on the host");
  app.add_option("--json", settings.json, "write the records to this file");
  CLI11_PARSE(app, argc, argv);
  settings.command = bench::command_of(argc, argv);

  int provided = MPI_THREAD_SINGLE, status = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  try {
    std::printf("%-10s %-8s %-10s %6s %10s %10s\n", "provider", "backend", "collective", "count", "median ns",
                "min ns");
    bench::report records(settings, {"isthmus", "isthmus", isthmus_version()}, 1);
    for (const cost& entry : measure_all()) {
      std::printf("%-10s %-8s %-10s %6llu %10.1f %10.1f\n", entry.provider.c_str(), entry.backend.c_str(),
                  entry.collective.c_str(), static_cast<unsigned long long>(entry.count),
                  bench::median(entry.call_us) * 1e3, bench::summarize(entry.call_us).min_us * 1e3);
      records.add_record(record_of(entry));
    }
    records.write();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "call_cost: %s\n", failure.what());
    status = 1;
  }
  MPI_Finalize();
  return status;
}
