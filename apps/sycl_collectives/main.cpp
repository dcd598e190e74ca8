// Runs every collective of Isthmus on SYCL buffers and USM: MPI ranks, each on a SYCL device, compute inputs
// with a kernel, check every result, and compare the times with plain MPI.
//
//   mpiexec -n 4 sycl_collectives --out results.json
//
// Times: for each call the maximum over ranks, then minimum, median and maximum over calls. The paths of a cell
// alternate in an order that rotates from sample to sample, so that changes of the machine's speed affect all
// paths equally. Every call has new random inputs.
//
// Exit status: 0, 1 (a failure), 2 (a wrong result).
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "bench/harness/clock.hpp"
#include "bench/harness/mpi_team.hpp"
#include "cell.hpp"
#include "common/device.hpp"
#include "options.hpp"
#include "report.hpp"

namespace sycl_collectives {

namespace {

constexpr std::uint64_t large_bytes = 8u << 20;
constexpr int large_min_samples = 3;

// The whole run on one rank.
class job {
 public:
  job(const program_options& options, const isthmus::communicator& ranks, const sycl::queue& queue,
      const bench::team& team)
      : m_options(options), m_ranks(ranks), m_queue(queue), m_team(team), m_kernels(queue) {
    for (const collective_entry& entry : all_entries()) {
      const bool is_requested =
          options.collectives.empty() ||
          std::count(options.collectives.begin(), options.collectives.end(), std::string(entry.name)) > 0;
      if (!is_requested) continue;
      if (entry.collective == ISTHMUS_BARRIER) {
        m_shapes.push_back(make_shape(entry, 0, ranks.rank(), ranks.size()));
        continue;
      }
      for (const std::uint64_t bytes : options.sizes)
        m_shapes.push_back(make_shape(entry, bytes, ranks.rank(), ranks.size()));
    }
  }

