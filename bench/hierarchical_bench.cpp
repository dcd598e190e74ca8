// A collective whose ranks are on several platforms or nodes, compared with the same collective with all
// ranks on the host, its slowest part. Ranks are processes. The two are interleaved; a sample is the time of
// the slowest rank.
//
//   hierarchical_bench --platforms cuda,cuda,host,host --sizes 16M --out out.json
//   hierarchical_bench --platforms cuda,cuda --nodes a,b --sizes 16M --collective alltoall
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <isthmus/error.hpp>
#include <string>
#include <vector>

#include "harness/clock.hpp"
#include "harness/command.hpp"
#include "harness/explain.hpp"
#include "harness/fork.hpp"
#include "harness/methods.hpp"

namespace {

using isthmus::detail::check;

struct bench_settings {
  std::vector<std::string> platforms{"cuda", "cuda", "host", "host"};
  std::vector<std::string> nodes;  // of each rank; empty: one node
  std::vector<int> ordinals;       // of each rank's device; empty: 0
  std::string sizes = "16M", collective = "allreduce", out;
  int rounds = 31;
  bool share_device = false;
};

isthmus_device find_device(const std::string& platform, int ordinal) {
  for (int i = 0; i < ISTHMUS_PLATFORM_COUNT; ++i)
    if (platform == isthmus_platform_name(static_cast<isthmus_platform>(i)))
      return {static_cast<isthmus_platform>(i), ordinal};
  throw std::runtime_error("--platforms: unknown platform " + platform);
}

// A communicator of all ranks, with the buffers of this rank.
class communicator_side {
 public:
  // `collective` is allreduce, or alltoall with `bytes` in total.
  communicator_side(const bench::team& ranks, isthmus_device device, std::uint64_t bytes,
                    const std::string& collective)
      : m_device(device), m_count(bytes / 4), m_rank(ranks.rank()) {
    m_operation.collective = collective == "alltoall" ? ISTHMUS_ALLTOALL : ISTHMUS_ALLREDUCE;
    m_block = m_operation.collective == ISTHMUS_ALLTOALL ? m_count / static_cast<std::uint64_t>(ranks.size())
                                                         : m_count;
    isthmus_unique_id id{};
    if (ranks.rank() == 0) check(isthmus_unique_id_create(nullptr, &id));
    ranks.share(id);
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof options;
    options.device = device;
    options.timeout_s = 60;
    check(isthmus_communicator_create(&id, ranks.rank(), ranks.size(), &options, &m_communicator));
    check(isthmus_memory_allocate_device(device, bytes, nullptr, &m_send));
    check(isthmus_memory_allocate_device(device, bytes, nullptr, &m_recv));
    for (std::uint64_t i = 0; i < m_count; ++i) m_input.push_back(value(ranks.rank(), i));
    copy(m_send, m_device, m_input.data(), {}, bytes);
    m_operation.datatype = ISTHMUS_FLOAT32;
    m_operation.op = ISTHMUS_SUM;
    m_operation.count = m_block;
    m_operation.send_buf = m_send;
    m_operation.recv_buf = m_recv;
  }
  ~communicator_side() {
    isthmus_communicator_destroy(m_communicator);
    isthmus_memory_free_device(m_device, m_send);
    isthmus_memory_free_device(m_device, m_recv);
  }
  communicator_side(const communicator_side&) = delete;
  communicator_side& operator=(const communicator_side&) = delete;

  void call() const { check(isthmus_enqueue(m_communicator, &m_operation)); }
  // The number of elements that differ from the exact result.
  std::uint64_t count_wrong(int ranks) const {
    std::vector<float> actual(m_count);
    copy(actual.data(), {}, m_recv, m_device, m_count * 4);
    check(isthmus_barrier(m_communicator, nullptr));  // waits for the copy on the stream
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < m_block * blocks(ranks); ++i)
      count += actual[i] != expected(ranks, i) ? 1 : 0;
    return count;
  }
  std::string backend() const {
    const nlohmann::json explanation = bench::explain(m_communicator, m_operation);
    std::string text = explanation.at("backend");
    if (!explanation.at("plan").is_null())
      for (const auto& step : explanation.at("plan")) text += ", " + step.at("backend").get<std::string>();
    return text;
  }

 private:
  static float value(int rank, std::uint64_t i) {
    return static_cast<float>((i * 2654435761U + static_cast<std::uint64_t>(rank) * 40503U) >> 7 & 1023U);
  }
  static void copy(void* to, isthmus_device destination_device, const void* from, isthmus_device source_device,
                   std::uint64_t bytes) {
    check(isthmus_memory_copy(to, destination_device, from, source_device, bytes, nullptr, nullptr));
  }

  std::uint64_t blocks(int ranks) const { return m_block == m_count ? 1 : static_cast<std::uint64_t>(ranks); }
  float expected(int ranks, std::uint64_t i) const {
    if (m_operation.collective == ISTHMUS_ALLTOALL)
      return value(static_cast<int>(i / m_block), static_cast<std::uint64_t>(m_rank) * m_block + i % m_block);
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i);
    return sum;
  }

  isthmus_device m_device;
  std::uint64_t m_count, m_block;  // elements of a buffer, and of the block that `count` refers to
  int m_rank;
  isthmus_operation m_operation{};
  std::vector<float> m_input;
  isthmus_communicator m_communicator = nullptr;
  void* m_send = nullptr;
  void* m_recv = nullptr;
};

