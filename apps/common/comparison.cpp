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
  runner(const program_options& options, const run_context& context, const application_entry& entry) : m_options(options) {
    for (const transport_kind kind : options.transports)
      m_candidates.push_back({kind, entry.make(context, kind), {.transport = kind}});
  }

  // A few steps of each, so that a wrong transport is known before it is measured.
  void verify(int steps) {
    const std::uint32_t seed = m_seed++;
    for (candidate& each : m_candidates) {
      run(*each.app, seed, steps);
      check(each, seed, steps);
    }
  }

  void measure(int repetitions) {
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const std::uint32_t seed = m_seed++;
      for (std::size_t turn = 0; turn < m_candidates.size(); ++turn) {
        candidate& each = m_candidates[(turn + static_cast<std::size_t>(repetition)) % m_candidates.size()];
        const double seconds = run(*each.app, seed, m_options.steps);
        each.result.samples_us.push_back(seconds * 1e6 / m_options.steps);
        if (repetition + 1 == repetitions) check(each, seed, m_options.steps);
      }
    }
    for (candidate& each : m_candidates) profile(each);
  }

  std::vector<outcome> outcomes() const {
    std::vector<outcome> all;
    for (const candidate& each : m_candidates) {
      all.push_back(each.result);
      all.back().backend = each.app->backend();
      all.back().message_bytes = each.app->message_bytes();
    }
    return all;
  }

 private:
  struct candidate {
    transport_kind kind;
    std::unique_ptr<application> app;
    outcome result;
  };

  // The slowest rank's seconds for the steps.
  static double run(application& app, std::uint32_t seed, int steps) {
    app.prepare(seed);
    app.finish();
    MPI_Barrier(MPI_COMM_WORLD);
    const std::uint64_t start = bench::steady_ns();
    for (int step = 0; step < steps; ++step) app.step();
    app.finish();
    return largest(static_cast<double>(bench::steady_ns() - start) / 1e9);
  }

  // Transports whose bits differ from the first one's are told apart, not wrong.
  void check(candidate& each, std::uint32_t seed, int steps) {
    const check_result result = each.app->verify(seed, steps);
    each.result.wrong += result.wrong;
    if (&each == &m_candidates.front() || m_digests.count(seed) == 0) m_digests.emplace(seed, result.digest);
    each.result.same_bits &= m_digests.at(seed) == result.digest;
  }

  void profile(candidate& each) {
    each.app->prepare(m_seed);
    each.app->finish();
    each.app->begin_profile();
    const double seconds = [&] {
      MPI_Barrier(MPI_COMM_WORLD);
      const std::uint64_t start = bench::steady_ns();
      for (int step = 0; step < m_options.steps; ++step) each.app->step();
      each.app->finish();
      return static_cast<double>(bench::steady_ns() - start) / 1e9;
    }();
    const double inside = each.app->end_profile();
    each.result.communication_us = largest(inside) * 1e6 / m_options.steps;
    each.result.communication_share = largest(inside / seconds);
  }

  const program_options& m_options;
  std::vector<candidate> m_candidates;
  std::map<std::uint32_t, std::uint64_t> m_digests;  // by seed: the first transport's
  std::uint32_t m_seed = 1;
};

}  // namespace

std::uint64_t compare_transports(const program_options& options, const application_entry& entry) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::uint64_t required_bytes = entry.footprint(options, ranks) * options.transports.size(), limit = memory_limit();
  if (required_bytes > limit) {
    throw bad_argument("--size takes " + std::to_string(required_bytes >> 20) +
                       " MiB on all ranks; the rule is at most half of "
                       "the free memory, " +
                       std::to_string(limit >> 20) + " MiB; take a smaller one or fewer transports");
  }
  const sycl::queue queue(pick_device(rank), sycl::property::queue::in_order{});
  const launcher kernels(queue, entry.device_text, entry.kernels);
  runner runner(options, {options, MPI_COMM_WORLD, queue, kernels}, entry);
  runner.verify(std::min(options.steps, 3));
  runner.measure(options.repetitions);
  const std::vector<outcome> outcomes = runner.outcomes();
  if (rank == 0) report_outcomes(options, entry, queue.get_device(), ranks, outcomes);
  std::uint64_t wrong = 0;
  for (const outcome& each : outcomes) wrong += each.wrong;
  return wrong;
}

}  // namespace apps
