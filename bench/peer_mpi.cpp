// Plain MPI, measured with the same harness as Isthmus. Compiled once per MPI family against its own mpi.h
// (CMake: peer_mpi, with MPICH of the virtual environment; scripts/setup_peers: the other families).
//
// Exit status: 0 success, 1 failure or wrong result, 2 bad arguments, 3 the library does not
// support the request.
#include <mpi.h>

#include "harness.hpp"
#include "harness/mpi_team.hpp"

namespace {

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(function) + ": " + text);
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string line(text);  // the length of Open MPI includes the terminating zero
  line.resize(std::min(line.find('\n'), line.size()));
  std::replace(line.begin(), line.end(), '\t', ' ');
  line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
             line.end());
  return line;
}

std::string family(const std::string& version) {
  if (version.find("Open MPI") != std::string::npos) return "openmpi";
  if (version.find("Intel") != std::string::npos) return "impi";
  if (version.find("MPICH") != std::string::npos) return "mpich";
  return "mpi";
}

// MPI_DATATYPE_NULL if MPI has no such type.
MPI_Datatype native_type(isthmus_datatype datatype) {
  switch (datatype) {
    case ISTHMUS_INT8: return MPI_INT8_T;
    case ISTHMUS_INT16: return MPI_INT16_T;
    case ISTHMUS_INT32: return MPI_INT32_T;
    case ISTHMUS_INT64: return MPI_INT64_T;
    case ISTHMUS_UINT8: return MPI_UINT8_T;
    case ISTHMUS_UINT16: return MPI_UINT16_T;
    case ISTHMUS_UINT32: return MPI_UINT32_T;
    case ISTHMUS_UINT64: return MPI_UINT64_T;
    case ISTHMUS_FLOAT32: return MPI_FLOAT;
    case ISTHMUS_FLOAT64: return MPI_DOUBLE;
    case ISTHMUS_FLOAT16:
    case ISTHMUS_BFLOAT16:
    case ISTHMUS_FLOAT8_E4M3:
    case ISTHMUS_FLOAT8_E5M2:
    case ISTHMUS_DATATYPE_COUNT: return MPI_DATATYPE_NULL;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op native_op(isthmus_reduction_op op) {
  switch (op) {
    case ISTHMUS_SUM: return MPI_SUM;
    case ISTHMUS_PROD: return MPI_PROD;
    case ISTHMUS_MIN: return MPI_MIN;
    case ISTHMUS_MAX: return MPI_MAX;
    case ISTHMUS_AVG:
    case ISTHMUS_REDUCTION_OP_COUNT: return MPI_OP_NULL;
  }
  return MPI_OP_NULL;
}

class mpi_provider : public bench::provider {
 public:
  mpi_provider() {
    MPI_Comm_rank(MPI_COMM_WORLD, &m_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m_size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }

  bench::provider_identity identity() const override {
    const std::string version = library_version();
    return {family(version), family(version), version};
  }

  std::string refuses(const bench::options& settings) const override {
    if (bench::reduces(bench::collective_of(settings.pattern)) &&
        native_type(settings.datatype) == MPI_DATATYPE_NULL)
      return "plain MPI has no datatype " + bench::datatype_names()[settings.datatype] + " to reduce";
    if (bench::reduces(bench::collective_of(settings.pattern)) && native_op(settings.op) == MPI_OP_NULL)
      return "plain MPI has no reduction " + bench::op_names()[settings.op];
    if (settings.pattern == bench::traffic_pattern::ping && m_size < 2) return "ping needs at least 2 ranks";
    return "";
  }

  void* allocate(std::uint64_t bytes) override { return bench::allocate_private(bytes); }
  void release(void* pointer) override { std::free(pointer); }

  void run(const bench::bench_call& call) override {
    using bench::traffic_pattern;
    // Types that MPI does not have are sent as bytes.
    MPI_Datatype type = native_type(call.datatype);
    std::uint64_t elements = call.count;
    if (type == MPI_DATATYPE_NULL) type = MPI_BYTE, elements *= oracle::bytes_of(call.datatype);
    if (elements > static_cast<std::uint64_t>(INT_MAX))
      throw std::runtime_error("count " + std::to_string(elements) + " exceeds INT_MAX");
    const int count = static_cast<int>(elements);
    const MPI_Op op = native_op(call.op);
    const void* send = call.send;
    void* recv = call.recv;
    const MPI_Comm comm = MPI_COMM_WORLD;
    switch (call.pattern) {
      case traffic_pattern::broadcast: return check(MPI_Bcast(recv, count, type, 0, comm), "MPI_Bcast");
      case traffic_pattern::reduce:
        return check(MPI_Reduce(send, recv, count, type, op, 0, comm), "MPI_Reduce");
      case traffic_pattern::allreduce:
        return check(MPI_Allreduce(send, recv, count, type, op, comm), "MPI_Allreduce");
      case traffic_pattern::reduce_scatter:
        return check(MPI_Reduce_scatter_block(send, recv, count, type, op, comm), "MPI_Reduce_scatter_block");
      case traffic_pattern::allgather:
        return check(MPI_Allgather(send, count, type, recv, count, type, comm), "MPI_Allgather");
      case traffic_pattern::gather:
        return check(MPI_Gather(send, count, type, recv, count, type, 0, comm), "MPI_Gather");
      case traffic_pattern::scatter:
        return check(MPI_Scatter(send, count, type, recv, count, type, 0, comm), "MPI_Scatter");
      case traffic_pattern::alltoall:
        return check(MPI_Alltoall(send, count, type, recv, count, type, comm), "MPI_Alltoall");
      case traffic_pattern::reduce_scatterv:
      case traffic_pattern::allgatherv:
      case traffic_pattern::gatherv:
      case traffic_pattern::scatterv:
      case traffic_pattern::alltoallv: return run_with_counts(call, type, count);
      case traffic_pattern::sendrecv:
        return check(MPI_Sendrecv(send, count, type, (m_rank + 1) % m_size, 0, recv, count, type,
                                  (m_rank + m_size - 1) % m_size, 0, comm, MPI_STATUS_IGNORE),
                     "MPI_Sendrecv");
      case traffic_pattern::ping: return ping(send, recv, count, type);
      case traffic_pattern::barrier: return check(MPI_Barrier(comm), "MPI_Barrier");
    }
  }

 private:
  void ping(const void* send, void* recv, int count, MPI_Datatype type) const {
    if (m_rank == 0) {
      check(MPI_Send(send, count, type, 1, 0, MPI_COMM_WORLD), "MPI_Send");
      check(MPI_Recv(recv, count, type, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    } else if (m_rank == 1) {
      check(MPI_Recv(recv, count, type, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
      check(MPI_Send(send, count, type, 0, 0, MPI_COMM_WORLD), "MPI_Send");
    }
  }

  // The first call of a size, which is not timed, fills the count arrays.
  void run_with_counts(const bench::bench_call& call, MPI_Datatype type, int count) {
    using bench::traffic_pattern;
    if (m_counts.empty() || m_counts[0] != count) {
      m_counts.assign(static_cast<std::size_t>(m_size), count);
      m_displs.clear();
      for (int r = 0; r < m_size; ++r) m_displs.push_back(r * count);
    }
    const int* const counts = m_counts.data();
    const int* const displs = m_displs.data();
    const MPI_Comm comm = MPI_COMM_WORLD;
    if (call.pattern == traffic_pattern::reduce_scatterv)
      check(MPI_Reduce_scatter(call.send, call.recv, counts, type, native_op(call.op), comm),
            "MPI_Reduce_scatter");
    else if (call.pattern == traffic_pattern::allgatherv)
      check(MPI_Allgatherv(call.send, count, type, call.recv, counts, displs, type, comm), "MPI_Allgatherv");
    else if (call.pattern == traffic_pattern::gatherv)
      check(MPI_Gatherv(call.send, count, type, call.recv, counts, displs, type, 0, comm), "MPI_Gatherv");
    else if (call.pattern == traffic_pattern::scatterv)
      check(MPI_Scatterv(call.send, counts, displs, type, call.recv, count, type, 0, comm), "MPI_Scatterv");
    else
      check(MPI_Alltoallv(call.send, counts, displs, type, call.recv, counts, displs, type, comm),
            "MPI_Alltoallv");
  }

  int m_rank = 0, m_size = 0;
  std::vector<int> m_counts, m_displs;
};

}  // namespace

int main(int argc, char** argv) {
  bench::options settings;
  CLI::App app("Measures plain MPI collectives; start it with the launcher of its own MPI");
  bench::command_line line(app, settings);
  try {
    app.parse(argc, argv);
    line.finish(bench::command_of(argc, argv));
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : 2;
  }
  MPI_Init(&argc, &argv);
  int status = 1;
  try {
    const bench::team ranks = bench::create_mpi_team(settings.timeout_s);
    mpi_provider library;
    status = bench::measure(settings, ranks, library);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "peer_mpi: %s\n", failure.what());
  }
  if (status == 1) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
