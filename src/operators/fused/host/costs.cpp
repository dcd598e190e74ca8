#include "operators/fused/host/costs.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"
#include "operators/fused/model/plan.hpp"

namespace isthmus::fused {
namespace {

struct rates {
  double gflops = 0;    // of a product on one thread
  double copy_gbs = 0;  // of copies on one thread
};

template <typename Work>
double best_seconds(Work&& work) {
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// Takes a few milliseconds, once per process.
rates measure(const blas& library) {
  static std::mutex mutex;
  static rates measured_rates;
  const std::lock_guard lock(mutex);
  if (measured_rates.gflops > 0) return measured_rates;
  constexpr std::uint64_t edge = 320;
  std::vector<float> a(edge * edge), c(edge * edge);
  std::iota(a.begin(), a.end(), 0.5f);
  library.set_threads(1);
  const double product_s = best_seconds(
      [&] { library.sgemm(edge, edge, edge, 1, a.data(), edge, false, a.data(), edge, 0, c.data(), edge); });
  std::vector<std::byte> from(std::size_t{8} << 20, std::byte{1}), to(from.size());
  const double copy_s = best_seconds([&] { std::memcpy(to.data(), from.data(), from.size()); });
  measured_rates = {2e-9 * edge * edge * edge / product_s, static_cast<double>(from.size()) / copy_s / 1e9};
  return measured_rates;
}

int cores() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? std::max(1, CPU_COUNT(&cpus)) : 1;
}

}  // namespace

double read_number_option(const communicator& owner, const char* key, double fallback) {
  const char* text = owner.option(fmt::format("backend.fused.{}", key));
  if (text == nullptr) return fallback;
  double value = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, failure] = std::from_chars(text, end, value);
  if (failure != std::errc() || rest != end || !(value > 0))
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("backend.fused.{} = \"{}\" must be a number > 0", key, text));
  return value;
}

const blas& require_blas(communicator& owner) {
  std::string reason;
  const blas* library = blas::get(owner.option("backend.fused.blas_library"), reason);
  std::optional<error> missing;
  if (library == nullptr)
    missing = make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "fused_plan_create: " + reason,
                         "install OpenBLAS (scripts/setup does) or set ISTHMUS_BLAS_LIBRARY");
  agree(owner.control(), no_value{}, missing, "fused_plan_create: a BLAS library is missing",
        ISTHMUS_ERROR_UNSUPPORTED);
  return *library;
}

cost_model host_costs(communicator& owner, const fused_problem& problem, const blas& library) {
  const rates own = measure(library);
  struct rank_rates {
    double gflops, copy_gbs;
    std::int32_t can_overlap, cores;
  };
  const auto all = gather_values(owner.control(), rank_rates{own.gflops * threads_per_rank(owner), own.copy_gbs,
                                                             cores() > owner.ranks().node_size, cores()});
  rank_rates slowest = all[0];
  for (const rank_rates& each : all)
    slowest = {std::min(slowest.gflops, each.gflops), std::min(slowest.copy_gbs, each.copy_gbs),
               std::min(slowest.can_overlap, each.can_overlap), std::min(slowest.cores, each.cores)};
  const double gflops = read_number_option(owner, "gemm_gflops", slowest.gflops);
  const double copy_gbs = read_number_option(owner, "link_gbs", slowest.copy_gbs);
  const double per_row_us = problem.flops(1) / gflops / 1e3;
  cost_model costs;
  costs.product_us = [per_row_us](std::uint64_t rows) { return 3 + per_row_us * static_cast<double>(rows); };
  costs.bytes_per_us = copy_gbs * 1e3;
  costs.chunk_us = read_number_option(owner, "chunk_us", 5);
  costs.fixed_us =
      read_number_option(owner, "pipeline_us", 20);  // waking the copy thread and synchronizing with peers
  costs.can_overlap = slowest.can_overlap != 0;
  costs.source = fmt::format("{:.1f} GFLOP/s per rank, {:.1f} GB/s; {} cores for {} ranks{}", gflops, copy_gbs,
                             slowest.cores, owner.ranks().node_size,
                             costs.can_overlap ? "" : ": no core is left for copies");
  return costs;
}

int threads_per_rank(const communicator& owner) {
  if (owner.ranks().process_size > 1) return 1;
  return std::max(1, cores() / owner.ranks().node_size);
}

}  // namespace isthmus::fused
