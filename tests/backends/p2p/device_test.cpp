// Runs the conformance cases through the C API on devices, with one backend for all calls. Ranks in processes can share
// devices, which checks results for more ranks than a machine has devices.
//
//   p2p_device_test [--world threads|processes] [--ranks N] [--backend NAME] [--partial]
//                   [--thinning N] [--samples N] [--batches N] [--largest BYTES] [--seed N]
//
// Without --partial, the backend must take every call. Exit code 77: too few devices.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/copy_engine/device_ranks.hpp"
#include "conformance/plan.hpp"

namespace {

using conformance::test_case;
using copy_engine_test::device_call;
using copy_engine_test::last_error;
using copy_engine_test::member;
using copy_engine_test::rank_device;
using copy_engine_test::rendezvous;

struct options {
  std::string rank_mode = "threads", backend = "p2p";
  int ranks = 0;
  bool is_partial = false;
  conformance::plan_options plan;
};

int report(int rank, const test_case& test, const std::string& error) {
  std::printf("FAIL rank %d: %s | %s\n", rank, error.c_str(), conformance::to_string(test).c_str());
  std::fflush(stdout);
  return 1;
}

class rank_test {
 public:
  rank_test(member& self, bool is_partial) : m_self(self), m_is_partial(is_partial) {}

  int calls() const { return m_calls; }
  // A failed call aborts the communicator, so the first problem ends the test.
  int run_alone(const std::vector<test_case>& tests) {
    for (const test_case& test : tests)
      if (run({test}) != 0) return 1;
    return 0;
  }
  // Makes all calls, from skewed ranks or in one group, before any result is checked.
  int run_together(std::vector<test_case> tests, bool in_group) {
    const auto most = 4000 / static_cast<std::uint64_t>(m_self.size());  // all buffers exist at the same time
    for (test_case& each : tests) each.count = std::min(each.count, most);
    return run(tests, in_group);
  }

 private:
  int run(const std::vector<test_case>& tests, bool in_group = false) {
    rank_device& device = m_self.device();
    std::vector<std::unique_ptr<device_call>> all;
    std::vector<const test_case*> taken;
    std::size_t offset = 0;
    for (const test_case& test : tests) {
      auto call = std::make_unique<device_call>(test, m_self.rank(), m_self.size(),
                                                device.mirror().subspan(offset), device.plain() + offset);
      call->operation.stream = device.stream();
      if (!m_self.takes(call->operation)) {
        if (!m_is_partial) return report(m_self.rank(), test, "another backend takes this call, or none");
        continue;
      }
      device.upload(call->on_device, call->mirror);
      offset += (call->mirror.size() + 255) / 256 * 256;
      all.push_back(std::move(call));
      taken.push_back(&test);
    }
    if (in_group) isthmus_group_start();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uint64_t delay = oracle::mix(taken[i]->seed, 40, static_cast<std::uint64_t>(m_self.rank()));
      if (all.size() > 1 && delay % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds((delay >> 8) % 300));
      if (m_self.enqueue(*taken[i], all[i]->operation) != ISTHMUS_SUCCESS)
        return report(m_self.rank(), *taken[i], last_error());
    }
    if (in_group && isthmus_group_end() != ISTHMUS_SUCCESS)
      return report(m_self.rank(), tests.front(), "a group: " + last_error());
    for (const auto& call : all) device.download(call->mirror, call->on_device);
    device.synchronize();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (const auto error = all[i]->buffers.find_error(true, true, false))
        return report(m_self.rank(), *taken[i], *error);
    m_calls += static_cast<int>(all.size());
    return 0;
  }

  member& m_self;
  bool m_is_partial;
  int m_calls = 0;
};

int run_rank(const options& requested, rank_device& device, rendezvous& all, int rank, int size) {
  member self(device, all.new_unique_id(rank), rank, size, requested.backend.c_str(), 60);
  rank_test test(self, requested.is_partial);
  conformance::plan_options limited = requested.plan;
  // The buffers of a call have at most one block per rank on each side.
  limited.largest_bytes =
      std::min(limited.largest_bytes, copy_engine_test::room_bytes / 4 / static_cast<unsigned>(size));
  const conformance::plan plan = make_plan(limited, size, {});
  int failures = test.run_alone(plan.singles);
  for (const auto& batch : plan.back_to_back)
    if (failures == 0) failures += test.run_together(batch, false);
  for (const auto& batch : plan.grouped)
    if (failures == 0) failures += test.run_together(batch, true);
  if (rank == 0) std::printf("%d calls of %d ranks\n", test.calls(), size);
  if (failures == 0 && test.calls() == 0) {
    std::printf("FAIL rank %d: %s took no call\n", rank, requested.backend.c_str());
    failures = 1;
  }
  if (failures == 0) all.wait();
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Conformance cases on the devices of this machine"};
  options requested;
  requested.plan.sampling_stride = 8;
  requested.plan.samples = 60;
  app.add_option("--world", requested.rank_mode, "run ranks as threads or processes")
      ->check(CLI::IsMember({"threads", "processes"}));
  app.add_option("--ranks", requested.ranks, "number of ranks")->required();
  app.add_option("--backend", requested.backend, "the backend that takes all calls")->capture_default_str();
  app.add_flag("--partial", requested.is_partial, "skip calls that the backend does not take");
  app.add_option("--thinning", requested.plan.sampling_stride, "run one of N small cases")
      ->capture_default_str();
  app.add_option("--samples", requested.plan.samples, "number of large cases")->capture_default_str();
  app.add_option("--batches", requested.plan.batches, "batches of each kind")->capture_default_str();
  app.add_option("--largest", requested.plan.largest_bytes, "bytes of the largest block")
      ->capture_default_str();
  app.add_option("--seed", requested.plan.seed, "seed of data and samples")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  // The core is part of this program, so it does not find the plug-ins next to the library.
  setenv("ISTHMUS_PLUGIN_PATH", PLUGIN_FOLDER, 0);
  const bool in_processes = requested.rank_mode == "processes";
  const int devices = copy_engine_test::count_devices(ISTHMUS_PLATFORM_CUDA);
  if (devices < (in_processes ? 1 : requested.ranks)) {  // only processes may share a device
    std::puts("SKIPPED: too few devices");
    return 77;
  }
  const auto begin = std::chrono::steady_clock::now();
  const int failures = copy_engine_test::run(ISTHMUS_PLATFORM_CUDA, in_processes, requested.ranks,
                                             [&](rank_device& device, rendezvous& all, int rank, int size) {
                                               return run_rank(requested, device, all, rank, size);
                                             });
  std::printf("%s on %d devices, %d ranks in %s: %d failed, %.1f s\n", requested.backend.c_str(), devices,
              requested.ranks, requested.rank_mode.c_str(), failures,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return failures == 0 ? 0 : 1;
}
