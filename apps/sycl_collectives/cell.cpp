#include "cell.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "oracle/check.hpp"

namespace sycl_collectives {

arena::arena(const sycl::queue& queue, std::uint64_t send_elements, std::uint64_t recv_elements)
    : queue(queue),
      usm_send(sycl::malloc_device<float>(std::max<std::uint64_t>(1, send_elements), queue)),
      usm_recv(sycl::malloc_device<float>(std::max<std::uint64_t>(1, recv_elements), queue)),
      host_send(new float[std::max<std::uint64_t>(1, send_elements)]),
      host_recv(new float[std::max<std::uint64_t>(1, recv_elements)]) {}

arena::~arena() {
  sycl::free(usm_send, queue);
  sycl::free(usm_recv, queue);
}

namespace {

float_buffer make_buffer(std::uint64_t elements) {
  return float_buffer(sycl::range<1>(std::max<std::uint64_t>(1, elements)));
}

oracle::input_spec inputs_of(std::uint32_t call) {
  return {ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, call};
}

void fill_on_host(float* data, std::uint64_t count, std::uint32_t call, int rank) {
  oracle::fill(inputs_of(call), rank, 0, std::as_writable_bytes(std::span(data, count)));
}

}  // namespace

test_cell::test_cell(const call_shape& shape, arena& memory, const job_kernels& kernels,
                     const isthmus::communicator& ranks, MPI_Comm comm)
    : m_shape(shape),
      m_memory(memory),
      m_kernels(kernels),
      m_ranks(ranks),
      m_comm(comm),
      m_send_buffer(make_buffer(shape.send_elements)),
      m_recv_buffer(make_buffer(shape.recv_elements)) {}

template <typename Data>
void test_cell::prepare_on_device(Data& send, Data& recv, std::uint32_t call) {
  const std::uint32_t key = oracle::stream_key(call, m_shape.rank);
  m_kernels.fill(m_memory.queue, send, m_shape.send_elements, key);
  if (m_shape.in_place && m_shape.rank == m_shape.root) {
    m_kernels.fill(m_memory.queue, recv, m_shape.recv_elements, key);
  } else {
    m_kernels.poison(m_memory.queue, recv, m_shape.recv_elements);
  }
  m_memory.queue.wait();
}

void test_cell::prepare_on_host(std::uint32_t call) {
  fill_on_host(m_memory.host_send.get(), m_shape.send_elements, call, m_shape.rank);
  if (m_shape.in_place && m_shape.rank == m_shape.root) {
    fill_on_host(m_memory.host_recv.get(), m_shape.recv_elements, call, m_shape.rank);
  } else {
    std::fill_n(m_memory.host_recv.get(), m_shape.recv_elements, std::bit_cast<float>(poison_bits));
  }
}

void test_cell::prepare(call_path path, std::uint32_t call) {
  switch (path) {
    case call_path::isthmus_usm:
    case call_path::isthmus_host_usm: return prepare_on_device(m_memory.usm_send, m_memory.usm_recv, call);
    case call_path::isthmus_buffer:
    case call_path::listing1: return prepare_on_device(m_send_buffer, m_recv_buffer, call);
    case call_path::isthmus_host:
    case call_path::mpi_host: return prepare_on_host(call);
  }
}

void test_cell::run(call_path path) {
  switch (path) {
    case call_path::isthmus_usm:
      call_isthmus(m_ranks, m_memory.queue, m_shape, m_memory.usm_send, m_memory.usm_recv).wait();
      return;
    case call_path::isthmus_host_usm:
      return call_core(m_ranks.native(), m_shape, m_memory.usm_send, m_memory.usm_recv);
    case call_path::isthmus_buffer:
      call_isthmus(m_ranks, m_memory.queue, m_shape, m_send_buffer, m_recv_buffer).wait();
      return;
    case call_path::isthmus_host:
      return call_core(m_ranks.native(), m_shape, m_memory.host_send.get(), m_memory.host_recv.get());
    case call_path::listing1: return call_listing1(m_comm, m_shape, m_send_buffer, m_recv_buffer);
    case call_path::mpi_host:
      return call_mpi(m_comm, m_shape, m_memory.host_send.get(), m_memory.host_recv.get());
  }
}

std::vector<float> test_cell::consume(call_path path) {
  std::vector<float> result(m_shape.recv_elements);
  switch (path) {
    case call_path::isthmus_usm:
    case call_path::isthmus_host_usm:
      m_kernels.consume(m_memory.queue, m_memory.usm_recv, result.size()).wait();
      m_memory.queue.memcpy(result.data(), m_memory.usm_recv, result.size() * sizeof(float)).wait();
      break;
    case call_path::isthmus_buffer:
    case call_path::listing1: {
      m_kernels.consume(m_memory.queue, m_recv_buffer, result.size()).wait();
      const sycl::host_accessor consumed(m_recv_buffer, sycl::read_only);
      std::copy_n(&consumed[0], result.size(), result.begin());
      break;
    }
    case call_path::isthmus_host:
    case call_path::mpi_host:
      std::transform(m_memory.host_recv.get(), m_memory.host_recv.get() + result.size(), result.begin(),
                     consumed);
  }
  return result;
}

std::uint64_t test_cell::verify(call_path path, std::uint32_t call) {
  if (m_shape.recv_elements == 0) return 0;
  std::vector<float> result = consume(path);
  for (float& element : result) element = received(element);
  return oracle::count_errors({inputs_of(call), m_shape.definition, m_shape.rank},
                              std::as_bytes(std::span(result)).data());
}

}  // namespace sycl_collectives