// The time of the slowest rank.
double time_us(const bench::team& ranks, const communicator_side& side) {
  ranks.barrier();
  const std::uint64_t begin = bench::steady_ns();
  side.call();
  return ranks.slowest(static_cast<double>(bench::steady_ns() - begin) / 1000);
}

std::string mode_of(const bench_settings& settings) {
  std::string mode = CLI::detail::join(settings.platforms, "+");
  return settings.nodes.empty() ? mode : mode + " on nodes " + CLI::detail::join(settings.nodes, "+");
}

void measure(const bench::team& ranks, const bench_settings& settings, std::uint64_t bytes,
             nlohmann::json& records) {
  const auto index = static_cast<std::size_t>(ranks.rank());
  const int ordinal = settings.ordinals.empty() ? 0 : settings.ordinals[index];
  const communicator_side mixed_side(ranks, find_device(settings.platforms[index], ordinal), bytes,
                                     settings.collective);
  const communicator_side host_side(ranks, {ISTHMUS_PLATFORM_HOST, 0}, bytes, settings.collective);
  const communicator_side* const sides[] = {&mixed_side, &host_side};
  std::vector<double> samples[2];
  bench::interleave(2, 3, settings.rounds, [&](std::size_t i, int round) {
    const double us = time_us(ranks, *sides[i]);
    if (round >= 0) samples[i].push_back(us);
  });
  const double n = ranks.size();
  for (const int i : {0, 1}) {
    const communicator_side& side = *sides[i];
    const bench::method method{
        "isthmus", side.backend(), i == 0 ? mode_of(settings) : "all on the host", {}, samples[i]};
    const std::uint64_t wrong = ranks.sum(side.count_wrong(ranks.size()));
    if (ranks.rank() != 0) continue;
    const double rate = static_cast<double>(bytes) / bench::median(method.us) / 1000;
    nlohmann::json record =
        bench::record_of({settings.collective, "float32", bytes, ranks.size()}, method,
                         {rate, rate * (settings.collective == "allreduce" ? 2 : 1) * (n - 1) / n});
    if (settings.collective == "allreduce") record["op"] = "sum";
    record["wrong"] = wrong;
    records.push_back(record);
    std::printf("%-9s %-34s %9llu B %10.1f us  %llu wrong  by %s\n", settings.collective.c_str(),
                method.mode.c_str(), static_cast<unsigned long long>(bytes), bench::median(method.us),
                static_cast<unsigned long long>(wrong), method.backend.c_str());
  }
}

int run_rank(const bench::team& ranks, const bench_settings& settings, const std::string& command) {
  try {
    if (settings.share_device)  // makes NCCL accept ranks that share a device
      setenv("NCCL_HOSTID", ("rank" + std::to_string(ranks.rank())).c_str(), 1);
    if (!settings.nodes.empty())
      setenv("ISTHMUS_NODE", settings.nodes[static_cast<std::size_t>(ranks.rank())].c_str(), 1);
    nlohmann::json records = nlohmann::json::array();
    for (const std::uint64_t bytes : bench::parse_sizes(settings.sizes))
      measure(ranks, settings, bytes, records);
    if (ranks.rank() == 0)
      bench::write_records(settings.out, command, {{"isthmus", isthmus_version()}}, records);
    for (const auto& record : records)
      if (record.at("wrong") != 0) return 1;
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank %d: %s\n", ranks.rank(), failure.what());
    ranks.abort();
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench_settings settings;
  CLI::App app("Compares a collective over several platforms or nodes with its slowest part");
  app.add_option("--platforms", settings.platforms, "platform of each rank")->delimiter(',');
  app.add_option("--nodes", settings.nodes, "node name of each rank (ISTHMUS_NODE)")->delimiter(',');
  app.add_option("--sizes", settings.sizes, "bytes, as 1M,16M or 64K:16M:4");
  app.add_option("--collective", settings.collective, "allreduce (default) or alltoall")
      ->check(CLI::IsMember({"allreduce", "alltoall"}));
  app.add_option("--ordinals", settings.ordinals, "device ordinal of each rank")->delimiter(',');
  app.add_flag("--share-device", settings.share_device, "allow NCCL ranks on one GPU; times are not valid");
  app.add_option("--rounds", settings.rounds, "samples per variant")->check(CLI::PositiveNumber);
  app.add_option("--out", settings.out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  const auto fits = [&](std::size_t n) { return n == 0 || n == settings.platforms.size(); };
  if (!fits(settings.nodes.size()) || !fits(settings.ordinals.size())) {
    std::fputs("--nodes and --ordinals must have as many entries as --platforms\n", stderr);
    return 2;
  }
  const std::string command = bench::command_of(argc, argv);
  return bench::fork_ranks(
      static_cast<int>(settings.platforms.size()), 120,
      [&](const bench::team& ranks) { return run_rank(ranks, settings, command); }, /*bound=*/false);
}
