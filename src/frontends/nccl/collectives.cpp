// Entry points for NCCL's collectives and messages. Each call is handled by Isthmus or passed through.
#include <climits>
#include <cstring>
#include <tuple>

#include "frontends/nccl/engine.hpp"

namespace isthmus::nccl_shim {
namespace {

// Arguments of the program's call, in NCCL's values.
struct call_arguments {
  isthmus_collective collective;
  const void* send;
  void* recv;
  std::size_t count;
  int datatype;
  int op;    // no_op if the call has none
  int root;  // no_root
  native_stream stream;
};
constexpr int no_op = INT_MIN, no_root = INT_MIN;

// The ranks that use the buffers, generated from collectives.def.
enum class buffer_location { NONE, ROOT, ALL };
struct buffer_roles {
  buffer_location send, recv;
};
constexpr buffer_roles buffer_roles_of[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {buffer_location::send_ranks, buffer_location::recv_ranks},
#include <isthmus/collectives.def>
};

bool is_in_range(int value, int values) { return value >= 0 && value < values; }

// True if an argument is invalid or unknown to Isthmus. Such calls go to NCCL, which reports its own errors.
bool requires_nccl_check(const call_arguments& arguments, const attached_communicator& communicator,
                         bool reads_send_buffer, bool writes_recv_buffer) {
  return !is_in_range(arguments.datatype, datatype_count) || (reads_send_buffer && arguments.send == nullptr) ||
         (writes_recv_buffer && arguments.recv == nullptr) ||
         (arguments.root != no_root && !is_in_range(arguments.root, communicator.size())) ||
         (arguments.op != no_op && arguments.op < 0);
}

// True if the call reads this rank's send buffer or writes its receive buffer.
bool is_used(buffer_location location, const call_arguments& arguments,
             const attached_communicator& communicator) {
  return location == buffer_location::ALL ||
         (location == buffer_location::ROOT && arguments.root == communicator.rank());
}
bool reads_send_buffer(const call_arguments& arguments, const attached_communicator& communicator) {
  return is_used(buffer_roles_of[arguments.collective].send, arguments, communicator);
}
bool writes_recv_buffer(const call_arguments& arguments, const attached_communicator& communicator) {
  return is_used(buffer_roles_of[arguments.collective].recv, arguments, communicator);
}

isthmus_operation to_operation(const call_arguments& arguments) {
  isthmus_operation operation{};
  operation.collective = arguments.collective;
  operation.datatype = isthmus_datatypes[static_cast<std::size_t>(arguments.datatype)];
  operation.op = arguments.op == no_op ? ISTHMUS_SUM : isthmus_ops[static_cast<std::size_t>(arguments.op)];
  operation.root = arguments.root == no_root ? 0 : arguments.root;
  operation.count = arguments.count;
  operation.send_buf = arguments.send;
  operation.recv_buf = arguments.recv;
  operation.stream = arguments.stream;
  return operation;
}

// Passes a call through to NCCL on a communicator that also has Isthmus calls, and keeps both in order.
template <typename Pass>
int pass_in_order(attached_communicator& communicator, const call_arguments& arguments, pass_reason_code reason,
                  Pass&& real_call) {
  count_passed_through(arguments.collective, reason);
  if (reason == pass_reason_code::no_data) return call_nccl(real_call);  // such a call needs no ordering
  if (is_in_group()) {
    record_nccl_call(communicator, arguments.stream);
    return call_nccl(real_call);
  }
  if (const int code = communicator.order().begin_call(arguments.stream, call_owner::nccl);
      code != native_success)
    return code;
  const int code = call_nccl(real_call);
  if (code == native_success) communicator.order().end_call(arguments.stream, call_owner::nccl);
  return code;
}

template <typename Pass>
int handle_call(const call_arguments& arguments, native_comm comm, Pass&& real_call) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->is_attached()) {
    count_passed_through(arguments.collective, communicator == nullptr ? pass_reason_code::unknown_communicator
                                                                       : communicator->pass_reason());
    return call_nccl(real_call);
  }
  // First check the properties that all ranks know, so that either all ranks pass the call through
  // or none does.
  if (arguments.count == 0)
    return pass_in_order(*communicator, arguments, pass_reason_code::no_data, real_call);
  if (arguments.op >= op_count)
    return pass_in_order(*communicator, arguments, pass_reason_code::operation, real_call);
  if (requires_nccl_check(arguments, *communicator, reads_send_buffer(arguments, *communicator),
                          writes_recv_buffer(arguments, *communicator)))
    return pass_in_order(*communicator, arguments, pass_reason_code::checked_by_nccl, real_call);
  const isthmus_operation operation = to_operation(arguments);
  const attached_communicator::call_decision decision = communicator->decide(operation);
  if (!decision.is_handled) return pass_in_order(*communicator, arguments, decision.reason, real_call);
  if (is_in_group()) return add_to_group(*communicator, operation, decision.counter);
  const int code = communicator->execute(operation, decision.counter);
  return code == attached_communicator::pass_to_nccl
             ? pass_in_order(*communicator, arguments, pass_reason_code::rank_lost, real_call)
             : code;
}

