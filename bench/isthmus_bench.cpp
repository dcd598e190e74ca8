// Isthmus through its C API, measured with the same harness as plain MPI. Under mpiexec the ranks connect
// through MPI. With --ranks N the program forks the ranks, which connect through a unique id; with --threads
// they are threads of this process. With --platform, rank r has device r.
//
// With --serve, rank 0 reads requests from standard input: lines with the arguments of a measurement. It answers
// each with a line {"report": ..., "refusal": reason or ""}, or with --info {"info": ...}. Communicators are
// kept, so that a request takes hardly more than its measurement. --backend, --rule and --profile of a request
// replace the environment variables of these names.
//
// Exit status: 0 success, 1 failure or wrong result, 2 bad arguments, 3 Isthmus does not support the request.
#include <isthmus/isthmus.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <array>
#include <iostream>
#include <isthmus/mpi.hpp>
#include <map>
#include <memory>

#include "harness.hpp"
#include "harness/explain.hpp"
#include "harness/fork.hpp"
#include "harness/mpi_team.hpp"
#include "harness/place.hpp"
#include "harness/threads.hpp"

namespace {

using isthmus::detail::check;

struct isthmus_options {
  int ranks = 0;  // 0: ranks are started by mpiexec
  bool heap = false, graph = false, threads = false, serves = false;
  std::string backend, config, platform = "host";

  isthmus_device device(int rank) const {
    for (int i = 0; i < ISTHMUS_PLATFORM_COUNT; ++i)
      if (const auto each = static_cast<isthmus_platform>(i); platform == isthmus_platform_name(each))
        return {each, each == ISTHMUS_PLATFORM_HOST ? 0 : rank};
    throw std::runtime_error("unknown platform " + platform);
  }
};

nlohmann::json info(isthmus_communicator communicator) {
  std::size_t bytes = 0;
  check(isthmus_communicator_info(communicator, nullptr, 0, &bytes));
  std::string text(bytes, '\0');
  check(isthmus_communicator_info(communicator, text.data(), bytes, nullptr));
  return nlohmann::json::parse(text.c_str());
}

class isthmus_provider : public bench::provider {
 public:
  isthmus_provider(isthmus_communicator communicator, bench::memory_place& place, bool heap, bool graph)
      : m_communicator(communicator), m_place(place), m_heap(heap), m_graph(graph) {
    check(isthmus_communicator_rank(communicator, &m_rank));
    check(isthmus_communicator_size(communicator, &m_size));
  }

  bench::provider_identity identity() const override {
    return {"isthmus", "isthmus", isthmus_version(),
            m_graph              ? "graph"
            : !m_place.is_host() ? "stream"
            : m_heap             ? "shared_heap"
                                 : "host"};
  }

  std::string refuses(const bench::options& settings) const override {
    if (settings.pattern == bench::traffic_pattern::ping && m_size < 2) return "ping needs at least 2 ranks";
    return "";
  }

  void* allocate(std::uint64_t bytes) override {
    if (!m_heap) return m_place.is_host() ? bench::allocate_private(bytes) : m_place.allocate(bytes);
    void* pointer = nullptr;
    check(isthmus_memory_allocate_symmetric(m_communicator, std::max<std::uint64_t>(bytes, 1), &pointer));
    return pointer;
  }
  void release(void* pointer) override {
    if (m_heap) return check(isthmus_memory_free_symmetric(m_communicator, pointer));
    m_place.release(pointer);
  }

  void run(const bench::bench_call& call) override {
    enqueue(call);
    m_place.wait();
  }
  bool is_on_device() const override { return !m_place.is_host(); }
  void copy(void* to, const void* from, std::uint64_t bytes) override {
    m_place.copy(to, from, bytes);
    m_place.wait();
  }
  // Two calls before the timed ones align the ranks.
  double stream_us(const bench::bench_call& call, int calls) override {
    const auto enqueue_many = [&](int count) {
      return [this, &call, count] {
        for (int i = 0; i < count; ++i) enqueue(call);
      };
    };
    const double us = m_graph ? m_place.graph_us(enqueue_many(2), enqueue_many(calls))
                              : m_place.stream_us(enqueue_many(2), enqueue_many(calls));
    return us / calls;
  }

