#include "backends/host/host_backend.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "backends/host/algorithms.hpp"
#include "backends/host/channel.hpp"
#include "backends/host/store_chooser.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus::shm {
namespace {

enum class algorithm { packet, two_shot_packet, one_shot, two_shot, direct, channel };

// The form in which memory is written that other ranks read.
enum class form { cached, streaming, adaptive };

struct choice {
  algorithm what;
  form shared;
  readers of_staged = readers::together;
};

// In the order of choices.
constexpr const char* algorithm_names[] = {"packet",
                                           "two_shot_packet",
                                           "one_shot",
                                           "one_shot_streamed",
                                           "one_shot_adaptive",
                                           "one_shot_per_reader",
                                           "two_shot",
                                           "two_shot_streamed",
                                           "two_shot_adaptive",
                                           "zero_copy",
                                           "zero_copy_streamed",
                                           "channel",
                                           nullptr};
constexpr choice choices[] = {
    {algorithm::packet, form::cached},     {algorithm::two_shot_packet, form::cached},
    {algorithm::one_shot, form::cached},   {algorithm::one_shot, form::streaming},
    {algorithm::one_shot, form::adaptive}, {algorithm::one_shot, form::cached, readers::apart},
    {algorithm::two_shot, form::cached},   {algorithm::two_shot, form::streaming},
    {algorithm::two_shot, form::adaptive}, {algorithm::direct, form::cached},
    {algorithm::direct, form::streaming},  {algorithm::channel, form::cached}};
static_assert(std::size(algorithm_names) == std::size(choices) + 1);

// Nothing where no algorithm is named: NULL, or "" for a caller without the runtime.
std::optional<std::size_t> index_of(const char* name) {
  const int index = isthmus_algorithm_index(algorithm_names, name);
  return index < 0 ? std::nullopt : std::optional<std::size_t>(static_cast<std::size_t>(index));
}

bool can_two_shot(isthmus_collective collective) {
  const collective_row& row = row_of(collective);
  return row.is_reduction && row.send_extent == extent::count;
}

bool is_per_destination(isthmus_collective collective) {
  return row_of(collective).send_extent != extent::count;
}

// One rank of one communicator.
class state {
 public:
  state(const isthmus_backend_context& context, connection connected)
      : m_group(context, std::move(connected)), m_channels(m_group), m_chooser(m_group) {
    m_work.sources.resize(static_cast<std::size_t>(context.size));
  }

  const char* why_not(const isthmus_operation& operation, const char* name) const {
    if (name == nullptr || *name == '\0') return nullptr;
    const auto index = index_of(name);
    if (!index) return "the shm backend has no algorithm of that name";
    switch (choices[*index].what) {
      case algorithm::packet: return why_not_packet(operation);
      case algorithm::two_shot_packet: return why_not_two_shot_packet(operation);
      case algorithm::one_shot:
      case algorithm::direct:
        if (uses_channels(operation.collective)) return "only some ranks know the counts: shm:channel";
        return operation.collective == ISTHMUS_BARRIER ? "a barrier moves no data: shm:packet" : nullptr;
      case algorithm::two_shot:
        return can_two_shot(operation.collective) ? nullptr : "two_shot is for allreduce and reduce";
      case algorithm::channel:
        return uses_channels(operation.collective) || operation.collective == ISTHMUS_ALLTOALL
                   ? nullptr
                   : "channel is for send, recv, gatherv, scatterv, alltoall and alltoallv";
    }
    return "unknown algorithm";
  }

