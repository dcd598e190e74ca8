// A collective whose ranks are on several platforms, or on nodes of their own, beside the same one with
// all ranks on the host, its slowest part. Ranks are processes; both take turns, a sample is the slowest rank's
// time.
//
//   hierarchical_bench --platforms cuda,cuda,host,host --sizes 16M --out out.json
//   hierarchical_bench --platforms cuda,cuda --nodes a,b --sizes 16M --collective alltoall
#include <isthmus/memory.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <isthmus/error.hpp>
#include <string>
#include <vector>

#include "harness/clock.hpp"
#include "harness/command.hpp"
#include "harness/document.hpp"
#include "harness/fork.hpp"

namespace {

using isthmus::detail::check;

struct asked {
  std::vector<std::string> platforms{"cuda", "cuda", "host", "host"};
  std::vector<std::string> nodes;  // of each rank; empty: one
  std::vector<int> ordinals;       // of each rank's device; empty: 0
  std::string sizes = "16M", collective = "allreduce", out;
  int rounds = 31;
  bool share_device = false;
};

isthmus_device device_named(const std::string& platform, int ordinal) {
  for (int i = 0; i < ISTHMUS_PLATFORM_COUNT; ++i)
    if (platform == isthmus_platform_name(static_cast<isthmus_platform>(i)))
      return {static_cast<isthmus_platform>(i), ordinal};
  throw std::runtime_error("no platform " + platform);
}

// A communicator of all ranks and this rank's buffers for it.
class side {
 public:
  // `collective`: allreduce, or alltoall of `bytes` in all.
  side(const bench::team& ranks, isthmus_device device, std::uint64_t bytes, const std::string& collective)
      : m_device(device), m_count(bytes / 4), m_rank(ranks.rank()) {
    m_call.collective = collective == "alltoall" ? ISTHMUS_ALLTOALL : ISTHMUS_ALLREDUCE;
    m_block =
        m_call.collective == ISTHMUS_ALLTOALL ? m_count / static_cast<std::uint64_t>(ranks.size()) : m_count;
    isthmus_unique_id id{};
    if (ranks.rank() == 0) check(isthmus_unique_id_create(nullptr, &id));
    ranks.share(id);
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof options;
    options.device = device;
    options.timeout_s = 60;
    check(isthmus_communicator_create(&id, ranks.rank(), ranks.size(), &options, &m_ranks));
    check(isthmus_memory_allocate_device(device, bytes, nullptr, &m_send));
    check(isthmus_memory_allocate_device(device, bytes, nullptr, &m_recv));
    for (std::uint64_t i = 0; i < m_count; ++i) m_mine.push_back(value(ranks.rank(), i));
    copy(m_send, m_device, m_mine.data(), {}, bytes);
    m_call.datatype = ISTHMUS_FLOAT32;
    m_call.op = ISTHMUS_SUM;
    m_call.count = m_block;
    m_call.send_buf = m_send;
    m_call.recv_buf = m_recv;
  }
  ~side() {
    isthmus_communicator_destroy(m_ranks);
    isthmus_memory_free_device(m_device, m_send);
    isthmus_memory_free_device(m_device, m_recv);
  }
  side(const side&) = delete;
  side& operator=(const side&) = delete;

  void call() const { check(isthmus_enqueue(m_ranks, &m_call)); }
  // Elements that differ from the result, which is exact.
  std::uint64_t wrong(int ranks) const {
    std::vector<float> got(m_count);
    copy(got.data(), {}, m_recv, m_device, m_count * 4);
    check(isthmus_barrier(m_ranks, nullptr));  // waits for the copy on the stream
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < m_block * blocks(ranks); ++i) found += got[i] != expected(ranks, i) ? 1 : 0;
    return found;
  }
  std::string backend() const {
    std::string json(1 << 16, '\0');
    check(isthmus_communicator_explain(m_ranks, &m_call, json.data(), json.size(), nullptr));
    const auto told = nlohmann::json::parse(json.c_str());
    std::string text = told.at("backend");
    if (!told.at("plan").is_null())
      for (const auto& step : told.at("plan")) text += ", " + step.at("backend").get<std::string>();
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
    if (m_call.collective == ISTHMUS_ALLTOALL)
      return value(static_cast<int>(i / m_block), static_cast<std::uint64_t>(m_rank) * m_block + i % m_block);
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i);
    return sum;
  }

  isthmus_device m_device;
  std::uint64_t m_count, m_block;  // elements of a buffer, and of the block that a call counts
  int m_rank;
  isthmus_operation m_call{};
  std::vector<float> m_mine;
  isthmus_communicator m_ranks = nullptr;
  void* m_send = nullptr;
  void* m_recv = nullptr;
};