  // A forced algorithm may not support this collective or size.
  std::string refuses_call(const bench::bench_call& call) override {
    const nlohmann::json explanation = explain(call);
    if (!explanation["backend"].is_string()) return explanation.value("reason", "no backend supports the call");
    const std::string backend = explanation["backend"];
    return m_graph && !can_capture(backend) ? backend + " cannot be captured into a graph" : "";
  }

  bench::chosen_path path(const bench::bench_call& call) override {
    const nlohmann::json explanation = explain(call);
    const std::string algorithm = explanation.value("algorithm", "");
    return {explanation.value("backend", "") + (algorithm.empty() ? "" : ":" + algorithm),
            explanation.value("reason", "")};
  }

 private:
  void enqueue(const bench::bench_call& call) const {
    using bench::traffic_pattern;
    const void* send = call.send;
    void* recv = call.recv;
    const std::uint64_t count = call.count;
    const isthmus_datatype type = call.datatype;
    const isthmus_communicator comm = m_communicator;
    void* const stream = m_place.stream();
    switch (call.pattern) {
      case traffic_pattern::broadcast:
        return check(isthmus_broadcast(send, recv, count, type, 0, comm, stream));
      case traffic_pattern::reduce:
        return check(isthmus_reduce(send, recv, count, type, call.op, 0, comm, stream));
      case traffic_pattern::allreduce:
        return check(isthmus_allreduce(send, recv, count, type, call.op, comm, stream));
      case traffic_pattern::reduce_scatter:
        return check(isthmus_reduce_scatter(send, recv, count, type, call.op, comm, stream));
      case traffic_pattern::allgather: return check(isthmus_allgather(send, recv, count, type, comm, stream));
      case traffic_pattern::gather: return check(isthmus_gather(send, recv, count, type, 0, comm, stream));
      case traffic_pattern::scatter: return check(isthmus_scatter(send, recv, count, type, 0, comm, stream));
      case traffic_pattern::alltoall: return check(isthmus_alltoall(send, recv, count, type, comm, stream));
      case traffic_pattern::reduce_scatterv:
        return check(
            isthmus_reduce_scatterv(send, call.counts, call.displs, recv, count, type, call.op, comm, stream));
      case traffic_pattern::allgatherv:
        return check(isthmus_allgatherv(send, count, recv, call.counts, call.displs, type, comm, stream));
      case traffic_pattern::gatherv:
        return check(isthmus_gatherv(send, count, recv, call.counts, call.displs, type, 0, comm, stream));
      case traffic_pattern::scatterv:
        return check(isthmus_scatterv(send, call.counts, call.displs, recv, count, type, 0, comm, stream));
      case traffic_pattern::alltoallv:
        return check(isthmus_alltoallv(send, call.counts, call.displs, recv, call.counts, call.displs, type,
                                       comm, stream));
      case traffic_pattern::sendrecv: return sendrecv(send, recv, count, type);
      case traffic_pattern::ping: return ping(send, recv, count, type);
      case traffic_pattern::barrier: return check(isthmus_barrier(comm, stream));
    }
  }

  nlohmann::json explain(const bench::bench_call& call) const {
    isthmus_operation operation{};
    operation.collective = bench::collective_of(call.pattern);
    operation.datatype = call.datatype;
    operation.op = call.op;
    operation.root = operation.collective == ISTHMUS_SEND ? (m_rank + 1) % m_size : 0;
    operation.count = call.count;
    operation.send_buf = call.send;
    operation.recv_buf = operation.collective == ISTHMUS_SEND ? nullptr : call.recv;
    operation.stream = m_place.stream();
    if (operation.collective != bench::without_counts(operation.collective)) {
      operation.send_counts = operation.recv_counts = call.counts;
      operation.send_displs = operation.recv_displs = call.displs;
    }
    return bench::explain(m_communicator, operation);
  }

  bool can_capture(const std::string& backend) const {
    const nlohmann::json description = info(m_communicator);
    for (const nlohmann::json& each : description["backends"])
      if (each["name"] == backend)
        for (const nlohmann::json& capability : each["capabilities"])
          if (capability == "graph_capture") return true;
    return false;
  }

