// One rank of the fault campaign, through the C API: makes all kinds of calls and checks every result, until
// the fault chosen by campaign.py ends them. Writes one JSON line per event into a file.
#include "faults/worker.hpp"

#include <isthmus/isthmus.h>
#include <isthmus/memory.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace faults {
namespace {

constexpr std::size_t guard = 16;            // guard elements around the output of a call
constexpr std::int32_t untouched = -777777;  // content of a receive buffer before a call

enum class call_kind { allreduce, broadcast, allgather, alltoall, barrier, split, allocate };

struct trial_call {
  call_kind kind;
  std::uint64_t count;
};

std::uint64_t mix(std::uint64_t value) {
  value = (value + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 29) * 0x94d049bb133111ebu;
  return value ^ value >> 32;
}

// Chooses the call with this index; the same on all ranks.
trial_call choose_call(const trial& spec, std::uint64_t index, int size) {
  if (index == spec.fault_call && (spec.fault == "enomem" || spec.fault == "full_shm"))
    return {call_kind::allocate, 64u << 20};
  if (index == spec.fault_call && (spec.fault == "emfile" || spec.fault == "cut" || spec.fault == "drop"))
    return {call_kind::split, 0};
  constexpr std::uint64_t counts[] = {1, 16, 1000, 20'000, 300'000};
  const std::uint64_t random = mix(spec.seed + index);
  const auto count = counts[random % std::size(counts)];
  // Exchanges through the store take longer, so they are one in eight.
  if (random >> 8 & 7) {
    const auto kind = static_cast<call_kind>((random >> 16) % (spec.plain_calls ? 3 : 5));
    const bool is_block = kind == call_kind::allgather || kind == call_kind::alltoall;
    return {kind, is_block ? std::max<std::uint64_t>(1, count / static_cast<std::uint64_t>(size)) : count};
  }
  return {(random >> 16 & 1) != 0 ? call_kind::split : call_kind::allocate, 4096};
}

std::int32_t value_of(std::uint64_t index, int rank, std::uint64_t element) {
  return static_cast<std::int32_t>(index * 7 + static_cast<std::uint64_t>(rank) * 13 + (element & 63));
}

// The expected value of element i of the receive buffer.
std::int32_t expected(const trial_call& call, std::uint64_t index, int rank, int size, std::uint64_t i) {
  switch (call.kind) {
    case call_kind::allreduce: {
      std::int32_t sum = 0;
      for (int r = 0; r < size; ++r) sum += value_of(index, r, i);
      return sum;
    }
    case call_kind::broadcast:
      return value_of(index, static_cast<int>(index % static_cast<std::uint64_t>(size)), i);
    case call_kind::allgather: return value_of(index, static_cast<int>(i / call.count), i % call.count);
    case call_kind::alltoall:
      return value_of(index, static_cast<int>(i / call.count),
                      static_cast<std::uint64_t>(rank) * call.count + i % call.count);
    default: return untouched;
  }
}

bool is_per_rank(call_kind kind) { return kind == call_kind::allgather || kind == call_kind::alltoall; }

class rank_of_trial {
 public:
  rank_of_trial(const trial& spec, int rank, int size) : m_spec(spec), m_rank(rank), m_size(size) {}

  int run(const create_function& create) {
    log({{"event", "begin"}});  // opens the file
    const std::size_t descriptors = count_descriptors();
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof options;
    options.timeout_s = m_spec.timeout_s;
    options.config_path = m_spec.config.c_str();
    options.device = device();
    injection fault(m_spec, m_rank);
    if (m_spec.is_at_creation) fault.schedule();
    isthmus_status status = create(options, &m_communicator);
    if (status == ISTHMUS_SUCCESS) {
      log({{"event", "ready"}});
      status = call_until_failure(fault);
    } else {
      log_failure(status, "create", "");
    }
    if (status == ISTHMUS_SUCCESS) log({{"event", "done"}});
    wait_until_settled(m_spec);
    check_after_failure();
    isthmus_communicator_destroy(m_communicator);
    m_buffers.reset();
    log({{"event", "end"}, {"descriptors_before", descriptors}, {"descriptors", count_descriptors()}});
    return 0;
  }

