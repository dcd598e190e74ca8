// The exchange patterns of the applications through the C API, against grouped send and recv of NCCL and
// against MPI, on device or host buffers. One rank per process, under mpiexec. The variants are interleaved in
// a rotating order. A sample is the time of several exchanges in a row divided by their number, of the slowest
// rank. Results are compared, gaps included, before and after measuring.
//
//   mpiexec -n 8 patterns --sizes 1K:256K:4 --json out.json
//   mpiexec -n 2 patterns --platform cuda --share-device
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "harness/clock.hpp"
#include "harness/command.hpp"
#include "harness/mpi_library.hpp"
#include "harness/mpi_team.hpp"
#include "methods.hpp"

namespace patterns {
namespace {

struct settings {
  std::string platform = "host", sizes = "64:64K:4", json, command;
  std::vector<std::string> patterns = names();
  int samples = 21, calls = 20;
  bool shares_device = false, is_ungrouped = true, nccl = true;
};

// The resources of this rank for all variants.
class pattern_bench {
 public:
  pattern_bench(const settings& arguments, const bench::team& ranks);
  ~pattern_bench() {
    isthmus_communicator_destroy(m_communicator);
    if (m_raw != nullptr) m_nccl->functions().comm_destroy(m_raw);
  }
  pattern_bench(const pattern_bench&) = delete;
  pattern_bench& operator=(const pattern_bench&) = delete;

  void measure(const std::string& name, std::uint64_t bytes, nlohmann::json& records);
  nlohmann::json versions() const;
  std::uint64_t wrong() const { return m_wrong; }

 private:
  std::vector<bench::method> make_methods(const exchange_plan& plan, buffers in, const buffers& staged) const;
  void time(std::vector<bench::method>& methods);
  double sample(const bench::method& method) const;
  std::uint64_t count_wrong(const exchange_plan& plan, const bench::method& method, buffers in);
  void report(const exchange_plan& plan, const bench::method& method, std::uint64_t wrong,
              nlohmann::json& records) const;

  const settings& m_arguments;
  const bench::team& m_ranks;
  memory_place m_place;
  isthmus_communicator m_communicator = nullptr;
  std::optional<bench::nccl_library> m_nccl;
  bench::nccl_comm m_raw = nullptr;
  std::uint64_t m_wrong = 0;
};

isthmus_device device_of(const settings& arguments, int rank) {
  if (arguments.platform == "host") return {ISTHMUS_PLATFORM_HOST, 0};
  return {ISTHMUS_PLATFORM_CUDA, arguments.shares_device ? 0 : rank};
}

pattern_bench::pattern_bench(const settings& arguments, const bench::team& ranks)
    : m_arguments(arguments), m_ranks(ranks), m_place(device_of(arguments, ranks.rank())) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.device = m_place.device();
  options.timeout_s = 60;
  m_communicator = isthmus::mpi::create(MPI_COMM_WORLD, &options);
  if (m_place.is_host() || !arguments.nccl) return;
  m_nccl.emplace();
  bench::nccl_unique_id id{};
  if (ranks.rank() == 0) id = m_nccl->unique_id();
  ranks.share(id);
  m_raw = m_nccl->join(id, ranks.rank(), ranks.size());
}

nlohmann::json pattern_bench::versions() const {
  nlohmann::json all{{"isthmus", isthmus_version()}, {bench::mpi_family(), isthmus::mpi::detail::library()}};
  if (m_nccl) all["nccl"] = m_nccl->version();
  return all;
}

std::vector<bench::method> pattern_bench::make_methods(const exchange_plan& plan, buffers in,
                                                       const buffers& staged) const {
  std::vector<bench::method> all{make_isthmus_method(plan, m_place, in, m_communicator, false)};
  if (plan.form == exchange_form::messages && m_arguments.is_ungrouped)
    all.push_back(make_isthmus_method(plan, m_place, in, m_communicator, true));
  if (m_nccl) all.push_back(make_nccl_method(plan, m_place, in, m_nccl->functions(), m_raw));
  if (m_place.is_host() || bench::mpi_supports_device_memory())
    all.push_back(make_mpi_method(plan, m_place, in, nullptr));
  if (!m_place.is_host()) all.push_back(make_mpi_method(plan, m_place, in, &staged));
  return all;
}

// The first call is not timed: the previous variant leaves the device idle, or caches full of other data.
double pattern_bench::sample(const bench::method& method) const {
  method.run();
  m_ranks.barrier();
  const std::uint64_t begin = bench::steady_ns();
  for (int call = 0; call < m_arguments.calls; ++call) method.run();
  return m_ranks.slowest(static_cast<double>(bench::steady_ns() - begin) / 1000 / m_arguments.calls);
}

void pattern_bench::time(std::vector<bench::method>& methods) {
  bench::interleave(methods.size(), 1, m_arguments.samples, [&](std::size_t i, int round) {
    const double us = sample(methods[i]);
    if (round >= 0) methods[i].us.push_back(us);
  });
}

// Wrong words on all ranks: words that differ from what was sent, or that should be untouched.
std::uint64_t pattern_bench::count_wrong(const exchange_plan& plan, const bench::method& method, buffers in) {
  std::vector<word> actual(plan.receive_words, poison);
  m_place.copy(in.receive, actual.data(), actual.size() * sizeof(word));
  m_place.wait();
  m_ranks.barrier();
  method.run();
  m_place.copy(actual.data(), in.receive, actual.size() * sizeof(word));
  m_place.wait();
  const std::vector<word> expected = incoming(plan, m_ranks.rank());
  std::uint64_t own_wrong = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) own_wrong += actual[i] != expected[i] ? 1 : 0;
  const std::uint64_t all = m_ranks.sum(own_wrong);
  m_wrong += all;
  return all;
}

