#include "ways.hpp"

#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <isthmus/error.hpp>
#include <isthmus/mpi.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace patterns {
namespace {

using isthmus::detail::check;

void check_native(int code, const char* library) {
  if (code != 0) throw std::runtime_error(std::string(library) + " failed with code " + std::to_string(code));
}

std::byte* at(std::byte* buffer, const piece& each) { return buffer + each.at * sizeof(word); }

// Counts and displacements of one side of a collective.
struct layout {
  std::vector<std::uint64_t> counts, displs;
  explicit layout(const std::vector<piece>& pieces) {
    for (const piece& each : pieces) {
      counts.push_back(each.count);
      displs.push_back(each.at);
    }
  }
};

// What Isthmus takes for it.
std::string backend_of(const plan& of, isthmus_communicator ranks, const layout& send, const layout& receive) {
  isthmus_operation asked{};
  asked.collective = of.what == form::messages   ? ISTHMUS_SEND
                     : of.what == form::alltoall ? ISTHMUS_ALLTOALL
                                                 : ISTHMUS_ALLTOALLV;
  asked.datatype = ISTHMUS_UINT32;
  asked.root = of.what == form::messages ? of.sends.front().peer : 0;
  asked.count = of.what == form::alltoallv ? 0 : of.sends.front().count;
  if (of.what == form::alltoallv) {
    asked.send_counts = send.counts.data();
    asked.send_displs = send.displs.data();
    asked.recv_counts = receive.counts.data();
    asked.recv_displs = receive.displs.data();
  }
  std::string json(1 << 18, '\0');
  check(isthmus_communicator_explain(ranks, &asked, json.data(), json.size(), nullptr));
  return nlohmann::json::parse(json.c_str()).at("backend").get<std::string>();
}

void send_and_receive(const plan& of, buffers in, isthmus_communicator ranks, void* stream, bool apart) {
  if (!apart) check(isthmus_group_start());
  for (std::size_t i = 0; i < of.sends.size(); ++i) {
    const piece &send = of.sends[i], &receive = of.receives[i];
    if (apart) check(isthmus_group_start());
    check(isthmus_send(at(in.send, send), send.count, ISTHMUS_UINT32, send.peer, ranks, stream));
    check(isthmus_recv(at(in.receive, receive), receive.count, ISTHMUS_UINT32, receive.peer, ranks, stream));
    if (apart) check(isthmus_group_end());
  }
  if (!apart) check(isthmus_group_end());
}

std::vector<int> as_ints(const std::vector<std::uint64_t>& values) { return {values.begin(), values.end()}; }

void exchange_by_mpi(const plan& of, buffers in, std::vector<MPI_Request>& requests) {
  requests.clear();
  for (const piece& each : of.receives)
    check_native(MPI_Irecv(at(in.receive, each), static_cast<int>(each.count), MPI_UINT32_T, each.peer, 0,
                           MPI_COMM_WORLD, &requests.emplace_back()),
                 "MPI_Irecv");
  for (const piece& each : of.sends)
    check_native(MPI_Isend(at(in.send, each), static_cast<int>(each.count), MPI_UINT32_T, each.peer, 0,
                           MPI_COMM_WORLD, &requests.emplace_back()),
                 "MPI_Isend");
  check_native(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
               "MPI_Waitall");
}

std::function<void()> mpi_call(const plan& of, buffers in) {
  if (of.what == form::messages)
    return [&of, in, requests = std::vector<MPI_Request>()]() mutable { exchange_by_mpi(of, in, requests); };
  if (of.what == form::alltoall)
    return [in, count = static_cast<int>(of.sends.front().count)] {
      check_native(MPI_Alltoall(in.send, count, MPI_UINT32_T, in.receive, count, MPI_UINT32_T, MPI_COMM_WORLD),
                   "MPI_Alltoall");
    };
  const layout send(of.sends), receive(of.receives);
  return [in, sent = as_ints(send.counts), from = as_ints(send.displs), received = as_ints(receive.counts),
          to = as_ints(receive.displs)] {
    check_native(MPI_Alltoallv(in.send, sent.data(), from.data(), MPI_UINT32_T, in.receive, received.data(),
                               to.data(), MPI_UINT32_T, MPI_COMM_WORLD),
                 "MPI_Alltoallv");
  };
}

}  // namespace

way over_isthmus(const plan& of, const place& where, buffers in, isthmus_communicator ranks, bool apart) {
  const auto send = std::make_shared<layout>(of.sends), receive = std::make_shared<layout>(of.receives);
  const char* const provider = apart ? "isthmus a call each" : "isthmus";
  const char* const mode = where.is_host() ? "host" : "stream";
  way made{provider, backend_of(of, ranks, *send, *receive), mode, {}, {}};
  made.run = [&of, &where, in, ranks, apart, send, receive] {
    void* const stream = where.stream();
    if (of.what == form::messages)
      send_and_receive(of, in, ranks, stream, apart);
    else if (of.what == form::alltoall)
      check(isthmus_alltoall(in.send, in.receive, of.sends.front().count, ISTHMUS_UINT32, ranks, stream));
    else
      check(isthmus_alltoallv(in.send, send->counts.data(), send->displs.data(), in.receive,
                              receive->counts.data(), receive->displs.data(), ISTHMUS_UINT32, ranks, stream));
    where.wait();
  };
  return made;
}

way over_nccl(const plan& of, const place& where, buffers in, const isthmus::nccl_family::native_functions& native,
              isthmus::nccl_family::native_comm ranks) {
  const auto run = [&of, &where, in, &native, ranks] {
    constexpr int uint32 = isthmus::nccl_family::native_uint32;
    check_native(native.group_start(), "NCCL");
    for (std::size_t i = 0; i < of.sends.size(); ++i) {
      const piece &send = of.sends[i], &receive = of.receives[i];
      check_native(native.send(at(in.send, send), send.count, uint32, send.peer, ranks, where.stream()),
                   "NCCL");
      check_native(
          native.recv(at(in.receive, receive), receive.count, uint32, receive.peer, ranks, where.stream()),
          "NCCL");
    }
    check_native(native.group_end(), "NCCL");
    where.wait();
  };
  return {"nccl", "", "stream", run, {}};
}

way over_mpi(const plan& of, const place& where, buffers in, const buffers* staged) {
  const char* const mode = where.is_host() ? "host" : staged != nullptr ? "staged" : "gpu_aware";
  way made{mpi_family(), "", mode, {}, {}};
  if (staged == nullptr) {
    made.run = mpi_call(of, in);
    return made;
  }
  made.run = [&of, &where, in, copies = *staged, call = mpi_call(of, *staged)] {
    where.copy(copies.send, in.send, of.send_words * sizeof(word));
    where.wait();
    call();
    // Back goes what came, piece by piece: what lies between is not the exchange's.
    for (const piece& each : of.receives)
      where.copy(at(in.receive, each), at(copies.receive, each), each.count * sizeof(word));
    where.wait();
  };
  return made;
}

bool mpi_reads_devices() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

const char* mpi_family() {
  static const std::string_view library = isthmus::mpi::detail::library();
  if (library.find("Open MPI") != std::string_view::npos) return "openmpi";
  return library.find("Intel") != std::string_view::npos ? "impi" : "mpich";
}

}  // namespace patterns