// Of the slowest rank.
double time_us(const bench::team& ranks, const side& of) {
  ranks.barrier();
  const std::uint64_t begin = bench::steady_ns();
  of.call();
  ranks.block().values[ranks.rank()] = static_cast<double>(bench::steady_ns() - begin) / 1000;
  ranks.barrier();
  double slowest = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) slowest = std::max(slowest, ranks.block().values[rank]);
  return slowest;
}

std::uint64_t wrong_anywhere(const bench::team& ranks, const side& of) {
  ranks.block().wrong[ranks.rank()] = of.wrong(ranks.size());
  ranks.barrier();
  std::uint64_t all = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) all += ranks.block().wrong[rank];
  ranks.barrier();
  return all;
}

std::string mode_of(const asked& what) {
  std::string mode = CLI::detail::join(what.platforms, "+");
  return what.nodes.empty() ? mode : mode + " on nodes " + CLI::detail::join(what.nodes, "+");
}

void measure(const bench::team& ranks, const asked& what, std::uint64_t bytes, nlohmann::json& records) {
  const auto own = static_cast<std::size_t>(ranks.rank());
  const int ordinal = what.ordinals.empty() ? 0 : what.ordinals[own];
  const side joined(ranks, device_named(what.platforms[own], ordinal), bytes, what.collective);
  const side on_host(ranks, {ISTHMUS_PLATFORM_HOST, 0}, bytes, what.collective);
  for (int i = 0; i < 3; ++i) {
    time_us(ranks, joined);
    time_us(ranks, on_host);
  }
  std::vector<double> of_joined, of_host;
  for (int round = 0; round < what.rounds; ++round) {
    of_joined.push_back(time_us(ranks, joined));
    of_host.push_back(time_us(ranks, on_host));
  }
  const double n = ranks.size();
  const auto add = [&](const side& of, const std::vector<double>& samples, const std::string& mode) {
    const std::uint64_t wrong = wrong_anywhere(ranks, of);
    if (ranks.rank() != 0) return;
    const double rate = static_cast<double>(bytes) / bench::median(samples) / 1000;
    nlohmann::json record =
        bench::record_of({what.collective, "float32", bytes, ranks.size(), "isthmus", of.backend(), mode},
                         samples, {rate, rate * (what.collective == "allreduce" ? 2 : 1) * (n - 1) / n});
    if (what.collective == "allreduce") record["op"] = "sum";
    record["wrong"] = wrong;
    records.push_back(record);
    std::printf("%-9s %-34s %9llu B %10.1f us  %llu wrong  by %s\n", what.collective.c_str(), mode.c_str(),
                static_cast<unsigned long long>(bytes), bench::median(samples),
                static_cast<unsigned long long>(wrong), of.backend().c_str());
  };
  add(joined, of_joined, mode_of(what));
  add(on_host, of_host, "all on the host");
}

int run_rank(const bench::team& ranks, const asked& what, const std::string& command) {
  try {
    if (what.share_device)  // NCCL takes them for ranks of several hosts
      setenv("NCCL_HOSTID", ("rank" + std::to_string(ranks.rank())).c_str(), 1);
    if (!what.nodes.empty())
      setenv("ISTHMUS_NODE", what.nodes[static_cast<std::size_t>(ranks.rank())].c_str(), 1);
    nlohmann::json records = nlohmann::json::array();
    for (const std::uint64_t bytes : bench::parse_sizes(what.sizes)) measure(ranks, what, bytes, records);
    if (ranks.rank() == 0) bench::write_records(what.out, command, {{"isthmus", isthmus_version()}}, records);
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
  asked what;
  CLI::App app("a collective over several platforms or nodes beside its slowest part");
  app.add_option("--platforms", what.platforms, "of each rank")->delimiter(',');
  app.add_option("--nodes", what.nodes, "of each rank: names for ISTHMUS_NODE")->delimiter(',');
  app.add_option("--sizes", what.sizes, "bytes, as 1M,16M or 64K:16M:4");
  app.add_option("--collective", what.collective, "allreduce (default) or alltoall")
      ->check(CLI::IsMember({"allreduce", "alltoall"}));
  app.add_option("--ordinals", what.ordinals, "of each rank's device")->delimiter(',');
  app.add_flag("--share-device", what.share_device, "ranks of one GPU may meet in NCCL; times mean nothing");
  app.add_option("--rounds", what.rounds, "samples of each")->check(CLI::PositiveNumber);
  app.add_option("--out", what.out, "file of records");
  CLI11_PARSE(app, argc, argv);
  const auto fits = [&](std::size_t n) { return n == 0 || n == what.platforms.size(); };
  if (!fits(what.nodes.size()) || !fits(what.ordinals.size())) {
    std::fputs("--nodes and --ordinals need as many entries as --platforms\n", stderr);
    return 2;
  }
  const std::string command = bench::command_of(argc, argv);
  return bench::fork_ranks(
      static_cast<int>(what.platforms.size()), 120,
      [&](const bench::team& ranks) { return run_rank(ranks, what, command); }, /*bound=*/false);
}
