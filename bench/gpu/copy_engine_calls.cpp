#include "copy_engine_calls.hpp"

#include <isthmus/memory.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "inputs.hpp"
#include "rules_file.hpp"

namespace copy_bench {

std::string call_shape::name() const {
  return std::string(isthmus_collective_name(collective)) + (in_place ? " in place" : "");
}

std::uint64_t call_shape::block(int size) const {
  const bool is_full_buffer = collective != ISTHMUS_ALLTOALL && !reduces();
  return is_full_buffer ? bytes : bytes / static_cast<std::uint64_t>(size) / sizeof(float) * sizeof(float);
}

std::uint64_t call_shape::output(int size) const {
  if (reduces()) return block(size);
  return collective == ISTHMUS_ALLGATHER ? bytes * static_cast<std::uint64_t>(size) : bytes;
}

double call_shape::bytes_in(int size) const {
  const auto block_bytes = static_cast<double>(block(size));
  return collective == ISTHMUS_BROADCAST ? block_bytes : block_bytes * (size - 1);
}

struct device_ranks::nccl_functions : gpu_bench::nccl_library {
  decltype(&ncclGetUniqueId) unique_id = symbol<decltype(&ncclGetUniqueId)>("ncclGetUniqueId");
  decltype(&ncclCommInitRankConfig) init = symbol<decltype(&ncclCommInitRankConfig)>("ncclCommInitRankConfig");
  decltype(&ncclAllGather) all_gather = symbol<decltype(&ncclAllGather)>("ncclAllGather");
  decltype(&ncclAlltoAll) all_to_all = symbol<decltype(&ncclAlltoAll)>("ncclAlltoAll");
  decltype(&ncclReduceScatter) reduce_scatter = symbol<decltype(&ncclReduceScatter)>("ncclReduceScatter");
  decltype(&ncclBroadcast) broadcast = symbol<decltype(&ncclBroadcast)>("ncclBroadcast");
  decltype(&ncclMemAlloc) mem_alloc = symbol<decltype(&ncclMemAlloc)>("ncclMemAlloc");
  decltype(&ncclGetVersion) get_version = symbol<decltype(&ncclGetVersion)>("ncclGetVersion");
  decltype(&ncclCommWindowRegister) window_register =
      symbol<decltype(&ncclCommWindowRegister)>("ncclCommWindowRegister");
};

device_ranks::device_ranks(int size, std::uint64_t largest, const std::vector<algorithm_variant>& variants)
    : m_size(size), m_largest(largest), m_threads(size), m_nccl(std::make_shared<nccl_functions>()) {
  add_nccl();
  for (const char* algorithm : {"zero_copy", "push", "staged"}) add_isthmus({algorithm, ""});
  for (const algorithm_variant& entry : variants) add_isthmus(entry);
}

int device_ranks::nccl_version() {
  int version = 0;
  check(m_nccl->get_version(&version));
  return version;
}

void device_ranks::each(const std::function<void(int)>& work) {
  m_threads.each([&](const bench::team& thread) {
    check(cudaSetDevice(thread.rank()));
    work(thread.rank());
  });
}

// ---- NCCL ---------------------------------------------------------------------------------------------

void device_ranks::call_nccl(ncclComm_t communicator, const rank_buffers& buffers, const call_shape& shape,
                             int rank, cudaStream_t stream) {
  const std::uint64_t block = shape.block(m_size);
  const std::byte* send =
      shape.in_place ? buffers.recv + static_cast<std::uint64_t>(rank) * block : buffers.send;
  switch (shape.collective) {
    case ISTHMUS_ALLGATHER:
      return check(m_nccl->all_gather(send, buffers.recv, block, ncclInt8, communicator, stream));
    case ISTHMUS_ALLTOALL:
      return check(m_nccl->all_to_all(send, buffers.recv, block, ncclInt8, communicator, stream));
    case ISTHMUS_REDUCE_SCATTER:
      return check(m_nccl->reduce_scatter(send, buffers.recv, block / sizeof(float), ncclFloat32, ncclSum,
                                          communicator, stream));
    default: return check(m_nccl->broadcast(send, buffers.recv, block, ncclInt8, 0, communicator, stream));
  }
}

// Both communicators use the same buffers, which are registered as windows of the copy-engine communicator
// only. It uses copy engines if it can (allgather, alltoall) and otherwise silently falls back to kernels.
void device_ranks::add_nccl() {
  ncclUniqueId plain_id, zero_id;
  check(m_nccl->unique_id(&plain_id));
  check(m_nccl->unique_id(&zero_id));
  m_plain.resize(static_cast<std::size_t>(m_size));
  m_zero.resize(static_cast<std::size_t>(m_size));
  std::vector<rank_buffers> buffers(static_cast<std::size_t>(m_size));
  each([&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    ncclConfig_t plain = NCCL_CONFIG_INITIALIZER, zero = NCCL_CONFIG_INITIALIZER;
    zero.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    check(m_nccl->init(&m_plain[own], m_size, plain_id, rank, &plain));
    check(m_nccl->init(&m_zero[own], m_size, zero_id, rank, &zero));
    const std::uint64_t recv_bytes = m_largest * static_cast<std::uint64_t>(m_size);
    check(m_nccl->mem_alloc(reinterpret_cast<void**>(&buffers[own].send), m_largest));
    check(m_nccl->mem_alloc(reinterpret_cast<void**>(&buffers[own].recv), recv_bytes));
    ncclWindow_t windows[2];
    check(m_nccl->window_register(m_zero[own], buffers[own].send, m_largest, &windows[0],
                                  NCCL_WIN_COLL_SYMMETRIC));
    check(m_nccl->window_register(m_zero[own], buffers[own].recv, recv_bytes, &windows[1],
                                  NCCL_WIN_COLL_SYMMETRIC));
    gpu_bench::fill_repeated(buffers[own].send, m_largest, rank);
  });
  const auto call_by = [this, buffers](const std::vector<ncclComm_t>& communicators) {
    return [this, buffers, &communicators](const call_shape& shape, int rank, cudaStream_t stream) {
      const auto own = static_cast<std::size_t>(rank);
      call_nccl(communicators[own], buffers[own], shape, rank, stream);
    };
  };
  m_providers.push_back({"nccl", "nccl", call_by(m_plain), buffers, ""});
  m_providers.push_back({"nccl_copy_engine", "nccl", call_by(m_zero), buffers, ""});
}

// ---- Isthmus ------------------------------------------------------------------------------------------

std::vector<isthmus_communicator> communicators(int first, int size, const std::string& use,
                                                const std::string& options) {
  const gpu_bench::rules_file file("[[rule]]\nuse = \"" + use + "\"\n[backend.copy_engine]\n" + options + '\n');
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < size; ++rank) devices.push_back({ISTHMUS_PLATFORM_CUDA, first + rank});
  isthmus_communicator_options communicator_options{};
  communicator_options.struct_bytes = sizeof communicator_options;
  communicator_options.config_path = file.path();
  communicator_options.timeout_s = 60;
  std::vector<isthmus_communicator> handles(static_cast<std::size_t>(size));
  check(isthmus_communicator_create_all(size, devices.data(), &communicator_options, handles.data()));
  return handles;
}

