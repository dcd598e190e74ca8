// Isthmus through its C API, measured with the same harness as plain MPI. Under mpiexec the ranks connect
// through MPI. With --ranks N the program forks the ranks, which connect through a unique id; with --threads
// they are threads of this process.
//
// Exit status: 0 success, 1 failure or wrong result, 2 bad arguments, 3 Isthmus does not support the request.
#include <isthmus/isthmus.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <isthmus/mpi.hpp>

#include "harness.hpp"
#include "harness/explain.hpp"
#include "harness/fork.hpp"
#include "harness/mpi_team.hpp"
#include "harness/threads.hpp"

namespace {

using isthmus::detail::check;

struct isthmus_options {
  int ranks = 0;  // 0: ranks are started by mpiexec
  bool heap = false, threads = false;
  std::string backend, config;
};

class isthmus_provider : public bench::provider {
 public:
  isthmus_provider(isthmus_communicator communicator, bool heap) : m_communicator(communicator), m_heap(heap) {
    check(isthmus_communicator_rank(communicator, &m_rank));
    check(isthmus_communicator_size(communicator, &m_size));
  }

  bench::provider_identity identity() const override {
    return {"isthmus", "isthmus", isthmus_version(), m_heap ? "shared_heap" : "host"};
  }

  std::string refuses(const bench::options& settings) const override {
    if (settings.pattern == bench::traffic_pattern::ping && m_size < 2) return "ping needs at least 2 ranks";
    return "";
  }

  void* allocate(std::uint64_t bytes) override {
    if (!m_heap) return bench::allocate_private(bytes);
    void* pointer = nullptr;
    check(isthmus_memory_allocate_symmetric(m_communicator, std::max<std::uint64_t>(bytes, 1), &pointer));
    return pointer;
  }
  void release(void* pointer) override {
    if (m_heap) return check(isthmus_memory_free_symmetric(m_communicator, pointer));
    std::free(pointer);
  }

  void run(const bench::bench_call& call) override {
    using bench::traffic_pattern;
    const void* send = call.send;
    void* recv = call.recv;
    const std::uint64_t count = call.count;
    const isthmus_datatype type = call.datatype;
    const isthmus_communicator comm = m_communicator;
    switch (call.pattern) {
      case traffic_pattern::broadcast:
        return check(isthmus_broadcast(send, recv, count, type, 0, comm, nullptr));
      case traffic_pattern::reduce:
        return check(isthmus_reduce(send, recv, count, type, call.op, 0, comm, nullptr));
      case traffic_pattern::allreduce:
        return check(isthmus_allreduce(send, recv, count, type, call.op, comm, nullptr));
      case traffic_pattern::reduce_scatter:
        return check(isthmus_reduce_scatter(send, recv, count, type, call.op, comm, nullptr));
      case traffic_pattern::allgather: return check(isthmus_allgather(send, recv, count, type, comm, nullptr));
      case traffic_pattern::gather: return check(isthmus_gather(send, recv, count, type, 0, comm, nullptr));
      case traffic_pattern::scatter: return check(isthmus_scatter(send, recv, count, type, 0, comm, nullptr));
      case traffic_pattern::alltoall: return check(isthmus_alltoall(send, recv, count, type, comm, nullptr));
      case traffic_pattern::sendrecv: return sendrecv(send, recv, count, type);
      case traffic_pattern::ping: return ping(send, recv, count, type);
      case traffic_pattern::barrier: return check(isthmus_barrier(comm, nullptr));
    }
  }

  // A forced algorithm may not support this collective or size.
  std::string refuses_call(const bench::bench_call& call) override {
    const nlohmann::json explanation = explain(call);
    return explanation["backend"].is_string() ? ""
                                              : explanation.value("reason", "no backend supports the call");
  }

  bench::chosen_path path(const bench::bench_call& call) override {
    const nlohmann::json explanation = explain(call);
    const std::string algorithm = explanation.value("algorithm", "");
    return {explanation.value("backend", "") + (algorithm.empty() ? "" : ":" + algorithm),
            explanation.value("reason", "")};
  }