  void sendrecv(const void* send, void* recv, std::uint64_t count, isthmus_datatype type) const {
    check(isthmus_group_start());
    const isthmus_status send_status =
        isthmus_send(send, count, type, (m_rank + 1) % m_size, m_communicator, m_place.stream());
    const isthmus_status recv_status =
        isthmus_recv(recv, count, type, (m_rank + m_size - 1) % m_size, m_communicator, m_place.stream());
    const isthmus_status end_status = isthmus_group_end();
    check(send_status), check(recv_status), check(end_status);
  }

  void ping(const void* send, void* recv, std::uint64_t count, isthmus_datatype type) const {
    if (m_rank == 0) {
      check(isthmus_send(send, count, type, 1, m_communicator, m_place.stream()));
      check(isthmus_recv(recv, count, type, 1, m_communicator, m_place.stream()));
    } else if (m_rank == 1) {
      check(isthmus_recv(recv, count, type, 0, m_communicator, m_place.stream()));
      check(isthmus_send(send, count, type, 0, m_communicator, m_place.stream()));
    }
  }

  isthmus_communicator m_communicator;
  bench::memory_place& m_place;
  bool m_heap, m_graph;
  int m_rank = 0, m_size = 0;
};

using create_function = std::function<isthmus_communicator(const isthmus_communicator_options&)>;

// One rank: its device, and its communicators by their selection.
class bench_rank {
 public:
  bench_rank(const isthmus_options& own, const bench::team& ranks, create_function create)
      : m_own(own), m_ranks(ranks), m_create(std::move(create)), m_place(own.device(ranks.rank())) {
    for (const auto& [option, variable] : variables) m_environment.push_back(bench::environment(variable, ""));
  }

  // Collective. Destroys the communicators.
  void finish() {
    for (const auto& [selection, communicator] : m_communicators)
      check(isthmus_communicator_destroy(communicator));
  }

  // Returns the exit status.
  int measure(const bench::options& settings) {
    isthmus_provider library(communicator(settings, m_environment), m_place, m_own.heap, m_own.graph);
    return bench::measure(settings, m_ranks, library);
  }

  // Answers the request of a line. Collective.
  void answer(const std::string& line) {
    bench::options settings;
    std::vector<std::string> selection = m_environment;
    bool is_info = false, graph = m_own.graph;
    CLI::App app;
    bench::command_line parser(app, settings);
    for (std::size_t i = 0; i < variables.size(); ++i) app.add_option(variables[i].first, selection[i]);
    app.add_flag("--info", is_info);
    app.add_flag("--graph", graph);
    app.parse(line);
    for (std::size_t i = 0; i < variables.size(); ++i) setenv(variables[i].second, selection[i].c_str(), 1);
    const isthmus_communicator used = communicator(settings, selection);
    if (is_info) return print({{"info", info(used)}});
    parser.finish(line);
    isthmus_provider library(used, m_place, m_own.heap, graph);
    bench::measurement run(settings, m_ranks, library);
    run.sweep();
    print({{"report", run.results().document()}, {"refusal", run.refusal_reason()}});
  }

 private:
  // The variables that a request can set for its communicator.
  static constexpr std::array<std::pair<const char*, const char*>, 3> variables = {
      {{"--backend", "ISTHMUS_BACKEND"}, {"--rule", "ISTHMUS_RULE"}, {"--profile", "ISTHMUS_PROFILE"}}};

  isthmus_communicator communicator(const bench::options& settings, const std::vector<std::string>& selection) {
    const auto [entry, is_new] = m_communicators.try_emplace(selection, nullptr);
    if (!is_new) return entry->second;
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof options;
    options.config_path = m_own.config.empty() ? nullptr : m_own.config.c_str();
    options.timeout_s = settings.timeout_s;
    options.device = m_place.device();
    return entry->second = m_create(options);
  }

  void print(const nlohmann::json& reply) const {
    if (m_ranks.rank() == 0) std::cout << reply.dump() << std::endl;
  }