  isthmus_status enqueue(std::span<const isthmus_operation> operations, const char* const* names) noexcept {
    m_group.clear_exposed();
    try {
      m_group.poll_abort();  // the runtime's own was looked at before the call; every wait looks at both
      if (std::ranges::any_of(operations, [](const auto& each) { return is_point_to_point(each.collective); })) {
        m_group.set_activity("send or recv");
        m_channels.run_messages(operations);
      }
      for (std::size_t i = 0; i < operations.size(); ++i)
        if (!is_point_to_point(operations[i].collective))
          run(operations[i], names == nullptr ? std::nullopt : index_of(names[i]));
      return ISTHMUS_SUCCESS;
    } catch (const operation_failure& failure) {
      // a usage error was found before anything moved; after all else this rank is out of step for good
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
  // The caller gets its buffers back: from then on nobody else may write into them.
  void abort_after_failure() noexcept {
    m_group.publish_failed_rank(m_group.rank());
    m_group.revoke_write_access();
  }

  const char* why_not_packet(const isthmus_operation& operation) const {
    if (operation.collective == ISTHMUS_BARRIER) return nullptr;
    if (uses_channels(operation.collective)) return "only some ranks know the counts: shm:channel";
    std::uint64_t capacity =
        packet_block_bytes(m_group.sizes(), m_group.size(), is_per_destination(operation.collective));
    // All ranks know the mean length; one block may have it all.
    if (has_counts(row_of(operation.collective))) capacity /= static_cast<std::uint64_t>(m_group.size());
    return operation.count <= capacity / bytes_of(operation.datatype)
               ? nullptr
               : "larger than what backend.shm.packet_lines holds";
  }

  const char* why_not_two_shot_packet(const isthmus_operation& operation) const {
    if (!can_two_shot(operation.collective)) return "two_shot_packet is for allreduce and reduce";
    const std::uint64_t capacity =
        packet_block_bytes(m_group.sizes(), m_group.size(), true) * static_cast<std::uint64_t>(m_group.size());
    return operation.count <= capacity / bytes_of(operation.datatype)
               ? nullptr
               : "larger than what backend.shm.packet_lines holds";
  }

  isthmus_status fail(isthmus_status status, const char* location, const char* message) const noexcept {
    const auto& context = m_group.context();
    return context.fail(context.runtime, status, 0, location, nullptr, "%s", message);
  }

  // `named`: index of the algorithm that was asked for.
  void run(const isthmus_operation& operation, std::optional<std::size_t> named) {
    m_group.set_activity(row_of(operation.collective).name);
    if (operation.collective == ISTHMUS_BARRIER) return run_barrier(m_group);
    // without a name: nothing staged where that can be, else what always works
    constexpr choice otherwise{algorithm::direct, form::adaptive};
    const choice chosen = named ? choices[*named] : otherwise;
    if (uses_channels(operation.collective) || chosen.what == algorithm::channel)
      return m_channels.run_collective(operation);
    const shape s(operation, m_group.rank(), m_group.size(), m_group.kernels());
    if (s.count == 0) return;  // equal on all ranks
    switch (chosen.what) {
      case algorithm::packet: return run_packet(m_group, m_work, s);
      case algorithm::two_shot_packet: return run_two_shot_packet(m_group, m_work, s);
      case algorithm::one_shot:
      case algorithm::two_shot: return run_staged(operation.collective, s, chosen);
      case algorithm::direct:
      case algorithm::channel:  // done above
        break;
    }
    const store_mode shared = chosen.shared == form::cached ? store_mode::cached : store_mode::streaming;
    if (run_direct(m_group, m_work, s, shared, overwrites_unsent_data(operation))) return;
    if (named) note_staged(operation.collective, *named);
    const auto staged = can_two_shot(operation.collective) ? algorithm::two_shot : algorithm::one_shot;
    run_staged(operation.collective, s, {staged, chosen.shared});
  }

  void note_staged(isthmus_collective collective, std::size_t named) {
    const std::uint32_t bit = 1u << collective;
    if ((m_noted[named] & bit) != 0) return;
    m_noted[named] |= bit;
    m_group.context().log(
        m_group.context().runtime, 1,
        "shm:%s: some buffer of %s is neither in the symmetric heap nor where the kernel copies "
        "between processes; it is staged",
        algorithm_names[named], row_of(collective).name);
  }

  void run_staged(isthmus_collective collective, const shape& s, choice chosen) {
    const bool is_free = chosen.shared == form::adaptive;
    const store_mode shared = is_free ? m_chooser.begin(collective, s.count * s.element_bytes, s.judge())
                                 : (chosen.shared == form::cached ? store_mode::cached : store_mode::streaming);
    if (chosen.what == algorithm::two_shot)
      run_two_shot(m_group, m_work, s, shared);
    else
      run_one_shot(m_group, m_work, s, shared, chosen.of_staged);
    if (is_free) m_chooser.end();
  }

  node_group m_group;
  channels m_channels;
  store_chooser m_chooser;
  workspace m_work;
  std::array<std::uint32_t, std::size(choices)>
      m_noted{};  // what note_staged has said, a bit for each collective
};

isthmus_status create(const isthmus_backend_context* context, void** result) {
  *result = nullptr;
  connection connected;
  if (const auto status = connect(*context, connected)) return status;
  try {
    *result = new state(*context, std::move(connected));
  } catch (const std::bad_alloc&) {
    return context->fail(context->runtime, ISTHMUS_ERROR_OUT_OF_MEMORY, 0, ISTHMUS_HERE, nullptr,
                         "host memory exhausted");
  }
  return ISTHMUS_SUCCESS;
}

void destroy(void* handle) { delete static_cast<state*>(handle); }

const char* supports(void* handle, const isthmus_operation* operation, const char* name) {
  return static_cast<const state*>(handle)->why_not(*operation, name);
}

isthmus_status enqueue(void* handle, const isthmus_operation* operations, const char* const* names,
                       std::size_t n) {
  return static_cast<state*>(handle)->enqueue({operations, n}, names);
}

void abort_state(void* handle) { static_cast<state*>(handle)->abort(); }

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
