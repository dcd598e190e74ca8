#include "transport.hpp"

#include <climits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/harness/clock.hpp"
#include "common/mpi_family.hpp"

namespace apps {

namespace {

// MPI counts are int.
int mpi_count(std::uint64_t bytes) {
  if (bytes <= INT_MAX) return static_cast<int>(bytes);
  throw std::runtime_error("mpi transport: a message has " + std::to_string(bytes) +
                           " bytes, must be at most 2147483647 for plain MPI; use more ranks or a smaller "
                           "--size");
}

// Calls `call` with the operands of the front end: buffers or pointers.
template <typename Call>
sycl::event with_operands(const memory_block& send, const memory_block& recv, Call&& call) {
  if (send.buffer) return call(*send.buffer, *recv.buffer);
  return call(static_cast<unsigned char*>(send.usm.get()), static_cast<unsigned char*>(recv.usm.get()));
}

auto from_offset(const byte_buffer& buffer, std::uint64_t offset) { return isthmus::at_offset(buffer, offset); }
unsigned char* from_offset(unsigned char* pointer, std::uint64_t offset) { return pointer + offset; }

// Counts and displacements of every rank.
struct block_lists {
  block_lists(const std::vector<message>& messages, int size)
      : counts(static_cast<std::size_t>(size)), displs(static_cast<std::size_t>(size)) {
    for (const message& entry : messages) {
      counts[static_cast<std::size_t>(entry.peer)] = entry.bytes;
      displs[static_cast<std::size_t>(entry.peer)] = entry.offset;
    }
  }
  std::vector<std::uint64_t> counts, displs;
};
std::vector<int> mpi_counts(const std::vector<std::uint64_t>& values) {
  std::vector<int> result;
  for (const std::uint64_t value : values) result.push_back(mpi_count(value));
  return result;
}

std::optional<isthmus::communicator> make_communicator_for(transport_kind kind, MPI_Comm comm,
                                                           const sycl::queue& queue,
                                                           const transport_options& options) {
  if (kind == transport_kind::mpi) return std::nullopt;
  const bool tasks = kind == transport_kind::isthmus_usm_task && queue.get_device().is_cpu();
  return isthmus::make_communicator(
      comm, queue.get_device(),
      {.config = options.config,
       .timeout_s = options.timeout_s,
       .host = tasks ? isthmus::host_execution::host_task : isthmus::host_execution::calling_thread});
}

}  // namespace

const std::vector<std::string>& transport_names() {
  static const std::vector<std::string> names = {"mpi", "isthmus", "isthmus-usm", "isthmus-usm-task"};
  return names;
}

// The scope of one exchange; measures its time while profiling.
class transport::timed_scope {
 public:
  explicit timed_scope(transport& owner) : m_owner(owner) {
    if (!owner.m_profiled) return;
    owner.m_profiled->wait();
    MPI_Barrier(owner.m_comm);  // waiting for a late rank is not communication
    m_start = bench::steady_ns();
  }
  sycl::event end(sycl::event completion) const {
    if (m_owner.m_profiled) {
      completion.wait();
      m_owner.m_profiled_s += static_cast<double>(bench::steady_ns() - m_start) / 1e9;
    }
    return completion;
  }