 private:
  nlohmann::json explain(const bench::bench_call& call) const {
    isthmus_operation operation{};
    operation.collective = bench::collective_of(call.pattern);
    operation.datatype = call.datatype;
    operation.op = call.op;
    operation.root = operation.collective == ISTHMUS_SEND ? (m_rank + 1) % m_size : 0;
    operation.count = call.count;
    operation.send_buf = call.send;
    operation.recv_buf = operation.collective == ISTHMUS_SEND ? nullptr : call.recv;
    return bench::explain(m_communicator, operation);
  }

  void sendrecv(const void* send, void* recv, std::uint64_t count, isthmus_datatype type) const {
    check(isthmus_group_start());
    const isthmus_status send_status =
        isthmus_send(send, count, type, (m_rank + 1) % m_size, m_communicator, nullptr);
    const isthmus_status recv_status =
        isthmus_recv(recv, count, type, (m_rank + m_size - 1) % m_size, m_communicator, nullptr);
    const isthmus_status end_status = isthmus_group_end();
    check(send_status), check(recv_status), check(end_status);
  }

  void ping(const void* send, void* recv, std::uint64_t count, isthmus_datatype type) const {
    if (m_rank == 0) {
      check(isthmus_send(send, count, type, 1, m_communicator, nullptr));
      check(isthmus_recv(recv, count, type, 1, m_communicator, nullptr));
    } else if (m_rank == 1) {
      check(isthmus_recv(recv, count, type, 0, m_communicator, nullptr));
      check(isthmus_send(send, count, type, 0, m_communicator, nullptr));
    }
  }

  isthmus_communicator m_communicator;
  bool m_heap;
  int m_rank = 0, m_size = 0;
};

isthmus_communicator_options communicator_options(const bench::options& settings, const isthmus_options& own) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = own.config.empty() ? nullptr : own.config.c_str();
  options.timeout_s = settings.timeout_s;
  return options;
}

int measure_on(isthmus_communicator communicator, const bench::options& settings, const isthmus_options& own,
               const bench::team& ranks) {
  isthmus_provider library(communicator, own.heap);
  const int status = bench::measure(settings, ranks, library);
  if (status == 0) check(isthmus_communicator_destroy(communicator));
  return status;
}

int forked_rank(const bench::options& settings, const isthmus_options& own, const bench::team& ranks) {
  try {
    isthmus_unique_id id;
    if (ranks.rank() == 0) check(isthmus_unique_id_create(nullptr, &id));
    ranks.share(id);
    const isthmus_communicator_options options = communicator_options(settings, own);
    isthmus_communicator communicator = nullptr;
    check(isthmus_communicator_create(&id, ranks.rank(), ranks.size(), &options, &communicator));
    return measure_on(communicator, settings, own, ranks);
  } catch (const std::exception& failure) {
    ranks.abort();
    std::fprintf(stderr, "rank %d: %s\n", ranks.rank(), failure.what());
    return 1;
  }
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
  // Only one thread at a time calls MPI; MPI_THREAD_MULTIPLE would slow MPICH
  // down (docs/internals/benchmarks.md).
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  try {
    const bench::team ranks = bench::create_mpi_team(settings.timeout_s);
    const isthmus_communicator_options options = communicator_options(settings, own);
    status = measure_on(isthmus::mpi::create(MPI_COMM_WORLD, &options), settings, own, ranks);
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
  app.add_flag("--heap", own.heap, "buffers in the symmetric heap");
  app.add_flag("--threads", own.threads, "run the ranks of --ranks as threads of this process");
  app.add_option("--backend", own.backend, "force this backend, or backend:algorithm");
  app.add_option("--config", own.config, "configuration file");
  try {
    app.parse(argc, argv);
    line.finish(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : 2;
  }
  if (!own.backend.empty()) setenv("ISTHMUS_BACKEND", own.backend.c_str(), 1);
  if (own.ranks == 0) return mpi_rank(settings, own);
  if (own.threads) return threads_of_this_process(settings, own);
  return bench::fork_ranks(own.ranks, settings.timeout_s,
                           [&](const bench::team& ranks) { return forked_rank(settings, own, ranks); });
}
