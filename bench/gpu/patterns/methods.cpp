#include "methods.hpp"

#include <memory>

#include "harness/explain.hpp"
#include "harness/mpi_library.hpp"

namespace patterns {
namespace {

using bench::check_mpi;
using bench::check_nccl;
using isthmus::detail::check;

std::byte* address_of(std::byte* buffer, const segment& each) { return buffer + each.offset * sizeof(word); }

// Counts and displacements of one side of a collective.
struct layout {
  std::vector<std::uint64_t> counts, displs;
  explicit layout(const std::vector<segment>& segments) {
    for (const segment& each : segments) {
      counts.push_back(each.count);
      displs.push_back(each.offset);
    }
  }
};

// The backend that Isthmus selects for the exchange.
std::string backend_of(const exchange_plan& plan, isthmus_communicator ranks, const layout& send,
                       const layout& receive) {
  isthmus_operation operation{};
  operation.collective = plan.form == exchange_form::messages   ? ISTHMUS_SEND
                         : plan.form == exchange_form::alltoall ? ISTHMUS_ALLTOALL
                                                                : ISTHMUS_ALLTOALLV;
  operation.datatype = ISTHMUS_UINT32;
  operation.root = plan.form == exchange_form::messages ? plan.sends.front().peer : 0;
  operation.count = plan.form == exchange_form::alltoallv ? 0 : plan.sends.front().count;
  if (plan.form == exchange_form::alltoallv) {
    operation.send_counts = send.counts.data();
    operation.send_displs = send.displs.data();
    operation.recv_counts = receive.counts.data();
    operation.recv_displs = receive.displs.data();
  }
  return bench::selected_backend(ranks, operation);
}

void send_and_receive(const exchange_plan& plan, buffers in, isthmus_communicator ranks, void* stream,
                      bool is_ungrouped) {
  if (!is_ungrouped) check(isthmus_group_start());
  for (std::size_t i = 0; i < plan.sends.size(); ++i) {
    const segment &send = plan.sends[i], &receive = plan.receives[i];
    if (is_ungrouped) check(isthmus_group_start());
    check(isthmus_send(address_of(in.send, send), send.count, ISTHMUS_UINT32, send.peer, ranks, stream));
    check(isthmus_recv(address_of(in.receive, receive), receive.count, ISTHMUS_UINT32, receive.peer, ranks,
                       stream));
    if (is_ungrouped) check(isthmus_group_end());
  }
  if (!is_ungrouped) check(isthmus_group_end());
}

std::vector<int> as_ints(const std::vector<std::uint64_t>& values) { return {values.begin(), values.end()}; }

void exchange_by_mpi(const exchange_plan& plan, buffers in, std::vector<MPI_Request>& requests) {
  requests.clear();
  for (const segment& each : plan.receives)
    check_mpi(MPI_Irecv(address_of(in.receive, each), static_cast<int>(each.count), MPI_UINT32_T, each.peer, 0,
                        MPI_COMM_WORLD, &requests.emplace_back()));
  for (const segment& each : plan.sends)
    check_mpi(MPI_Isend(address_of(in.send, each), static_cast<int>(each.count), MPI_UINT32_T, each.peer, 0,
                        MPI_COMM_WORLD, &requests.emplace_back()));
  check_mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

std::function<void()> mpi_call(const exchange_plan& plan, buffers in) {
  if (plan.form == exchange_form::messages)
    return
        [&plan, in, requests = std::vector<MPI_Request>()]() mutable { exchange_by_mpi(plan, in, requests); };
  if (plan.form == exchange_form::alltoall)
    return [in, count = static_cast<int>(plan.sends.front().count)] {
      check_mpi(MPI_Alltoall(in.send, count, MPI_UINT32_T, in.receive, count, MPI_UINT32_T, MPI_COMM_WORLD));
    };
  const layout send(plan.sends), receive(plan.receives);
  return [in, sent = as_ints(send.counts), from = as_ints(send.displs), received = as_ints(receive.counts),
          to = as_ints(receive.displs)] {
    check_mpi(MPI_Alltoallv(in.send, sent.data(), from.data(), MPI_UINT32_T, in.receive, received.data(),
                            to.data(), MPI_UINT32_T, MPI_COMM_WORLD));
  };
}

}  // namespace

bench::method make_isthmus_method(const exchange_plan& plan, const memory_place& place, buffers in,
                                  isthmus_communicator ranks, bool is_ungrouped) {
  const auto send = std::make_shared<layout>(plan.sends), receive = std::make_shared<layout>(plan.receives);
  const char* const provider = is_ungrouped ? "isthmus_ungrouped" : "isthmus";
  const char* const mode = place.is_host() ? "host" : "stream";
  bench::method result{provider, backend_of(plan, ranks, *send, *receive), mode, {}, {}};
  result.run = [&plan, &place, in, ranks, is_ungrouped, send, receive] {
    void* const stream = place.stream();
    if (plan.form == exchange_form::messages)
      send_and_receive(plan, in, ranks, stream, is_ungrouped);
    else if (plan.form == exchange_form::alltoall)
      check(isthmus_alltoall(in.send, in.receive, plan.sends.front().count, ISTHMUS_UINT32, ranks, stream));
    else
      check(isthmus_alltoallv(in.send, send->counts.data(), send->displs.data(), in.receive,
                              receive->counts.data(), receive->displs.data(), ISTHMUS_UINT32, ranks, stream));
    place.wait();
  };
  return result;
}

bench::method make_nccl_method(const exchange_plan& plan, const memory_place& place, buffers in,
                               const bench::nccl_functions& nccl, bench::nccl_comm ranks) {
  const auto run = [&plan, &place, in, &nccl, ranks] {
    constexpr int uint32 = bench::nccl::native_uint32;
    check_nccl(nccl.group_start());
    for (std::size_t i = 0; i < plan.sends.size(); ++i) {
      const segment &send = plan.sends[i], &receive = plan.receives[i];
      check_nccl(nccl.send(address_of(in.send, send), send.count, uint32, send.peer, ranks, place.stream()));
      check_nccl(nccl.recv(address_of(in.receive, receive), receive.count, uint32, receive.peer, ranks,
                           place.stream()));
    }
    check_nccl(nccl.group_end());
    place.wait();
  };
  return {"nccl", "", "stream", run, {}};
}

bench::method make_mpi_method(const exchange_plan& plan, const memory_place& place, buffers in,
                              const buffers* staged) {
  const char* const mode = place.is_host() ? "host" : staged != nullptr ? "staged" : "gpu_aware";
  bench::method result{bench::mpi_family(), "", mode, {}, {}};
  if (staged == nullptr) {
    result.run = mpi_call(plan, in);
    return result;
  }
  result.run = [&plan, &place, in, copies = *staged, call = mpi_call(plan, *staged)] {
    place.copy(copies.send, in.send, plan.send_words * sizeof(word));
    place.wait();
    call();
    // Copies the received pieces back one by one, because the gaps must stay untouched.
    for (const segment& each : plan.receives)
      place.copy(address_of(in.receive, each), address_of(copies.receive, each), each.count * sizeof(word));
    place.wait();
  };
  return result;
}

}  // namespace patterns