void pattern_bench::report(const exchange_plan& plan, const bench::method& method, std::uint64_t wrong,
                           nlohmann::json& records) const {
  std::uint64_t words = 0, messages = 0;
  for (const segment& each : plan.sends) {
    words += each.count;
    messages += each.count > 0 ? 1 : 0;
  }
  const double max_bytes = m_ranks.slowest(static_cast<double>(words * sizeof(word)));
  if (m_ranks.rank() != 0) return;
  const double median = method.us.empty() ? 0 : bench::median(method.us);
  std::printf("%-10s %12.0f B %3llu messages  %-20s %-9s %10.2f us  %llu wrong  %s\n", plan.name.c_str(),
              max_bytes, static_cast<unsigned long long>(messages), method.provider.c_str(),
              method.mode.c_str(), median, static_cast<unsigned long long>(wrong), method.backend.c_str());
  std::fflush(stdout);
  if (method.us.empty()) return;
  nlohmann::json record =
      bench::record_of({plan.name, "uint32", static_cast<std::uint64_t>(max_bytes), m_ranks.size()}, method,
                       {max_bytes / median / 1000, 0});
  record["wrong"] = wrong;
  record["messages"] = messages;
  record["device"] = m_arguments.platform;
  record["shared_device"] = m_arguments.shares_device;
  record["samples"] = method.us.size();
  records.push_back(record);
}

void pattern_bench::measure(const std::string& name, std::uint64_t bytes, nlohmann::json& records) {
  const exchange_plan plan = make_plan(name, bytes, m_ranks.rank(), m_ranks.size());
  const std::uint64_t send_bytes = plan.send_words * sizeof(word),
                      receive_bytes = plan.receive_words * sizeof(word);
  const memory_block send(m_place, send_bytes, false), receive(m_place, receive_bytes, false);
  const memory_block send_copy(m_place, send_bytes, true), receive_copy(m_place, receive_bytes, true);
  const std::vector<word> sent = outgoing(plan, m_ranks.rank());
  m_place.copy(send.data(), sent.data(), send_bytes);
  m_place.wait();
  const buffers in{send.data(), receive.data()}, staged{send_copy.data(), receive_copy.data()};
  std::vector<bench::method> methods = make_methods(plan, in, staged);
  std::vector<std::uint64_t> wrong;
  wrong.reserve(methods.size());
  for (const bench::method& each : methods) wrong.push_back(count_wrong(plan, each, in));
  time(methods);
  for (std::size_t i = 0; i < methods.size(); ++i)
    report(plan, methods[i], wrong[i] + count_wrong(plan, methods[i], in), records);
}

// NCCL rejects two ranks on one device unless they appear to be on different hosts.
void prepare_to_share(int rank) {
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_NET", "Socket", 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  std::string options;
  for (const char* backend : {"nccl", "p2p", "copy_engine"})
    options += std::string(options.empty() ? "" : ";") + "backend." + backend + ".share_device=true";
  setenv("ISTHMUS_OPTION", options.c_str(), 0);
}

int run(const settings& arguments) {
  const bench::team ranks = bench::create_mpi_team(120);
  if (arguments.shares_device) prepare_to_share(ranks.rank());
  nlohmann::json records = nlohmann::json::array();
  auto bench = std::make_unique<pattern_bench>(arguments, ranks);
  for (const std::string& name : arguments.patterns)
    for (const std::uint64_t bytes : bench::parse_sizes(arguments.sizes)) bench->measure(name, bytes, records);
  if (ranks.rank() == 0)
    bench::write_records(arguments.json, arguments.command, bench->versions(), std::move(records));
  const std::uint64_t wrong = bench->wrong();
  bench.reset();
  return wrong == 0 ? 0 : 2;
}

}  // namespace
}  // namespace patterns

int main(int argc, char** argv) {
  patterns::settings arguments;
  CLI::App app("Compares exchange patterns of the applications with NCCL and MPI");
  app.add_option("--platform", arguments.platform, "platform of the buffers")
      ->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--patterns", arguments.patterns, "list of " + CLI::detail::join(patterns::names(), ", "))
      ->delimiter(',')
      ->check(CLI::IsMember(patterns::names()));
  app.add_option("--sizes", arguments.sizes,
                 "bytes of a face (halo6, halo26) or of a block: 64,1K or 64:64K:4");
  app.add_option("--samples", arguments.samples, "samples per variant; 0: only check results")
      ->check(CLI::Range(0, 10000));
  app.add_option("--calls", arguments.calls, "exchanges per sample")->check(CLI::Range(1, 100000));
  app.add_flag("--share-device", arguments.shares_device,
               "all ranks on device 0, for checks only: times are not valid");
  app.add_flag("!--no-ungrouped", arguments.is_ungrouped, "leave out messages sent as separate calls");
  app.add_flag("!--no-nccl", arguments.nccl, "leave out NCCL");
  app.add_option("--json", arguments.json, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  arguments.command = bench::command_of(argc, argv);
  int level = 0, status = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  try {
    status = patterns::run(arguments);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "patterns: %s\n", failure.what());
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  std::fflush(nullptr);
  MPI_Finalize();
  return status;  // not _Exit: MPICH notifies its launcher at exit, which otherwise kills the other ranks
}
