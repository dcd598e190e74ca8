// One rank of the campaign of faults, through the C API: calls of all kinds with a check of every result, until
// a fault that campaign.py has chosen ends them. What it saw goes, a line of JSON for each event, into a file.
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

#include "faults/injection.hpp"

namespace faults {
namespace {

constexpr std::size_t guard = 16;            // elements around what a call may write
constexpr std::int32_t untouched = -777777;  // what a receive buffer holds before

enum class kind { allreduce, broadcast, allgather, alltoall, barrier, split, allocate };

struct call {
  kind what;
  std::uint64_t count;
};

std::uint64_t mix(std::uint64_t value) {
  value = (value + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 29) * 0x94d049bb133111ebu;
  return value ^ value >> 32;
}

// The same on all ranks.
call choose(const trial& spec, std::uint64_t index, int size) {
  if (index == spec.at && (spec.fault == "enomem" || spec.fault == "full_shm"))
    return {kind::allocate, 64u << 20};
  if (index == spec.at && (spec.fault == "emfile" || spec.fault == "cut" || spec.fault == "drop"))
    return {kind::split, 0};
  constexpr std::uint64_t counts[] = {1, 16, 1000, 20'000, 300'000};
  const std::uint64_t random = mix(spec.seed + index);
  const auto count = counts[random % std::size(counts)];
  // Exchanges by the store take longer: one in eight.
  if (random >> 8 & 7) {
    const auto what = static_cast<kind>((random >> 16) % (spec.plain_calls ? 3 : 5));
    const bool is_block = what == kind::allgather || what == kind::alltoall;
    return {what, is_block ? std::max<std::uint64_t>(1, count / static_cast<std::uint64_t>(size)) : count};
  }
  return {(random >> 16 & 1) != 0 ? kind::split : kind::allocate, 4096};
}

std::int32_t value_of(std::uint64_t index, int rank, std::uint64_t element) {
  return static_cast<std::int32_t>(index * 7 + static_cast<std::uint64_t>(rank) * 13 + (element & 63));
}

// What stands in element i of the receive buffer afterwards.
std::int32_t expected(const call& made, std::uint64_t index, int rank, int size, std::uint64_t i) {
  switch (made.what) {
    case kind::allreduce: {
      std::int32_t sum = 0;
      for (int r = 0; r < size; ++r) sum += value_of(index, r, i);
      return sum;
    }
    case kind::broadcast: return value_of(index, static_cast<int>(index % static_cast<std::uint64_t>(size)), i);
    case kind::allgather: return value_of(index, static_cast<int>(i / made.count), i % made.count);
    case kind::alltoall:
      return value_of(index, static_cast<int>(i / made.count),
                      static_cast<std::uint64_t>(rank) * made.count + i % made.count);
    default: return untouched;
  }
}

bool is_per_rank(kind what) { return what == kind::allgather || what == kind::alltoall; }

class rank_of_trial {
 public:
  rank_of_trial(const trial& spec, int rank, int size) : m_spec(spec), m_rank(rank), m_size(size) {}

  int run(const creator& create) {
    note({{"event", "begin"}});  // opens the file
    const std::size_t descriptors = count_descriptors();
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof options;
    options.timeout_s = m_spec.timeout_s;
    options.config_path = m_spec.config.c_str();
    options.device = device();
    injection fault(m_spec, m_rank);
    if (m_spec.at_creation) fault.arm();
    isthmus_status status = create(options, &m_communicator);
    if (status == ISTHMUS_SUCCESS) {
      note({{"event", "ready"}});
      status = call_until_failure(fault);
    } else {
      note_failure(status, "create", "");
    }
    if (status == ISTHMUS_SUCCESS) note({{"event", "done"}});
    wait_until_settled(m_spec);
    check_after_failure();
    isthmus_communicator_destroy(m_communicator);
    m_room.reset();
    note({{"event", "end"}, {"descriptors_before", descriptors}, {"descriptors", count_descriptors()}});
    return 0;
  }

 private:
  isthmus_status call_until_failure(injection& fault) {
    m_room = make_room(m_spec, m_communicator, m_rank);
    if (m_room == nullptr) {
      isthmus_error_info info;
      isthmus_last_error(&info);
      note_failure(info.status, "allocate", "");
      return info.status;
    }
    for (std::uint64_t index = 0; index < m_spec.calls; ++index) {
      if (index == m_spec.at && !m_spec.at_creation) fault.arm();
      const call made = choose(m_spec, index, m_size);
      const isthmus_status status = perform(made, index);
      if (status != ISTHMUS_SUCCESS) {
        keep(made);
        note_failure(status, names[static_cast<std::size_t>(made.what)], state_of_result(made, index));
        return status;
      }
      if (!is_right(made, index)) note_wrong_result(made, index);
    }
    return ISTHMUS_SUCCESS;
  }

