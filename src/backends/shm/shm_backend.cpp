#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <new>
#include <span>

#include "backends/shm/algorithms.hpp"
#include "backends/shm/channel.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus::shm {
namespace {

enum class shm_algorithm {
  packet,
  two_shot_packet,
  grid_packet,
  one_shot,
  two_shot,
  zero_copy,
  divided,
  channel
};

// Store mode for memory that other ranks read. adaptive: chosen at run time by store_chooser.
enum class store_policy { cached, streaming, adaptive };

struct algorithm_choice {
  shm_algorithm algorithm;
  store_policy policy;
  staging_layout layout = staging_layout::shared;
  slice_reducers reducers = slice_reducers::all;
};

// In the same order as choices.
constexpr const char* algorithm_names[] = {"packet",
                                           "two_shot_packet",
                                           "grid_packet",
                                           "one_shot",
                                           "one_shot_streamed",
                                           "one_shot_adaptive",
                                           "one_shot_per_reader",
                                           "two_shot",
                                           "two_shot_streamed",
                                           "two_shot_adaptive",
                                           "two_shot_gather",
                                           "zero_copy",
                                           "zero_copy_streamed",
                                           "divided",
                                           "channel",
                                           nullptr};
constexpr algorithm_choice choices[] = {
    {shm_algorithm::packet, store_policy::cached},
    {shm_algorithm::two_shot_packet, store_policy::cached},
    {shm_algorithm::grid_packet, store_policy::cached},
    {shm_algorithm::one_shot, store_policy::cached},
    {shm_algorithm::one_shot, store_policy::streaming},
    {shm_algorithm::one_shot, store_policy::adaptive},
    {shm_algorithm::one_shot, store_policy::cached, staging_layout::per_reader},
    {shm_algorithm::two_shot, store_policy::cached},
    {shm_algorithm::two_shot, store_policy::streaming},
    {shm_algorithm::two_shot, store_policy::adaptive},
    {shm_algorithm::two_shot, store_policy::cached, staging_layout::shared, slice_reducers::all_but_root},
    {shm_algorithm::zero_copy, store_policy::cached},
    {shm_algorithm::zero_copy, store_policy::streaming},
    {shm_algorithm::divided, store_policy::adaptive},
    {shm_algorithm::channel, store_policy::cached}};
static_assert(std::size(algorithm_names) == std::size(choices) + 1);

bool supports_two_shot(isthmus_collective collective) {
  const collective_row& row = row_of(collective);
  return row.is_reduction && row.send_extent == extent::count;
}

bool is_per_destination(isthmus_collective collective) {
  return row_of(collective).send_extent != extent::count;
}

// State of one rank of one communicator.
class shm_state {
 public:
  shm_state(const isthmus_backend_context& context, segment_connection connected)
      : m_group(context, std::move(connected)), m_channels(m_group), m_chooser(m_group) {
    m_work.sources.resize(static_cast<std::size_t>(context.size));
  }

  // `requested`: an index in algorithm_names or ISTHMUS_ANY_ALGORITHM, also below.
  const char* unsupported_reason(const isthmus_operation& operation, int requested) const {
    if (requested == ISTHMUS_ANY_ALGORITHM) return nullptr;
    switch (choices[requested].algorithm) {
      case shm_algorithm::packet: return packet_unsupported_reason(operation);
      case shm_algorithm::two_shot_packet: return two_shot_packet_unsupported_reason(operation);
      case shm_algorithm::grid_packet: return grid_packet_unsupported_reason(operation);
      case shm_algorithm::one_shot:
      case shm_algorithm::zero_copy:
        if (uses_channels(operation.collective)) return "only some ranks know the counts: use shm:channel";
        return operation.collective == ISTHMUS_BARRIER ? "a barrier moves no data: use shm:packet" : nullptr;
      case shm_algorithm::two_shot:
        if (choices[requested].reducers != slice_reducers::all && operation.collective != ISTHMUS_REDUCE)
          return "two_shot_gather supports only reduce";
        return supports_two_shot(operation.collective) ? nullptr
                                                       : "two_shot supports only allreduce and reduce";
      case shm_algorithm::divided:
        return operation.collective == ISTHMUS_SCATTER ? nullptr : "divided supports only scatter";
      case shm_algorithm::channel:
        return uses_channels(operation.collective) || operation.collective == ISTHMUS_ALLTOALL
                   ? nullptr
                   : "channel supports only send, recv, gatherv, scatterv, alltoall and alltoallv";
    }
    return "unknown algorithm";
  }

