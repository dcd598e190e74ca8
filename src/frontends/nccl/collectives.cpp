#include "frontends/nccl/collectives.hpp"

#include <climits>
#include <cstring>
#include <tuple>

#include "frontends/nccl/groups.hpp"
#include "frontends/nccl/guarded.hpp"
#include "frontends/nccl/inside_nccl.hpp"

namespace isthmus::nccl_shim {
namespace {

// What the program said, in NCCL's values.
struct arguments {
  isthmus_collective which;
  const void* send;
  void* recv;
  std::size_t count;
  int datatype;
  int op;    // no_op where there is none
  int root;  // no_root
  nccl_stream stream;
};
constexpr int no_op = INT_MIN, no_root = INT_MIN;

// Where buffers are used, out of THE TABLE.
struct row {
  bool sends_at_root, receives_at_root;
};
enum class buffer_ranks { NOWHERE, ROOT, ALL };
constexpr row rows[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, in_place) \
  {buffer_ranks::send_ranks == buffer_ranks::ROOT, buffer_ranks::recv_ranks == buffer_ranks::ROOT},
#include <isthmus/collectives.def>
};

bool has(int value, int values) { return value >= 0 && value < values; }

// Why NCCL has to see it before anything else: what is wrong is its to say, in its own words.
bool is_left_to_check(const arguments& said, const attached_communicator& on, bool reads, bool writes) {
  return !has(said.datatype, datatype_count) || (reads && said.send == nullptr) ||
         (writes && said.recv == nullptr) || (said.root != no_root && !has(said.root, on.size())) ||
         (said.op != no_op && said.op < 0);
}

// Whether this rank's send buffer is read, and its receive buffer written.
bool reads(const arguments& said, const attached_communicator& on) {
  return !rows[said.which].sends_at_root || said.root == on.rank();
}
bool writes(const arguments& said, const attached_communicator& on) {
  return !rows[said.which].receives_at_root || said.root == on.rank();
}

isthmus_operation translate(const arguments& said) {
  isthmus_operation operation{};
  operation.collective = said.which;
  operation.datatype = datatypes[said.datatype];
  operation.op = said.op == no_op ? ISTHMUS_SUM : reductions[said.op];
  operation.root = said.root == no_root ? 0 : said.root;
  operation.count = said.count;
  operation.send_buf = said.send;
  operation.recv_buf = said.recv;
  operation.stream = said.stream;
  return operation;
}

// A call that NCCL gets on a communicator that Isthmus has calls on, too.
template <typename Pass>
int pass_in_order(attached_communicator& on, const arguments& said, pass_reason_code reason, Pass&& pass) {
  count_passed_through(said.which, reason);
  if (reason == pass_reason_code::no_data) return call_nccl(pass);  // nor anything to keep in order
  if (is_in_group()) {
    note_nccl_call(on, said.stream);
    return call_nccl(pass);
  }
  if (const int code = on.order().begin_call(said.stream, call_owner::nccl); code != nccl_success) return code;
  const int code = call_nccl(pass);
  if (code == nccl_success) on.order().end_call(said.stream, call_owner::nccl);
  return code;
}

template <typename Pass>
int take(const arguments& said, nccl_comm comm, Pass&& pass) {
  attached_communicator* const on = attached_communicator::find(comm);
  if (on == nullptr || !on->is_attached()) {
    count_passed_through(said.which, on == nullptr ? pass_reason_code::unknown_communicator : on->pass_reason());
    return call_nccl(pass);
  }
  // On what all ranks know first, so that all pass on alike.
  if (said.count == 0) return pass_in_order(*on, said, pass_reason_code::no_data, pass);
  if (said.op >= reduction_count) return pass_in_order(*on, said, pass_reason_code::operation, pass);
  if (is_left_to_check(said, *on, reads(said, *on), writes(said, *on)))
    return pass_in_order(*on, said, pass_reason_code::checked_by_nccl, pass);
  const isthmus_operation wanted = translate(said);
  const attached_communicator::call_decision answer = on->decide(wanted);
  if (!answer.taken) return pass_in_order(*on, said, answer.reason, pass);
  if (is_in_group()) return add_to_group(*on, wanted, answer.count);
  const int code = on->run(wanted, answer.count);
  return code == attached_communicator::pass_to_nccl ? pass_in_order(*on, said, pass_reason_code::rank_lost, pass) : code;
}

// What is always NCCL's, but kept in order with what is not.
template <typename Pass>
int pass_unseen(isthmus_collective which, nccl_comm comm, nccl_stream stream, pass_reason_code reason, Pass&& pass) {
  attached_communicator* const on = attached_communicator::find(comm);
  if (on == nullptr || !on->is_attached()) return call_nccl(pass);
  return pass_in_order(*on, {which, nullptr, nullptr, 0, 0, no_op, no_root, stream}, reason, pass);
}

// NCCL's own function.
template <typename Shape>
Shape* real(isthmus_collective which) {
  return reinterpret_cast<Shape*>(real_nccl().collectives[which]);
}

template <isthmus_collective Which>
int take_moved(const void* send, void* recv, std::size_t count, int datatype, nccl_comm comm,
               nccl_stream stream) {
  return take({Which, send, recv, count, datatype, no_op, no_root, stream}, comm,
              [&] { return real<moved>(Which)(send, recv, count, datatype, comm, stream); });
}

template <isthmus_collective Which>
int take_moved_rooted(const void* send, void* recv, std::size_t count, int datatype, int root, nccl_comm comm,
                      nccl_stream stream) {
  return take({Which, send, recv, count, datatype, no_op, root, stream}, comm,
              [&] { return real<moved_rooted>(Which)(send, recv, count, datatype, root, comm, stream); });
}

template <isthmus_collective Which>
int take_reduced(const void* send, void* recv, std::size_t count, int datatype, int op, nccl_comm comm,
                 nccl_stream stream) {
  return take({Which, send, recv, count, datatype, op, no_root, stream}, comm,
              [&] { return real<reduced>(Which)(send, recv, count, datatype, op, comm, stream); });
}

template <isthmus_collective Which>
int take_reduced_rooted(const void* send, void* recv, std::size_t count, int datatype, int op, int root,
                        nccl_comm comm, nccl_stream stream) {
  return take({Which, send, recv, count, datatype, op, root, stream}, comm,
              [&] { return real<reduced_rooted>(Which)(send, recv, count, datatype, op, root, comm, stream); });
}

template <isthmus_collective Which>
int take_sent(const void* buffer, std::size_t count, int datatype, int peer, nccl_comm comm,
              nccl_stream stream) {
  return pass_unseen(Which, comm, stream, pass_reason_code::message,
                     [&] { return real<sent>(Which)(buffer, count, datatype, peer, comm, stream); });
}

template <isthmus_collective Which>
int take_received(void* buffer, std::size_t count, int datatype, int peer, nccl_comm comm, nccl_stream stream) {
  return pass_unseen(Which, comm, stream, pass_reason_code::message,
                     [&] { return real<received>(Which)(buffer, count, datatype, peer, comm, stream); });
}

template <isthmus_collective Which>
int take_in_place(void* buffer, std::size_t count, int datatype, int root, nccl_comm comm, nccl_stream stream) {
  return take({Which, buffer, buffer, count, datatype, no_op, root, stream}, comm,
              [&] { return real_nccl().bcast(buffer, count, datatype, root, comm, stream); });
}

template <isthmus_collective Which, typename Shape>
struct configured;
template <isthmus_collective Which, typename... Arguments>
struct configured<Which, int(Arguments...)> {
  static int take(Arguments... arguments, const void* configuration) {
    const auto all = std::tie(arguments...);  // the last two: communicator and stream
    constexpr std::size_t count = sizeof...(Arguments);
    const pass_reason_code reason = std::get<std::size_t&>(all) == 0 ? pass_reason_code::no_data : pass_reason_code::configuration;
    return pass_unseen(Which, std::get<count - 2>(all), std::get<count - 1>(all), reason, [&] {
      using function = int(Arguments..., const void*);
      return reinterpret_cast<function*>(real_nccl().configured[Which])(arguments..., configuration);
    });
  }
};

}  // namespace

any_function find_collective(const char* name) {
#define NCCL_COLLECTIVE(NAME, Function, shape)                                                             \
  if (std::strcmp(name, "nccl" #Function) == 0)                                                            \
    return real_nccl().collectives[ISTHMUS_##NAME] == nullptr ? nullptr                                    \
                                                              : entry_of<&take_##shape<ISTHMUS_##NAME>>(); \
  if (std::strcmp(name, "nccl" #Function "Config") == 0)                                                   \
    return real_nccl().configured[ISTHMUS_##NAME] == nullptr                                               \
               ? nullptr                                                                                   \
               : entry_of<&configured<ISTHMUS_##NAME, shape>::take>();
#define NCCL_IN_PLACE(NAME, Function)           \
  if (std::strcmp(name, "nccl" #Function) == 0) \
    return real_nccl().bcast == nullptr ? nullptr : entry_of<&take_in_place<ISTHMUS_##NAME>>();
#include "frontends/nccl/collectives.def"
  return nullptr;
}

}  // namespace isthmus::nccl_shim