// A send or receive. The argument `root` is the peer. In a group, the end of the group executes it.
template <typename Pass>
int handle_message(const call_arguments& arguments, native_comm comm, Pass&& real_call) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->is_attached()) {
    count_passed_through(arguments.collective, communicator == nullptr ? pass_reason_code::unknown_communicator
                                                                       : communicator->pass_reason());
    return call_nccl(real_call);
  }
  // A message without data has no buffer on some ranks. A group is needed for a message to the own rank.
  const bool has_data = arguments.count != 0;
  if (requires_nccl_check(arguments, *communicator, has_data && arguments.collective == ISTHMUS_SEND,
                          has_data && arguments.collective == ISTHMUS_RECV) ||
      (arguments.root == communicator->rank() && !is_in_group()))
    return pass_in_order(*communicator, arguments, pass_reason_code::checked_by_nccl, real_call);
  const isthmus_operation operation = to_operation(arguments);
  const attached_communicator::call_decision decision = communicator->decide(operation);
  if (is_in_group()) return add_to_group({communicator, operation, arguments.datatype, comm, decision});
  if (!decision.is_handled) return pass_in_order(*communicator, arguments, decision.reason, real_call);
  const int code = communicator->execute(operation, decision.counter);
  return code == attached_communicator::pass_to_nccl
             ? pass_in_order(*communicator, arguments, pass_reason_code::rank_lost, real_call)
             : code;
}

// Calls that always go to NCCL but must stay in order with Isthmus calls.
template <typename Pass>
int pass_through(isthmus_collective collective, native_comm comm, native_stream stream, pass_reason_code reason,
                 Pass&& real_call) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->is_attached()) return call_nccl(real_call);
  return pass_in_order(*communicator, {collective, nullptr, nullptr, 0, 0, no_op, no_root, stream}, reason,
                       real_call);
}

// One handler for each function shape of nccl/api.hpp. Member: the function of the program's own NCCL.
template <isthmus_collective Collective, auto Member>
int handle_data_movement(const void* send, void* recv, std::size_t count, int datatype, native_comm comm,
                         native_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, no_op, no_root, stream}, comm,
                     [&] { return (real_nccl().*Member)(send, recv, count, datatype, comm, stream); });
}

template <isthmus_collective Collective, auto Member>
int handle_rooted_data_movement(const void* send, void* recv, std::size_t count, int datatype, int root,
                                native_comm comm, native_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, no_op, root, stream}, comm,
                     [&] { return (real_nccl().*Member)(send, recv, count, datatype, root, comm, stream); });
}

template <isthmus_collective Collective, auto Member>
int handle_reduction(const void* send, void* recv, std::size_t count, int datatype, int op, native_comm comm,
                     native_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, op, no_root, stream}, comm,
                     [&] { return (real_nccl().*Member)(send, recv, count, datatype, op, comm, stream); });
}

template <isthmus_collective Collective, auto Member>
int handle_rooted_reduction(const void* send, void* recv, std::size_t count, int datatype, int op, int root,
                            native_comm comm, native_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, op, root, stream}, comm, [&] {
    return (real_nccl().*Member)(send, recv, count, datatype, op, root, comm, stream);
  });
}

template <isthmus_collective Collective, auto Member>
int handle_send_message(const void* buffer, std::size_t count, int datatype, int peer, native_comm comm,
                        native_stream stream) {
  return handle_message({Collective, buffer, nullptr, count, datatype, no_op, peer, stream}, comm,
                        [&] { return (real_nccl().*Member)(buffer, count, datatype, peer, comm, stream); });
}

template <isthmus_collective Collective, auto Member>
int handle_recv_message(void* buffer, std::size_t count, int datatype, int peer, native_comm comm,
                        native_stream stream) {
  return handle_message({Collective, nullptr, buffer, count, datatype, no_op, peer, stream}, comm,
                        [&] { return (real_nccl().*Member)(buffer, count, datatype, peer, comm, stream); });
}

// The variants with per-call configuration, which are always passed through.
template <isthmus_collective Collective, auto Member, typename Function>
struct passed_through;
template <isthmus_collective Collective, auto Member, typename... Arguments>
struct passed_through<Collective, Member, int(Arguments...)> {
  static int call(Arguments... arguments) {
    const auto all = std::tie(arguments...);
    // The communicator and the stream are the last arguments before the configuration.
    constexpr std::size_t end = sizeof...(Arguments) - 1;
    const pass_reason_code reason =
        std::get<std::size_t&>(all) == 0 ? pass_reason_code::no_data : pass_reason_code::configuration;
    return pass_through(Collective, std::get<end - 2>(all), std::get<end - 1>(all), reason,
                        [&] { return (real_nccl().*Member)(arguments...); });
  }
};

}  // namespace

int handle_bcast(void* buffer, std::size_t count, int datatype, int root, native_comm comm,
                 native_stream stream) {
  return handle_call({ISTHMUS_BROADCAST, buffer, buffer, count, datatype, no_op, root, stream}, comm,
                     [&] { return real_nccl().bcast(buffer, count, datatype, root, comm, stream); });
}

any_function find_collective(const char* name) {
  const native_functions& nccl = real_nccl();
#define NATIVE_COLLECTIVE(Name, member, requirement, COLLECTIVE, shape)                                   \
  if (std::strcmp(name, "nccl" #Name) == 0)                                                               \
    return replacement_of<&handle_##shape<ISTHMUS_##COLLECTIVE, &native_functions::member>>(nccl.member); \
  if (std::strcmp(name, "nccl" #Name "Config") == 0)                                                      \
    return replacement_of<&passed_through<ISTHMUS_##COLLECTIVE, &native_functions::member##_configured,   \
                                          configured<shape>>::call>(nccl.member##_configured);
#define NATIVE_MESSAGE(Name, member, requirement, COLLECTIVE, shape) \
  if (std::strcmp(name, "nccl" #Name) == 0)                          \
    return replacement_of<&handle_##shape<ISTHMUS_##COLLECTIVE, &native_functions::member>>(nccl.member);
#include "nccl/functions.def"
  return nullptr;
}

}  // namespace isthmus::nccl_shim
