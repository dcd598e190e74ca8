#include "frontends/nccl/collectives.hpp"

#include <climits>
#include <cstring>
#include <tuple>

#include "frontends/nccl/exception_guard.hpp"
#include "frontends/nccl/groups.hpp"
#include "frontends/nccl/nccl_call_scope.hpp"

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
  nccl_stream stream;
};
constexpr int no_op = INT_MIN, no_root = INT_MIN;

// The buffers that only the root uses, generated from collectives.def.
struct buffer_roles {
  bool sends_at_root, receives_at_root;
};
enum class buffer_location { NONE, ROOT, ALL };
constexpr buffer_roles buffer_roles_of[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {buffer_location::send_ranks == buffer_location::ROOT, buffer_location::recv_ranks == buffer_location::ROOT},
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
bool reads_send_buffer(const call_arguments& arguments, const attached_communicator& communicator) {
  return !buffer_roles_of[arguments.collective].sends_at_root || arguments.root == communicator.rank();
}
bool writes_recv_buffer(const call_arguments& arguments, const attached_communicator& communicator) {
  return !buffer_roles_of[arguments.collective].receives_at_root || arguments.root == communicator.rank();
}

isthmus_operation to_operation(const call_arguments& arguments) {
  isthmus_operation operation{};
  operation.collective = arguments.collective;
  operation.datatype = datatypes[arguments.datatype];
  operation.op = arguments.op == no_op ? ISTHMUS_SUM : reductions[arguments.op];
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
      code != nccl_success)
    return code;
  const int code = call_nccl(real_call);
  if (code == nccl_success) communicator.order().end_call(arguments.stream, call_owner::nccl);
  return code;
}

template <typename Pass>
int handle_call(const call_arguments& arguments, nccl_comm comm, Pass&& real_call) {
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
  if (arguments.op >= reduction_count)
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

// Calls that always go to NCCL but must stay in order with Isthmus calls.
template <typename Pass>
int pass_through(isthmus_collective collective, nccl_comm comm, nccl_stream stream, pass_reason_code reason,
                 Pass&& real_call) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr || !communicator->is_attached()) return call_nccl(real_call);
  return pass_in_order(*communicator, {collective, nullptr, nullptr, 0, 0, no_op, no_root, stream}, reason,
                       real_call);
}

// Returns the function of the program's own NCCL.
template <typename Signature>
Signature* native_function(isthmus_collective collective) {
  return reinterpret_cast<Signature*>(real_nccl().collectives[collective]);
}

template <isthmus_collective Collective>
int handle_data_movement(const void* send, void* recv, std::size_t count, int datatype, nccl_comm comm,
                         nccl_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, no_op, no_root, stream}, comm, [&] {
    return native_function<data_movement>(Collective)(send, recv, count, datatype, comm, stream);
  });
}

template <isthmus_collective Collective>
int handle_rooted_data_movement(const void* send, void* recv, std::size_t count, int datatype, int root,
                                nccl_comm comm, nccl_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, no_op, root, stream}, comm, [&] {
    return native_function<rooted_data_movement>(Collective)(send, recv, count, datatype, root, comm, stream);
  });
}

template <isthmus_collective Collective>
int handle_reduction(const void* send, void* recv, std::size_t count, int datatype, int op, nccl_comm comm,
                     nccl_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, op, no_root, stream}, comm, [&] {
    return native_function<reduction>(Collective)(send, recv, count, datatype, op, comm, stream);
  });
}

template <isthmus_collective Collective>
int handle_rooted_reduction(const void* send, void* recv, std::size_t count, int datatype, int op, int root,
                            nccl_comm comm, nccl_stream stream) {
  return handle_call({Collective, send, recv, count, datatype, op, root, stream}, comm, [&] {
    return native_function<rooted_reduction>(Collective)(send, recv, count, datatype, op, root, comm, stream);
  });
}

template <isthmus_collective Collective>
int handle_send_message(const void* buffer, std::size_t count, int datatype, int peer, nccl_comm comm,
                        nccl_stream stream) {
  return pass_through(Collective, comm, stream, pass_reason_code::message, [&] {
    return native_function<send_message>(Collective)(buffer, count, datatype, peer, comm, stream);
  });
}

template <isthmus_collective Collective>
int handle_recv_message(void* buffer, std::size_t count, int datatype, int peer, nccl_comm comm,
                        nccl_stream stream) {
  return pass_through(Collective, comm, stream, pass_reason_code::message, [&] {
    return native_function<recv_message>(Collective)(buffer, count, datatype, peer, comm, stream);
  });
}

template <isthmus_collective Collective>
int handle_in_place(void* buffer, std::size_t count, int datatype, int root, nccl_comm comm,
                    nccl_stream stream) {
  return handle_call({Collective, buffer, buffer, count, datatype, no_op, root, stream}, comm,
                     [&] { return real_nccl().bcast(buffer, count, datatype, root, comm, stream); });
}

template <isthmus_collective Collective, typename Signature>
struct configured;
template <isthmus_collective Collective, typename... Arguments>
struct configured<Collective, int(Arguments...)> {
  static int handle_call(Arguments... arguments, const void* configuration) {
    const auto all = std::tie(arguments...);  // the last two are the communicator and the stream
    constexpr std::size_t count = sizeof...(Arguments);
    const pass_reason_code reason =
        std::get<std::size_t&>(all) == 0 ? pass_reason_code::no_data : pass_reason_code::configuration;
    return pass_through(Collective, std::get<count - 2>(all), std::get<count - 1>(all), reason, [&] {
      using function = int(Arguments..., const void*);
      return reinterpret_cast<function*>(real_nccl().configured[Collective])(arguments..., configuration);
    });
  }
};

}  // namespace

any_function find_collective(const char* name) {
#define NCCL_COLLECTIVE(NAME, Function, shape)                      \
  if (std::strcmp(name, "nccl" #Function) == 0)                     \
    return real_nccl().collectives[ISTHMUS_##NAME] == nullptr       \
               ? nullptr                                            \
               : entry_point_of<&handle_##shape<ISTHMUS_##NAME>>(); \
  if (std::strcmp(name, "nccl" #Function "Config") == 0)            \
    return real_nccl().configured[ISTHMUS_##NAME] == nullptr        \
               ? nullptr                                            \
               : entry_point_of<&configured<ISTHMUS_##NAME, shape>::handle_call>();
#define NCCL_IN_PLACE(NAME, Function)           \
  if (std::strcmp(name, "nccl" #Function) == 0) \
    return real_nccl().bcast == nullptr ? nullptr : entry_point_of<&handle_in_place<ISTHMUS_##NAME>>();
#include "frontends/nccl/collectives.def"
  return nullptr;
}

}  // namespace isthmus::nccl_shim