  // Runs all cells. Returns the wrong elements of all ranks.
  std::uint64_t run() {
    const std::uint64_t start = bench::steady_ns();
    std::unique_ptr<job_report> report;
    if (m_ranks.rank() == 0) report = std::make_unique<job_report>(m_options, m_ranks, m_shapes.size());
    const std::uint64_t limit = apps::memory_limit();
    std::uint64_t send_elements = 0, recv_elements = 0;
    for (const call_shape& shape : m_shapes) {
      if (footprint(shape) > limit) continue;
      send_elements = std::max(send_elements, shape.send_elements);
      recv_elements = std::max(recv_elements, shape.recv_elements);
    }
    arena memory(m_queue, send_elements, recv_elements);
    for (const call_shape& shape : m_shapes) {
      if (footprint(shape) > limit) {
        if (report) report->cell_skipped(shape, "its buffers need more than half of the free memory");
        continue;
      }
      test_cell cell(shape, memory, m_kernels, m_ranks, MPI_COMM_WORLD);
      const std::vector<call_path> paths = paths_of(shape);
      const std::vector<measurement> measured = measure(cell, paths);
      if (report) report->cell_done(shape, measured, explain(m_ranks, shape));
      skip_slow_paths(shape, measured, report.get());
    }
    std::uint64_t wrong = report ? report->wrong() : 0;
    if (report) report->finish(static_cast<double>(bench::steady_ns() - start) / 1e9);
    MPI_Bcast(&wrong, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    return wrong;
  }

 private:
  // The memory of a cell on all ranks of this machine: USM, buffers and host arrays.
  std::uint64_t footprint(const call_shape& shape) const {
    std::uint64_t elements = 0;
    for (int r = 0; r < shape.size; ++r) {
      const auto other = make_shape(shape.entry, shape.bytes, r, shape.size);
      elements += other.send_elements + other.recv_elements;
    }
    return 3 * elements * sizeof(float);
  }

  std::uint64_t verify(test_cell& cell, call_path path) {
    const std::uint32_t call = m_call++;
    cell.prepare(path, call);
    m_team.barrier();
    cell.run(path);
    std::uint64_t local_wrong = cell.verify(path, call), all = 0;
    MPI_Allreduce(&local_wrong, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return all;
  }

  double run_once(test_cell& cell, call_path path) {
    cell.prepare(path, m_call++);
    m_team.barrier();
    const std::uint64_t start = bench::ticks();
    cell.run(path);
    return static_cast<double>(bench::ticks() - start) * bench::ns_per_tick() / 1e3;
  }

  // Times the second of two consecutive calls. Some paths share memory, and recently used memory stays in the
  // caches, so the first call would measure the order of the paths. If ranks outnumber the cores, only one call
  // is made: calls can take minutes there, and the scheduler determines their duration.
  double time_once(test_cell& cell, call_path path) {
    if (m_has_core_each) run_once(cell, path);
    return run_once(cell, path);
  }

  // The paths to measure: all except those that were too slow at a smaller size of the same collective and, on
  // a device, the C API, which is called without a stream here.
  std::vector<call_path> paths_of(const call_shape& shape) {
    if (m_collective != shape.entry.name) {
      m_collective = shape.entry.name;
      m_skipped_paths.clear();
    }
    std::vector<call_path> paths;
    const bool on_host = m_ranks.platform() == ISTHMUS_PLATFORM_HOST;
    for (const call_path path : all_paths)
      if (std::count(m_skipped_paths.begin(), m_skipped_paths.end(), path) == 0 &&
          (on_host || (path != call_path::isthmus_host && path != call_path::isthmus_host_usm)))
        paths.push_back(path);
    return paths;
  }

  // Skips slow paths at larger sizes: if ranks outnumber the cores, a plain MPI call can take minutes. The
  // samples are the maximum over ranks, so all ranks make the same decision.
  void skip_slow_paths(const call_shape& shape, const std::vector<measurement>& measured, job_report* report) {
    for (const measurement& entry : measured) {
      const double seconds = *std::min_element(entry.samples_us.begin(), entry.samples_us.end()) / 1e6;
      if (is_isthmus(entry.path) || seconds <= m_options.longest_call_s) continue;
      m_skipped_paths.push_back(entry.path);
      if (report != nullptr) report->path_skipped(shape, entry.path, seconds);
    }
  }

  std::vector<measurement> measure(test_cell& cell, const std::vector<call_path>& paths) {
    std::vector<measurement> measured;
    for (const call_path path : paths) measured.push_back({path, {}, verify(cell, path)});
    const int min_samples = cell.shape().bytes < large_bytes ? m_options.min_samples : large_min_samples;
    const std::uint64_t start = bench::steady_ns();
    for (int sample = 0;; ++sample) {
      for (std::size_t position = 0; position < measured.size(); ++position) {
        measurement& entry = measured[(position + static_cast<std::size_t>(sample)) % measured.size()];
        entry.samples_us.push_back(time_once(cell, entry.path));
      }
      const bool is_time_spent = static_cast<double>(bench::steady_ns() - start) / 1e9 > m_options.budget_s;
      const bool has_enough_samples =
          sample + 1 >= min_samples && (is_time_spent || sample + 1 >= m_options.max_samples);
      if (m_team.decide(has_enough_samples ? 1 : 0) == 1) break;
    }
    for (measurement& entry : measured) {
      MPI_Allreduce(MPI_IN_PLACE, entry.samples_us.data(), static_cast<int>(entry.samples_us.size()),
                    MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    return measured;
  }

  const program_options& m_options;
  const isthmus::communicator& m_ranks;
  sycl::queue m_queue;
  const bench::team& m_team;
  const bool m_has_core_each = m_team.size() <= get_nprocs();
  job_kernels m_kernels;
  std::vector<call_shape> m_shapes;
  std::uint32_t m_call = 1;
  std::string m_collective;                // the collective that is being measured
  std::vector<call_path> m_skipped_paths;  // of this collective
};

int run(const program_options& options) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const sycl::device device = apps::pick_device(rank);
  const sycl::queue queue(device, sycl::property::queue::in_order{});
  const auto host =
      options.host_task ? isthmus::host_execution::host_task : isthmus::host_execution::calling_thread;
  const isthmus::communicator ranks = isthmus::make_communicator(
      MPI_COMM_WORLD, device, {.config = options.config, .timeout_s = options.timeout_s, .host = host});
  const bench::team team = bench::create_mpi_team(options.timeout_s);
  return job(options, ranks, queue, team).run() == 0 ? 0 : 2;
}

}  // namespace

}  // namespace sycl_collectives

int main(int argc, char** argv) {
  const sycl_collectives::program_options options = sycl_collectives::parse(argc, argv);
  int provided = 0;
  // One thread at a time calls MPI here. MPI_THREAD_MULTIPLE would slow down short messages of MPICH, the
  // competitor, several times (docs/internals/benchmarks.md).
  MPI_Init_thread(&argc, &argv, options.thread_multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED,
                  &provided);
  int status = 1;
  try {
    apps::prepare_environment();
    status = sycl_collectives::run(options);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "sycl_collectives: %s\n", failure.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return status;
}