// Algorithms that do not need the heap use the buffers of NCCL.
void device_ranks::add_isthmus(const algorithm_variant& variant) {
  const std::string use = "copy_engine:" + variant.algorithm;
  const bool is_in_heap = variant.algorithm != "staged";
  const std::vector<isthmus_communicator> handles = communicators(0, m_size, use, variant.options);
  std::vector<rank_buffers> buffers = m_providers.front().buffers;
  each([&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    if (!is_in_heap) return;
    void *send = nullptr, *recv = nullptr;
    check(isthmus_memory_allocate_symmetric(handles[own], m_largest, &send));
    check(
        isthmus_memory_allocate_symmetric(handles[own], m_largest * static_cast<std::uint64_t>(m_size), &recv));
    buffers[own] = {static_cast<std::byte*>(send), static_cast<std::byte*>(recv)};
    gpu_bench::fill_repeated(buffers[own].send, m_largest, rank);
  });
  m_communicators.push_back(handles);
  const auto call = [this, handles, buffers](const call_shape& shape, int rank, cudaStream_t stream) {
    const auto own = static_cast<std::size_t>(rank);
    isthmus_operation operation{};
    operation.collective = shape.collective;
    operation.datatype = shape.reduces() ? ISTHMUS_FLOAT32 : ISTHMUS_UINT8;
    operation.op = ISTHMUS_SUM;
    operation.count = shape.block(m_size) / (shape.reduces() ? sizeof(float) : 1);
    operation.recv_buf = buffers[own].recv;
    operation.send_buf = shape.in_place ? buffers[own].recv + static_cast<std::uint64_t>(rank) * operation.count
                                        : buffers[own].send;
    operation.stream = stream;
    check(isthmus_enqueue(handles[own], &operation));
  };
  m_providers.push_back({"isthmus", use, call, buffers, variant.options});
}