  isthmus_status enqueue(std::span<const isthmus_operation> operations, const int* requested) noexcept {
    m_group.memory().clear_exposed_ranges();
    try {
      // The runtime has checked its own abort flag before the call. Every wait checks both flags.
      m_group.poll_abort();
      if (std::ranges::any_of(operations,
                              [](const auto& each) { return is_point_to_point(each.collective); })) {
        m_group.set_activity("send or recv");
        m_channels.run_messages(operations);
      }
      for (std::size_t i = 0; i < operations.size(); ++i)
        if (!is_point_to_point(operations[i].collective)) run(operations[i], requested[i]);
      return ISTHMUS_SUCCESS;
    } catch (const operation_failure& failure) {
      // Usage errors are detected before any data moves. After all other failures this rank is out of step with
      // its peers.
      if (failure.status != ISTHMUS_ERROR_INVALID_USAGE) abort_after_failure();
      return failure.status;
    } catch (const std::bad_alloc&) {
      abort_after_failure();
      return fail(ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE, "host memory exhausted");
    } catch (const std::exception& problem) {
      abort_after_failure();
      return fail(ISTHMUS_ERROR_INTERNAL, ISTHMUS_HERE, problem.what());
    }
  }

  void abort() noexcept { m_group.publish_abort(); }

 private:
  // The caller reuses its buffers after the call returns, so peers must no longer write into them.
  void abort_after_failure() noexcept {
    m_group.publish_failed_rank(m_group.rank());
    m_group.memory().revoke_write_access();
  }

  const char* packet_unsupported_reason(const isthmus_operation& operation) const {
    if (operation.collective == ISTHMUS_BARRIER) return nullptr;
    if (uses_channels(operation.collective)) return "only some ranks know the counts: use shm:channel";
    std::uint64_t capacity =
        packet_block_bytes(m_group.sizes(), m_group.size(), is_per_destination(operation.collective));
    // Only the mean length is known to all ranks. A single block may hold all elements.
    if (has_counts(row_of(operation.collective))) capacity /= static_cast<std::uint64_t>(m_group.size());
    return operation.count <= capacity / bytes_of(operation.datatype)
               ? nullptr
               : "larger than what backend.shm.packet_lines holds";
  }

  const char* two_shot_packet_unsupported_reason(const isthmus_operation& operation) const {
    if (!supports_two_shot(operation.collective)) return "two_shot_packet supports only allreduce and reduce";
    const std::uint64_t capacity =
        packet_block_bytes(m_group.sizes(), m_group.size(), true) * static_cast<std::uint64_t>(m_group.size());
    return operation.count <= capacity / bytes_of(operation.datatype)
               ? nullptr
               : "larger than what backend.shm.packet_lines holds";
  }

  const char* grid_packet_unsupported_reason(const isthmus_operation& operation) const {
    const collective_row& row = row_of(operation.collective);
    if (row.send_extent != extent::count || row.send_ranks != buffer_ranks::all || has_counts(row))
      return "grid_packet supports only allreduce, reduce, allgather and gather";
    return operation.count <=
                   grid_packet_block_bytes(m_group.sizes(), m_group.size()) / bytes_of(operation.datatype)
               ? nullptr
               : "larger than what backend.shm.packet_lines holds";
  }

  isthmus_status fail(isthmus_status status, const char* location, const char* message) const noexcept {
    const auto& context = m_group.context();
    return context.fail(context.runtime, status, 0, location, nullptr, "%s", message);
  }

  void run(const isthmus_operation& operation, int requested) {
    m_group.begin_call(operation, requested);
    if (operation.collective == ISTHMUS_BARRIER) return run_barrier(m_group);
    // Default: zero_copy if possible, otherwise an algorithm that always works.
    constexpr algorithm_choice fallback{shm_algorithm::zero_copy, store_policy::adaptive};
    const bool is_requested = requested != ISTHMUS_ANY_ALGORITHM;
    const algorithm_choice choice = is_requested ? choices[requested] : fallback;
    if (uses_channels(operation.collective) || choice.algorithm == shm_algorithm::channel)
      return m_channels.run_collective(operation);
    const collective_shape shape(operation, m_group.rank(), m_group.size(), m_group.kernels());
    if (shape.count == 0) return;  // equal on all ranks
    switch (choice.algorithm) {
      case shm_algorithm::packet: return run_packet(m_group, m_work, shape);
      case shm_algorithm::two_shot_packet: return run_two_shot_packet(m_group, m_work, shape);
      case shm_algorithm::grid_packet: return run_grid_packet(m_group, m_work, shape);
      case shm_algorithm::one_shot:
      case shm_algorithm::two_shot: return run_staged(operation.collective, shape, choice);
      case shm_algorithm::zero_copy:
      case shm_algorithm::divided:
      case shm_algorithm::channel:  // handled above
        break;
    }
    if (choice.algorithm == shm_algorithm::divided ? run_divided_scatter(m_group, m_work, shape)
                                                   : copy_directly(operation, shape, choice.policy))
      return;
    if (is_requested) log_fallback(operation.collective, requested);
    const auto staged =
        supports_two_shot(operation.collective) ? shm_algorithm::two_shot : shm_algorithm::one_shot;
    run_staged(operation.collective, shape, {staged, choice.policy});
  }

