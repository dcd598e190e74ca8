#include "comparison.hpp"

#include <algorithm>
#include <map>

#include "bench/harness/clock.hpp"
#include "common/device.hpp"
#include "common/record.hpp"

namespace apps {

namespace {

double largest(double value) {
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return value;
}

class runner {
 public:
  runner(const program_options& options, const run_context& context, const application_entry& entry)
      : m_options(options) {
    for (const transport_kind kind : options.transports)
      m_candidates.push_back({kind, entry.make(context, kind), {.transport = kind}});
  }

  // Runs a few steps of each transport, so that a wrong one is detected before it is measured.
  void verify(int steps) {
    const std::uint32_t seed = m_seed++;
    for (candidate& item : m_candidates) {
      run(*item.app, seed, steps);
      check(item, seed, steps);
    }
  }

  void measure(int repetitions) {
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const std::uint32_t seed = m_seed++;
      for (std::size_t position = 0; position < m_candidates.size(); ++position) {
        candidate& item = m_candidates[(position + static_cast<std::size_t>(repetition)) % m_candidates.size()];
        const double seconds = run(*item.app, seed, m_options.steps);
        item.result.samples_us.push_back(seconds * 1e6 / m_options.steps);
        if (repetition + 1 == repetitions) check(item, seed, m_options.steps);
      }
    }
    for (candidate& item : m_candidates) profile(item);
  }

  std::vector<outcome> outcomes() const {
    std::vector<outcome> all;
    for (const candidate& item : m_candidates) {
      all.push_back(item.result);
      all.back().backend = item.app->backend();
      all.back().message_bytes = item.app->message_bytes();
    }
    return all;
  }

 private:
  struct candidate {
    transport_kind kind;
    std::unique_ptr<application> app;
    outcome result;
  };

  // The time of the steps in seconds on the slowest rank.
  static double run(application& app, std::uint32_t seed, int steps) {
    app.prepare(seed);
    app.finish();
    MPI_Barrier(MPI_COMM_WORLD);
    const std::uint64_t start = bench::steady_ns();
    for (int step = 0; step < steps; ++step) app.step();
    app.finish();
    return largest(static_cast<double>(bench::steady_ns() - start) / 1e9);
  }

  // A transport whose bits differ from the first one's is reported but does not count as wrong.
  void check(candidate& item, std::uint32_t seed, int steps) {
    const check_result result = item.app->verify(seed, steps);
    item.result.wrong += result.wrong;
    if (&item == &m_candidates.front() || m_digests.count(seed) == 0) m_digests.emplace(seed, result.digest);
    item.result.same_bits &= m_digests.at(seed) == result.digest;
  }

  void profile(candidate& item) {
    item.app->prepare(m_seed);
    item.app->finish();
    item.app->begin_profile();
    const double seconds = [&] {
      MPI_Barrier(MPI_COMM_WORLD);
      const std::uint64_t start = bench::steady_ns();
      for (int step = 0; step < m_options.steps; ++step) item.app->step();
      item.app->finish();
      return static_cast<double>(bench::steady_ns() - start) / 1e9;
    }();
    const double profiled = item.app->end_profile();
    item.result.communication_us = largest(profiled) * 1e6 / m_options.steps;
    item.result.communication_share = largest(profiled / seconds);
  }

  const program_options& m_options;
  std::vector<candidate> m_candidates;
  std::map<std::uint32_t, std::uint64_t> m_digests;  // of the first transport, by seed
  std::uint32_t m_seed = 1;
};

}  // namespace

std::uint64_t compare_transports(const program_options& options, const application_entry& entry) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::uint64_t required_bytes = entry.footprint(options, ranks) * options.transports.size(),
                      limit = memory_limit();
  if (required_bytes > limit) {
    throw bad_argument("--size requires " + std::to_string(required_bytes >> 20) +
                       " MiB on all ranks, must be at most half of the free memory, " +
                       std::to_string(limit >> 20) + " MiB; use a smaller size or fewer transports");
  }
  const sycl::queue queue(pick_device(rank), sycl::property::queue::in_order{});
  const launcher kernels(queue, entry.device_text, entry.kernels);
  runner runner(options, {options, MPI_COMM_WORLD, queue, kernels}, entry);
  runner.verify(std::min(options.steps, 3));
  runner.measure(options.repetitions);
  const std::vector<outcome> outcomes = runner.outcomes();
  if (rank == 0) report_outcomes(options, entry, queue.get_device(), ranks, outcomes);
  std::uint64_t wrong = 0;
  for (const outcome& item : outcomes) wrong += item.wrong;
  return wrong;
}

}  // namespace apps