 private:
  isthmus_status call_until_failure(injection& fault) {
    m_buffers = make_buffers(m_spec, m_communicator, m_rank);
    if (m_buffers == nullptr) {
      isthmus_error_info info;
      isthmus_last_error(&info);
      log_failure(info.status, "allocate", "");
      return info.status;
    }
    for (std::uint64_t index = 0; index < m_spec.calls; ++index) {
      if (index == m_spec.fault_call && !m_spec.is_at_creation) fault.schedule();
      const trial_call call = choose_call(m_spec, index, m_size);
      const isthmus_status status = perform(call, index);
      if (status != ISTHMUS_SUCCESS) {
        take_snapshot(call);
        log_failure(status, names[static_cast<std::size_t>(call.kind)], state_of_result(call, index));
        return status;
      }
      if (!is_correct(call, index)) log_wrong_result(call, index);
    }
    return ISTHMUS_SUCCESS;
  }

  isthmus_status perform(const trial_call& call, std::uint64_t index) {
    isthmus_communicator subcommunicator = nullptr;
    void* block = nullptr;
    isthmus_status status = ISTHMUS_SUCCESS;
    switch (call.kind) {
      case call_kind::split:
        status = isthmus_communicator_split(m_communicator, 0, 0, &subcommunicator);
        isthmus_communicator_destroy(subcommunicator);
        return status;
      case call_kind::allocate:
        status = isthmus_memory_allocate_symmetric(m_communicator, call.count, &block);
        isthmus_memory_free_symmetric(m_communicator, block);
        return status;
      default: break;
    }
    fill(call, index);
    constexpr isthmus_collective collectives[] = {ISTHMUS_ALLREDUCE, ISTHMUS_BROADCAST, ISTHMUS_ALLGATHER,
                                                  ISTHMUS_ALLTOALL, ISTHMUS_BARRIER};
    isthmus_operation operation{};
    operation.collective = collectives[static_cast<std::size_t>(call.kind)];
    operation.stream = m_buffers->stream();
    if (call.kind != call_kind::barrier) {
      operation.datatype = ISTHMUS_INT32;
      operation.op = ISTHMUS_SUM;
      operation.count = call.count;
      operation.root =
          call.kind == call_kind::broadcast ? static_cast<int>(index % static_cast<std::uint64_t>(m_size)) : 0;
      operation.send_buf = send();
      operation.recv_buf = receive();
    }
    status = isthmus_enqueue(m_communicator, &operation);
    return status == ISTHMUS_SUCCESS ? m_buffers->finish(m_communicator) : status;
  }

  std::int32_t* send() const { return m_buffers->memory(); }
  std::int32_t* receive() const { return m_buffers->memory() + buffer_elements / 2 + guard; }
  std::uint64_t send_elements(const trial_call& call) const {
    return call.kind == call_kind::alltoall ? call.count * static_cast<std::uint64_t>(m_size) : call.count;
  }
  std::uint64_t receive_elements(const trial_call& call) const {
    return call.kind >= call_kind::barrier
               ? 0
               : call.count * (is_per_rank(call.kind) ? static_cast<std::uint64_t>(m_size) : 1);
  }

  void fill(const trial_call& call, std::uint64_t index) {
    for (std::uint64_t i = 0; i < send_elements(call); ++i) send()[i] = value_of(index, m_rank, i);
    std::fill_n(receive() - guard, receive_elements(call) + 2 * guard, untouched);
  }