  bool copy_directly(const isthmus_operation& operation, const collective_shape& shape, store_policy policy) {
    const store_mode staging_mode = policy == store_policy::cached ? store_mode::cached : store_mode::streaming;
    return run_zero_copy(m_group, m_work, shape, staging_mode, overwrites_unsent_data(operation));
  }

  void log_fallback(isthmus_collective collective, int requested) {
    const std::uint32_t bit = 1u << collective;
    std::uint32_t& logged = m_logged[static_cast<std::size_t>(requested)];
    if ((logged & bit) != 0) return;
    logged |= bit;
    m_group.context().log(
        m_group.context().runtime, 1,
        "shm:%s: a buffer of %s is outside the symmetric heap and the kernel cannot copy it between "
        "processes; the data is staged",
        algorithm_names[requested], row_of(collective).name);
  }

  void run_staged(isthmus_collective collective, const collective_shape& shape, algorithm_choice choice) {
    const bool is_adaptive = choice.policy == store_policy::adaptive;
    const store_mode staging_mode =
        is_adaptive ? m_chooser.begin(collective, shape.count * shape.element_bytes, shape.timing_rank())
                    : (choice.policy == store_policy::cached ? store_mode::cached : store_mode::streaming);
    if (choice.algorithm == shm_algorithm::two_shot)
      run_two_shot(m_group, m_work, shape, staging_mode, choice.reducers);
    else
      run_one_shot(m_group, m_work, shape, staging_mode, choice.layout);
    if (is_adaptive) m_chooser.end();
  }

  node_group m_group;
  channels m_channels;
  store_chooser m_chooser;
  workspace m_work;
  std::array<std::uint32_t, std::size(choices)> m_logged{};  // fallbacks logged so far: one bit per collective
};

isthmus_status create(const isthmus_backend_context* context, void** result) {
  *result = nullptr;
  segment_connection connected;
  if (const auto status = connect(*context, connected)) return status;
  try {
    *result = new shm_state(*context, std::move(connected));
  } catch (const std::bad_alloc&) {
    return context->fail(context->runtime, ISTHMUS_ERROR_OUT_OF_MEMORY, 0, ISTHMUS_HERE, nullptr,
                         "host memory exhausted");
  }
  return ISTHMUS_SUCCESS;
}

void destroy(void* handle) { delete static_cast<shm_state*>(handle); }

const char* supports(void* handle, const isthmus_operation* operation, int algorithm) {
  return static_cast<const shm_state*>(handle)->unsupported_reason(*operation, algorithm);
}

isthmus_status enqueue(void* handle, const isthmus_operation* operations, const int* algorithms,
                       std::size_t n) {
  return static_cast<shm_state*>(handle)->enqueue({operations, n}, algorithms);
}

void abort_state(void* handle) { static_cast<shm_state*>(handle)->abort(); }

const char* version(void*) { return cpu::kernels().name; }

constexpr isthmus_backend make_backend() {
  isthmus_backend backend{};
  backend.struct_bytes = sizeof(isthmus_backend);
  backend.magic = ISTHMUS_BACKEND_MAGIC;
  backend.abi_version = ISTHMUS_BACKEND_ABI;
  backend.name = "shm";
  backend.description = "shared memory between the ranks of one machine";
  backend.capabilities = ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_RANK_ORDER;
  backend.platforms = 1u << ISTHMUS_PLATFORM_HOST;
  backend.create = create;
  backend.destroy = destroy;
  backend.supports = supports;
  backend.algorithms = algorithm_names;
  backend.enqueue = enqueue;
  backend.abort = abort_state;
  backend.version = version;
  return backend;
}

}  // namespace
}  // namespace isthmus::shm

const isthmus_backend* isthmus::shm_backend() noexcept {
  static constexpr isthmus_backend backend = shm::make_backend();
  return &backend;
}