  const isthmus_options& m_own;
  const bench::team& m_ranks;
  create_function m_create;
  bench::memory_place m_place;
  std::vector<std::string> m_environment;  // initial values of the variables
  std::map<std::vector<std::string>, isthmus_communicator> m_communicators;
};

// Returns the next line of standard input, or "" at its end. Collective; rank 0 reads.
std::string next_request(const bench::team& ranks) {
  std::string line;
  if (ranks.rank() == 0) std::getline(std::cin, line);
  char text[sizeof(bench::shared_block::message)] = "";
  if (line.size() >= sizeof text) throw std::runtime_error("the request is too long");
  line.copy(text, line.size());
  ranks.share(text);
  return text;
}

int rank_main(const bench::options& settings, const isthmus_options& own, const bench::team& ranks,
              create_function create) {
  try {
    bench_rank rank(own, ranks, std::move(create));
    int status = 0;
    if (own.serves)
      for (std::string line; !(line = next_request(ranks)).empty();) rank.answer(line);
    else
      status = rank.measure(settings);
    if (status == 0) rank.finish();
    return status;
  } catch (const std::exception& failure) {
    ranks.abort();
    std::fprintf(stderr, "rank %d: %s\n", ranks.rank(), failure.what());
    return 1;
  }
}

int forked_rank(const bench::options& settings, const isthmus_options& own, const bench::team& ranks) {
  return rank_main(settings, own, ranks, [&](const isthmus_communicator_options& options) {
    isthmus_unique_id id;
    if (ranks.rank() == 0) check(isthmus_unique_id_create(nullptr, &id));
    ranks.share(id);
    isthmus_communicator communicator = nullptr;
    check(isthmus_communicator_create(&id, ranks.rank(), ranks.size(), &options, &communicator));
    return communicator;
  });
}

// Returns the largest exit status of the ranks, each on its own core like forked ranks.
int threads_of_this_process(const bench::options& settings, const isthmus_options& own) {
  std::atomic<int> worst = 0;
  bench::thread_ranks(own.ranks, settings.timeout_s).each([&](const bench::team& ranks) {
    bench::bind_to_core(ranks.rank(), ranks.size());
    if (const int status = forked_rank(settings, own, ranks); status > worst) worst = status;
  });
  return worst;
}

int mpi_rank(const bench::options& settings, const isthmus_options& own) {
  int provided = MPI_THREAD_SINGLE, status = 1;
  // On the host, only one thread at a time calls MPI; MPI_THREAD_MULTIPLE would slow MPICH
  // down (docs/internals/benchmarks.md).
  MPI_Init_thread(nullptr, nullptr, own.platform == "host" ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE,
                  &provided);
  try {
    const bench::team ranks = bench::create_mpi_team(settings.timeout_s);
    status = rank_main(settings, own, ranks, [](const isthmus_communicator_options& options) {
      return isthmus::mpi::create(MPI_COMM_WORLD, &options);
    });
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "isthmus_bench: %s\n", failure.what());
  }
  if (status == 1) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  bench::options settings;
  isthmus_options own;
  CLI::App app("Measures Isthmus collectives through the C API; start it with mpiexec, or with --ranks");
  bench::command_line line(app, settings);
  app.add_option("--ranks", own.ranks, "fork this many ranks instead of using MPI")
      ->check(CLI::Range(1, bench::max_ranks));
  app.add_option("--platform", own.platform, "host, or the platform of the ranks' devices")
      ->check(CLI::IsMember({"host", "cuda", "hip"}))
      ->capture_default_str();
  app.add_flag("--heap", own.heap, "buffers in the symmetric heap");
  app.add_flag("--graph", own.graph, "devices: time calls in captured graphs");
  auto* const threads =
      app.add_flag("--threads", own.threads, "run the ranks of --ranks as threads of this process");
  app.add_flag("--serve", own.serves, "read requests from standard input")->excludes(threads);
  app.add_option("--backend", own.backend, "force this backend, or backend:algorithm");
  app.add_option("--config", own.config, "configuration file");
  try {
    app.parse(argc, argv);
    if (own.graph && own.platform == "host")
      throw CLI::ValidationError("--graph", "requires --platform cuda or hip");
    if (!own.serves) line.finish(bench::command_of(argc, argv));
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : 2;
  }
  if (!own.backend.empty()) setenv("ISTHMUS_BACKEND", own.backend.c_str(), 1);
  if (own.ranks == 0) return mpi_rank(settings, own);
  if (own.threads) return threads_of_this_process(settings, own);
  return bench::fork_ranks(
      own.ranks, settings.timeout_s,
      [&](const bench::team& ranks) { return forked_rank(settings, own, ranks); }, own.platform == "host");
}