 private:
  transport& m_owner;
  std::uint64_t m_start = 0;
};

transport::transport(transport_kind kind, MPI_Comm comm, const sycl::queue& queue,
                     const transport_options& options)
    : transport(kind, comm, queue, options, make_communicator_for(kind, comm, queue, options)) {}

transport::transport(transport_kind kind, MPI_Comm comm, const sycl::queue& queue,
                     const transport_options& options, std::optional<isthmus::communicator> ranks)
    : m_kind(kind),
      m_comm(comm),
      m_queue(queue.get_context(), queue.get_device(), sycl::property::queue::in_order{}),
      m_options(options) {
  if (ranks) m_ranks = std::make_shared<isthmus::communicator>(std::move(*ranks));
  MPI_Comm_rank(comm, &m_rank);
  MPI_Comm_size(comm, &m_size);
}

transport transport::split(int color, int key) const {
  MPI_Comm subcommunicator = MPI_COMM_NULL;
  MPI_Comm_split(m_comm, color, key, &subcommunicator);
  transport result(m_kind, subcommunicator, m_queue, m_options,
                   m_ranks ? m_ranks->split(color, key) : std::optional<isthmus::communicator>());
  result.m_owned_comm.reset(new MPI_Comm(subcommunicator), [](MPI_Comm* comm) {
    MPI_Comm_free(comm);
    delete comm;
  });
  return result;
}

std::string transport::backend(std::uint64_t bytes) const {
  if (!m_ranks) return mpi_family();
  const auto explanation = nlohmann::json::parse(m_ranks->explain(ISTHMUS_ALLTOALL, bytes / sizeof(float)));
  const std::string algorithm = explanation.at("selection").value("algorithm", "");
  return explanation.at("selection").value("backend", "") + (algorithm.empty() ? "" : ":" + algorithm);
}

memory_block transport::make_symmetric(std::uint64_t bytes) const {
  auto* const pointer =
      isthmus::memory::allocate_symmetric<unsigned char>(*m_ranks, std::max<std::uint64_t>(1, bytes));
  const auto free = [ranks = m_ranks](void* old) { isthmus::memory::free_symmetric(*ranks, old); };
  return {bytes, std::nullopt, std::shared_ptr<void>(pointer, free)};
}

sycl::event transport::alltoall(const memory_block& send, const memory_block& recv, std::uint64_t bytes,
                                const events& wait_events) {
  const timed_scope timed(*this);
  if (m_ranks) {
    return timed.end(with_operands(send, recv, [&](auto&& source, auto&& destination) {
      return m_ranks->alltoall(m_queue, source, destination, bytes, wait_events);
    }));
  }
  const int count = mpi_count(bytes);
  byte_buffer send_buffer = *send.buffer, recv_buffer = *recv.buffer;
  const sycl::host_accessor source(send_buffer), destination(recv_buffer);
  MPI_Alltoall(&source[0], count, MPI_BYTE, &destination[0], count, MPI_BYTE, m_comm);
  return timed.end({});
}

sycl::event transport::alltoallv(const memory_block& send, const std::vector<message>& out,
                                 const memory_block& recv, const std::vector<message>& in,
                                 const events& wait_events) {
  const timed_scope timed(*this);
  const block_lists outgoing(out, m_size), incoming(in, m_size);
  if (m_ranks) {
    return timed.end(with_operands(send, recv, [&](auto&& source, auto&& destination) {
      return m_ranks->alltoallv(m_queue, source, outgoing.counts, outgoing.displs, destination, incoming.counts,
                                incoming.displs, wait_events);
    }));
  }
  byte_buffer send_buffer = *send.buffer, recv_buffer = *recv.buffer;
  const sycl::host_accessor source(send_buffer), destination(recv_buffer);
  MPI_Alltoallv(&source[0], mpi_counts(outgoing.counts).data(), mpi_counts(outgoing.displs).data(), MPI_BYTE,
                &destination[0], mpi_counts(incoming.counts).data(), mpi_counts(incoming.displs).data(),
                MPI_BYTE, m_comm);
  return timed.end({});
}

sycl::event transport::exchange(const memory_block& send, const std::vector<message>& out,
                                const memory_block& recv, const std::vector<message>& in,
                                const events& wait_events) {
  const timed_scope timed(*this);
  if (m_ranks) {
    return timed.end(with_operands(send, recv, [&](auto&& source, auto&& destination) {
      isthmus::group group;
      for (const message& entry : out)
        m_ranks->send(m_queue, from_offset(source, entry.offset), entry.bytes, entry.peer, wait_events);
      for (const message& entry : in)
        m_ranks->recv(m_queue, from_offset(destination, entry.offset), entry.bytes, entry.peer, wait_events);
      const events completion = group.end();
      return completion.empty() ? sycl::event() : completion.back();  // a single rank has no messages
    }));
  }
  byte_buffer send_buffer = *send.buffer, recv_buffer = *recv.buffer;
  const sycl::host_accessor source(send_buffer), destination(recv_buffer);
  std::vector<MPI_Request> requests;
  for (const message& entry : in)
    MPI_Irecv(&destination[entry.offset], mpi_count(entry.bytes), MPI_BYTE, entry.peer, 0, m_comm,
              &requests.emplace_back());
  for (const message& entry : out)
    MPI_Isend(&source[entry.offset], mpi_count(entry.bytes), MPI_BYTE, entry.peer, 0, m_comm,
              &requests.emplace_back());
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  return timed.end({});
}

sycl::event transport::allreduce(const array<double>& data, const events& wait_events) {
  const timed_scope timed(*this);
  const memory_block& block = data.block();
  if (m_ranks) {
    return timed.end(with_operands(block, block, [&](auto&&, auto&& data_operand) {
      return m_ranks->allreduce(m_queue, isthmus::as_datatype(isthmus::datatype::float64, data_operand),
                                data.size(), isthmus::reduction_op::sum, wait_events);
    }));
  }
  byte_buffer both = *block.buffer;
  const sycl::host_accessor elements(both);
  MPI_Allreduce(MPI_IN_PLACE, &elements[0], static_cast<int>(data.size()), MPI_DOUBLE, MPI_SUM, m_comm);
  return timed.end({});
}

double transport::end_profile() {
  m_profiled.reset();
  return std::exchange(m_profiled_s, 0);
}

}  // namespace apps