  bool is_correct(const trial_call& call, std::uint64_t index) const {
    if (call.kind >= call_kind::barrier || !m_spec.is_checked) return true;
    for (std::uint64_t i = 0; i < receive_elements(call); ++i)
      if (receive()[i] != expected(call, index, m_rank, m_size, i)) return false;
    return are_inputs_intact(call, index) && are_guards_intact(call);
  }

  bool are_guards_intact(const trial_call& call) const {
    const auto is_untouched = [](std::int32_t value) { return value == untouched; };
    const std::int32_t* const end = receive() + receive_elements(call);
    return std::all_of(receive() - guard, receive() + 0, is_untouched) &&
           std::all_of(end, end + guard, is_untouched);
  }

  bool are_inputs_intact(const trial_call& call, std::uint64_t index) const {
    for (std::uint64_t i = 0; i < send_elements(call); ++i)
      if (send()[i] != value_of(index, m_rank, i)) return false;
    return true;
  }

  const char* state_of_result(const trial_call& call, std::uint64_t index) const {
    if (call.kind >= call_kind::barrier) return "none";
    if (!are_inputs_intact(call, index) || !are_guards_intact(call)) return "corrupted";
    std::uint64_t same_count = 0, correct_count = 0;
    for (std::uint64_t i = 0; i < receive_elements(call); ++i) {
      same_count += receive()[i] == untouched;
      correct_count += receive()[i] == expected(call, index, m_rank, m_size, i);
    }
    const std::uint64_t all = receive_elements(call);
    return same_count == all                   ? "untouched"
           : correct_count == all              ? "complete"
           : same_count + correct_count == all ? "partly"
                                               : "unfinished";
  }

  // Copies all buffers as they are when the error returns.
  void take_snapshot(const trial_call& call) {
    if (call.kind < call_kind::barrier)
      m_snapshot.assign(m_buffers->memory(), m_buffers->memory() + buffer_elements);
  }

  void check_after_failure() {
    if (m_snapshot.empty()) return;
    if (std::memcmp(m_snapshot.data(), m_buffers->memory(), m_snapshot.size() * sizeof m_snapshot[0]) != 0)
      log({{"event", "foreign_write"}});
  }

  isthmus_device device() const {
    return {m_spec.platform == "cuda" ? ISTHMUS_PLATFORM_CUDA : ISTHMUS_PLATFORM_HOST,
            m_spec.platform == "cuda" ? m_rank : 0};
  }

  // A rank may be stopped between the end of the call and the check of its result. Meanwhile the other ranks
  // abort, their released streams may write into its buffers, and the communicator has failed.
  void log_wrong_result(const trial_call& call, std::uint64_t index) const {
    const bool failed_since = isthmus_communicator_async_error(m_communicator) != ISTHMUS_SUCCESS;
    log({{"event", failed_since ? "overwritten" : "wrong_result"},
         {"call", index},
         {"result", state_of_result(call, index)}});
  }

  void log_failure(isthmus_status status, const std::string& location, const std::string& result) {
    isthmus_error_info info;
    isthmus_last_error(&info);
    std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
    isthmus_last_error_ranks(ranks.data(), ranks.size());
    log({{"event", "failed"},
         {"in", location},
         {"status", isthmus_status_name(status)},
         {"message", info.message},
         {"ranks", ranks},
         {"native_code", info.native_code},
         {"result", result}});
  }

  void log(nlohmann::json event) const { write_event(m_spec, m_rank, std::move(event)); }

  static constexpr const char* names[] = {"allreduce", "broadcast", "allgather", "alltoall",
                                          "barrier",   "split",     "allocate"};

  const trial& m_spec;
  int m_rank, m_size;
  isthmus_communicator m_communicator = nullptr;
  std::unique_ptr<trial_buffers> m_buffers;
  std::vector<std::int32_t> m_snapshot;
};

}  // namespace

int run_rank(const trial& spec, int rank, int size, const create_function& create) {
  return rank_of_trial(spec, rank, size).run(create);
}

}  // namespace faults