// ---- verification ---------------------------------------------------------------------------------------

std::uint64_t device_ranks::count_wrong_sums(const call_provider& provider, const call_shape& shape, int rank,
                                             std::uint64_t first, std::uint64_t bytes) const {
  const std::uint64_t offset = static_cast<std::uint64_t>(rank) * shape.block(m_size) + first;
  std::vector<float> actual(bytes / sizeof(float)), sent(actual.size());
  std::vector<double> sums(actual.size()), sizes(actual.size());
  for (const rank_buffers& source : provider.buffers) {
    check(cudaMemcpy(sent.data(), source.send + offset, bytes, cudaMemcpyDefault));
    for (std::size_t i = 0; i < sent.size(); ++i) sums[i] += sent[i], sizes[i] += std::fabs(sent[i]);
  }
  check(cudaMemcpy(actual.data(), provider.buffers[static_cast<std::size_t>(rank)].recv + first, bytes,
                   cudaMemcpyDefault));
  std::uint64_t wrong = 0;
  const double step = std::ldexp(1.0, -24) * m_size;  // size - 1 additions and the final rounding
  for (std::size_t i = 0; i < actual.size(); ++i) wrong += !(std::fabs(actual[i] - sums[i]) <= step * sizes[i]);
  return wrong;
}

std::uint64_t device_ranks::count_wrong(const call_provider& provider, const call_shape& shape, int rank,
                                        cudaStream_t stream) {
  const auto size = static_cast<std::uint64_t>(m_size), own = static_cast<std::uint64_t>(rank);
  const std::uint64_t block = shape.block(m_size);
  const rank_buffers& own_buffers = provider.buffers[own];
  check(cudaMemsetAsync(own_buffers.recv, 0xa5, shape.output(m_size), stream));
  if (shape.in_place)
    check(cudaMemcpyAsync(own_buffers.recv + own * block, own_buffers.send, block, cudaMemcpyDefault, stream));
  check(cudaStreamSynchronize(stream));
  sync_ranks(rank);  // peers that push write into this buffer
  provider.enqueue(shape, rank, stream);
  check(cudaStreamSynchronize(stream));
  const std::uint64_t part = std::min<std::uint64_t>(block, 256 << 10) / 4 * 4;
  std::vector<std::byte> actual(part), sent(part);
  std::uint64_t wrong = 0;
  if (shape.reduces())
    return count_wrong_sums(provider, shape, rank, 0, part) +
           count_wrong_sums(provider, shape, rank, block - part, part);
  for (std::uint64_t source = 0; source < (shape.collective == ISTHMUS_BROADCAST ? 1 : size); ++source)
    for (const std::uint64_t first : {std::uint64_t{0}, block - part}) {
      const std::uint64_t offset = shape.collective == ISTHMUS_ALLTOALL ? own * block : 0;
      check(cudaMemcpy(actual.data(), own_buffers.recv + source * block + first, part, cudaMemcpyDefault));
      check(cudaMemcpy(sent.data(), provider.buffers[source].send + offset + first, part, cudaMemcpyDefault));
      for (std::uint64_t i = 0; i < part; i += 4) wrong += std::memcmp(&actual[i], &sent[i], 4) != 0;
    }
  return wrong;
}

}  // namespace copy_bench