  isthmus_status perform(const call& made, std::uint64_t index) {
    isthmus_communicator part = nullptr;
    void* block = nullptr;
    isthmus_status status = ISTHMUS_SUCCESS;
    switch (made.what) {
      case kind::split:
        status = isthmus_communicator_split(m_communicator, 0, 0, &part);
        isthmus_communicator_destroy(part);
        return status;
      case kind::allocate:
        status = isthmus_memory_allocate_symmetric(m_communicator, made.count, &block);
        isthmus_memory_free(m_communicator, block);
        return status;
      default: break;
    }
    fill(made, index);
    constexpr isthmus_collective collectives[] = {ISTHMUS_ALLREDUCE, ISTHMUS_BROADCAST, ISTHMUS_ALLGATHER,
                                                  ISTHMUS_ALLTOALL, ISTHMUS_BARRIER};
    isthmus_operation operation{};
    operation.collective = collectives[static_cast<std::size_t>(made.what)];
    operation.stream = m_room->stream();
    if (made.what != kind::barrier) {
      operation.datatype = ISTHMUS_INT32;
      operation.op = ISTHMUS_SUM;
      operation.count = made.count;
      operation.root =
          made.what == kind::broadcast ? static_cast<int>(index % static_cast<std::uint64_t>(m_size)) : 0;
      operation.send_buf = send();
      operation.recv_buf = receive();
    }
    status = isthmus_enqueue(m_communicator, &operation);
    return status == ISTHMUS_SUCCESS ? m_room->finish(m_communicator) : status;
  }

  std::int32_t* send() const { return m_room->memory(); }
  std::int32_t* receive() const { return m_room->memory() + room_elements / 2 + guard; }
  std::uint64_t send_elements(const call& made) const {
    return made.what == kind::alltoall ? made.count * static_cast<std::uint64_t>(m_size) : made.count;
  }
  std::uint64_t receive_elements(const call& made) const {
    return made.what >= kind::barrier
               ? 0
               : made.count * (is_per_rank(made.what) ? static_cast<std::uint64_t>(m_size) : 1);
  }

  void fill(const call& made, std::uint64_t index) {
    for (std::uint64_t i = 0; i < send_elements(made); ++i) send()[i] = value_of(index, m_rank, i);
    std::fill_n(receive() - guard, receive_elements(made) + 2 * guard, untouched);
  }

  bool is_right(const call& made, std::uint64_t index) const {
    if (made.what >= kind::barrier || !m_spec.is_checked) return true;
    for (std::uint64_t i = 0; i < receive_elements(made); ++i)
      if (receive()[i] != expected(made, index, m_rank, m_size, i)) return false;
    return inputs_are_whole(made, index) && guards_are_whole(made);
  }

  bool guards_are_whole(const call& made) const {
    const auto is_untouched = [](std::int32_t value) { return value == untouched; };
    const std::int32_t* const end = receive() + receive_elements(made);
    return std::all_of(receive() - guard, receive() + 0, is_untouched) &&
           std::all_of(end, end + guard, is_untouched);
  }

  bool inputs_are_whole(const call& made, std::uint64_t index) const {
    for (std::uint64_t i = 0; i < send_elements(made); ++i)
      if (send()[i] != value_of(index, m_rank, i)) return false;
    return true;
  }

  const char* state_of_result(const call& made, std::uint64_t index) const {
    if (made.what >= kind::barrier) return "none";
    if (!inputs_are_whole(made, index) || !guards_are_whole(made)) return "spoilt";
    std::uint64_t same = 0, right = 0;
    for (std::uint64_t i = 0; i < receive_elements(made); ++i) {
      same += receive()[i] == untouched;
      right += receive()[i] == expected(made, index, m_rank, m_size, i);
    }
    const std::uint64_t all = receive_elements(made);
    return same == all           ? "untouched"
           : right == all        ? "complete"
           : same + right == all ? "partly"
                                 : "unfinished";
  }

  // All of the buffers, as they are when the error returns.
  void keep(const call& made) {
    if (made.what < kind::barrier) m_kept.assign(m_room->memory(), m_room->memory() + room_elements);
  }

  void check_after_failure() {
    if (m_kept.empty()) return;
    if (std::memcmp(m_kept.data(), m_room->memory(), m_kept.size() * sizeof m_kept[0]) != 0)
      note({{"event", "foreign_write"}});
  }

  isthmus_device device() const {
    return {m_spec.platform == "cuda" ? ISTHMUS_PLATFORM_CUDA : ISTHMUS_PLATFORM_HOST,
            m_spec.platform == "cuda" ? m_rank : 0};
  }

  // A rank may be stopped between the call's end and the look at the result. Released streams of the ranks that
  // gave up meanwhile then wrote into its buffers, and the communicator has failed by now.
  void note_wrong_result(const call& made, std::uint64_t index) const {
    const bool failed_since = isthmus_communicator_async_error(m_communicator) != ISTHMUS_SUCCESS;
    note({{"event", failed_since ? "overwritten" : "wrong_result"},
          {"call", index},
          {"result", state_of_result(made, index)}});
  }

  void note_failure(isthmus_status status, const std::string& where, const std::string& result) {
    isthmus_error_info info;
    isthmus_last_error(&info);
    std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
    isthmus_last_error_ranks(ranks.data(), ranks.size());
    note({{"event", "failed"},
          {"in", where},
          {"status", isthmus_status_name(status)},
          {"message", info.message},
          {"ranks", ranks},
          {"native_code", info.native_code},
          {"result", result}});
  }

  void note(nlohmann::json event) const { write_event(m_spec, m_rank, std::move(event)); }

  static constexpr const char* names[] = {"allreduce", "broadcast", "allgather", "alltoall",
                                          "barrier",   "split",     "allocate"};

  const trial& m_spec;
  int m_rank, m_size;
  isthmus_communicator m_communicator = nullptr;
  std::unique_ptr<room> m_room;
  std::vector<std::int32_t> m_kept;
};

}  // namespace

int run_rank(const trial& spec, int rank, int size, const creator& create) {
  return rank_of_trial(spec, rank, size).run(create);
}

}  // namespace faults
