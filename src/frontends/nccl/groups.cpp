#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/message_order.hpp"
#include "frontends/nccl/engine.hpp"

namespace isthmus::nccl_shim {
namespace {

struct deferred_call {
  attached_communicator* communicator;
  isthmus_operation operation;
  preload::call_counter* counter;
};

struct nccl_call {
  attached_communicator* communicator;
  native_stream stream;
  std::size_t deferred_before;  // number of Isthmus calls issued before it in the group
  bool operator==(const nccl_call&) const = default;
};

using deferred_calls = std::vector<deferred_call>;

using grouped_messages = std::vector<grouped_message>;

struct group_state {
  int depth = 0;
  deferred_calls deferred;
  grouped_messages messages;
  std::vector<nccl_call> nccl_calls;
  std::vector<pending_communicator> creations;
};

group_state& current_group() {
  thread_local group_state instance;
  return instance;
}

// Marks the end of the last call of each communicator. If its calls use several streams, all of them wait for this call,
// unless it has no data: a backend may ignore it.
template <typename Call>
void end_calls(const std::vector<Call>& calls, call_owner owner) {
  std::map<attached_communicator*, const isthmus_operation*> last;
  for (const Call& call : calls) {
    const isthmus_operation*& own = last[call.communicator];
    if (own == nullptr || call.operation.count != 0) own = &call.operation;
  }
  for (const auto& [communicator, operation] : last) communicator->order().end_call(operation->stream, owner);
}

// Executes calls as one Isthmus group. Collectives of one communicator must use the same stream.
int run_as_group(const deferred_calls& calls) {
  const preload::stopwatch timer(statistics());
  for (const deferred_call& call : calls)
    if (const int code = call.communicator->order().begin_call(call.operation.stream, call_owner::isthmus);
        code != native_success)
      return code;
  isthmus_status status = isthmus_group_start();
  for (const deferred_call& call : calls)
    if (status == ISTHMUS_SUCCESS) status = isthmus_enqueue(call.communicator->handle(), &call.operation);
  const isthmus_status end_status = isthmus_group_end();
  if (status == ISTHMUS_SUCCESS) status = end_status;
  if (status != ISTHMUS_SUCCESS) {
    const int code = calls.front().communicator->handle_failure(status);
    return code == attached_communicator::pass_to_nccl ? static_cast<int>(native_remote_error) : code;
  }
  end_calls(calls, call_owner::isthmus);
  for (const deferred_call& call : calls) {
    if (call.counter != nullptr)
      call.counter->add(bytes_of(call.operation),
                        timer.nanoseconds() / static_cast<std::int64_t>(calls.size()));
  }
  return native_success;
}

// Executes calls in order. Starts a new Isthmus group whenever a communicator changes streams.
int run_in_order(const deferred_calls& all) {
  deferred_calls batch;
  int first = native_success;
  const auto run = [&] {
    const int code = batch.empty() ? static_cast<int>(native_success) : run_as_group(batch);
    if (first == native_success) first = code;
    batch.clear();
  };
  for (const deferred_call& call : all) {
    const bool is_on_other_stream = std::ranges::any_of(batch, [&](const deferred_call& other) {
      return other.communicator == call.communicator && other.operation.stream != call.operation.stream;
    });
    if (is_on_other_stream) run();
    batch.push_back(call);
  }
  run();
  return first;
}

// The dependencies of a call outside of a group: earlier calls of its communicator and earlier calls on its
// stream. Streams are compared together with the device, because NULL means a different stream on each device.
struct dependency {
  const attached_communicator* communicator;
  native_stream stream;
  bool conflicts_with(const dependency& other) const {
    return communicator == other.communicator ||
           (stream == other.stream && communicator->device() == other.communicator->device());
  }
};

bool has_single_device(const deferred_calls& all) {
  return std::ranges::all_of(all, [&](const deferred_call& call) {
    return call.communicator->device() == all.front().communicator->device();
  });
}

// Removes from `all` the calls that precede every NCCL call with the same communicator or stream, and returns
// them. Calls that depend on a blocked call are blocked as well. A thread that drives several devices keeps all
// calls together: it must group the calls of its ranks, and so must the other ranks.
deferred_calls extract_calls_before_nccl(const std::vector<nccl_call>& nccl_calls, deferred_calls& all) {
  if (nccl_calls.empty()) return {};
  if (!has_single_device(all)) return {};
  deferred_calls early, late;
  std::vector<dependency> blocked_dependencies;
  auto next = nccl_calls.begin();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (; next != nccl_calls.end() && next->deferred_before <= i; ++next)
      blocked_dependencies.push_back({next->communicator, next->stream});
    const dependency call{all[i].communicator, all[i].operation.stream};
    const bool is_late = std::ranges::any_of(blocked_dependencies,
                                             [&](const dependency& each) { return each.conflicts_with(call); });
    if (is_late) blocked_dependencies.push_back(call);
    (is_late ? late : early).push_back(all[i]);
  }
  all = std::move(late);
  return early;
}

// ---- messages ----

int issue_to_nccl(const grouped_message& message) {
  const native_functions& nccl = real_nccl();
  const isthmus_operation& each = message.operation;
  return call_nccl([&] {
    return each.collective == ISTHMUS_SEND
               ? nccl.send(each.send_buf, each.count, message.datatype, each.root, message.comm, each.stream)
               : nccl.recv(each.recv_buf, each.count, message.datatype, each.root, message.comm, each.stream);
  });
}

// NCCL reports an error if the messages of a rank to itself do not match.
bool are_self_messages_matched(const grouped_messages& messages) {
  std::vector<std::uint64_t> sent, received;
  for (const grouped_message& each : messages)
    if (each.operation.root == each.communicator->rank())
      (each.operation.collective == ISTHMUS_SEND ? sent : received).push_back(bytes_of(each.operation));
  return sent == received;
}

// The messages of one communicator, and their phases.
struct message_plan {
  grouped_messages messages;
  std::vector<int> phases;
  // Returns true if Isthmus executes all messages, and no call of `others` has their communicator, or their stream and an
  // earlier place in the group. The plan then runs before NCCL's group: another rank may issue the calls one by one.
  bool is_before(const std::vector<nccl_call>& others) const {
    return std::ranges::all_of(messages, [&](const grouped_message& each) {
      const dependency own{each.communicator, each.operation.stream};
      for (std::size_t i = 0; i < others.size(); ++i) {
        const nccl_call& other = others[i];
        if (other.communicator == own.communicator) return false;
        if (i < each.nccl_calls_before && own.conflicts_with({other.communicator, other.stream})) return false;
      }
      return each.decision.is_handled;
    });
  }
  bool depends_on(const deferred_calls& calls) const {
    return std::ranges::any_of(messages, [&](const grouped_message& each) {
      const dependency own{each.communicator, each.operation.stream};
      return std::ranges::any_of(calls, [&](const deferred_call& call) {
        return own.conflicts_with({call.communicator, call.operation.stream});
      });
    });
  }
};

// Removes from `all` the messages of each communicator for which Isthmus executes a message, and returns them.
std::vector<message_plan> extract_plans(grouped_messages& all) {
  const auto is_handled = [](const grouped_message& each) { return each.decision.is_handled; };
  if (std::ranges::none_of(all, is_handled)) return {};
  std::vector<message_plan> plans;
  grouped_messages others;
  while (!all.empty()) {
    const attached_communicator* const communicator = all.front().communicator;
    const auto is_own = [&](const grouped_message& each) { return each.communicator == communicator; };
    const auto end = std::ranges::stable_partition(all, is_own).begin();
    grouped_messages own(all.begin(), end);
    all.erase(all.begin(), end);
    if (!are_self_messages_matched(own))
      for (grouped_message& each : own)
        if (each.operation.root == communicator->rank()) each.decision.is_handled = false;
    if (std::ranges::none_of(own, is_handled)) {
      others.insert(others.end(), own.begin(), own.end());
      continue;
    }
    static constexpr char isthmus_backend = 0, nccl_backend = 0;
    std::vector<ordered_message> ordered;
    for (const grouped_message& each : own)
      ordered.push_back({each.operation.root, each.operation.collective == ISTHMUS_SEND,
                         is_handled(each) ? &isthmus_backend : &nccl_backend, is_handled(each)});
    auto phases = message_phases(ordered, communicator->rank());
    plans.push_back({std::move(own), std::move(phases)});
  }
  all = std::move(others);
  return plans;
}

// Removes from `plans` those that can run before NCCL's group, and returns them. As with calls, a thread that drives several
// devices keeps all plans together.
std::vector<message_plan> extract_plans_before_nccl(const std::vector<nccl_call>& nccl_calls,
                                                    const deferred_calls& late_calls,
                                                    std::vector<message_plan>& plans) {
  const auto is_elsewhere = [&](const message_plan& each) {
    return each.messages.front().communicator->device() !=
           plans.front().messages.front().communicator->device();
  };
  if (nccl_calls.empty() || std::ranges::any_of(plans, is_elsewhere)) return {};
  const auto late = std::ranges::stable_partition(plans, [&](const message_plan& each) {
    return each.is_before(nccl_calls) && !each.depends_on(late_calls);
  });
  std::vector<message_plan> early(plans.begin(), late.begin());
  plans.erase(plans.begin(), late.begin());
  return early;
}

// Executes messages as one NCCL group.
int run_in_nccl(const grouped_messages& messages) {
  for (const grouped_message& each : messages)
    if (const int code = each.communicator->order().begin_call(each.operation.stream, call_owner::nccl);
        code != native_success)
      return code;
  int code = real_nccl().group_start();
  if (code != native_success) return code;
  for (const grouped_message& each : messages)
    if (code == native_success) code = issue_to_nccl(each);
  const int end_code = call_nccl(real_nccl().group_end);
  if (code == native_success) code = end_code;
  if (code == native_success) end_calls(messages, call_owner::nccl);
  return code;
}

// All streams of a communicator wait for its last message, as in NCCL.
int join_streams(const message_plan& plan) {
  for (const grouped_message& each : plan.messages)
    if (const int code = each.communicator->order().begin_call(each.operation.stream, call_owner::isthmus);
        code != native_success)
      return code;
  return native_success;
}

int run_messages(const std::vector<message_plan>& plans) {
  std::set<int> phases;
  for (const message_plan& plan : plans) phases.insert(plan.phases.begin(), plan.phases.end());
  int code = native_success;
  for (const int phase : phases) {
    deferred_calls handled;
    grouped_messages passed;
    for (const message_plan& plan : plans)
      for (std::size_t i = 0; i < plan.messages.size(); ++i) {
        const grouped_message& each = plan.messages[i];
        if (plan.phases[i] != phase) continue;
        if (each.decision.is_handled)
          handled.push_back({each.communicator, each.operation, each.decision.counter});
        else
          passed.push_back(each);
      }
    if (code == native_success && !handled.empty()) code = run_as_group(handled);
    if (code == native_success && !passed.empty()) code = run_in_nccl(passed);
  }
  for (const message_plan& plan : plans)
    if (code == native_success) code = join_streams(plan);
  return code;
}

}  // namespace

bool is_in_group() { return current_group().depth > 0; }

// Enqueue the ordering work now, because this call starts at the end of the group, while NCCL's own group is
// still open. If the communicator already has an NCCL call in this group, this call is ordered after the end
// of NCCL's group.
int add_to_group(attached_communicator& communicator, const isthmus_operation& operation,
                 preload::call_counter* counter) {
  group_state& group = current_group();
  const bool is_late = std::ranges::any_of(
      group.nccl_calls, [&](const nccl_call& call) { return call.communicator == &communicator; });
  const int code =
      is_late ? native_success : communicator.order().begin_call(operation.stream, call_owner::isthmus);
  if (code == native_success) group.deferred.push_back({&communicator, operation, counter});
  return code;
}

int add_to_group(const grouped_message& message) {
  if (!message.decision.is_handled) {
    count_passed_through(message.operation.collective, message.decision.reason);
    record_nccl_call(*message.communicator, message.operation.stream);
  }
  group_state& group = current_group();
  group.messages.push_back(message);
  group.messages.back().nccl_calls_before = group.nccl_calls.size();
  return native_success;
}

void record_nccl_call(attached_communicator& communicator, native_stream stream) {
  group_state& group = current_group();
  const nccl_call added{&communicator, stream, group.deferred.size()};
  // An alltoall composed of messages has two calls per rank; one event after all of them is enough.
  if (group.nccl_calls.empty() || group.nccl_calls.back() != added) group.nccl_calls.push_back(added);
}

void add_to_group(const pending_communicator& pending) { current_group().creations.push_back(pending); }

int start_group() {
  const int code = real_nccl().group_start();
  if (code == native_success) ++current_group().depth;
  return code;
}

int end_group() {
  group_state& group = current_group();
  if (group.depth > 0) --group.depth;
  if (group.depth > 0) return real_nccl().group_end();
  auto deferred = std::exchange(group.deferred, {});
  auto messages = std::exchange(group.messages, {});
  std::vector<message_plan> plans = extract_plans(messages);
  int order_status = native_success;
  for (const grouped_message& each : messages)
    if (order_status == native_success) order_status = issue_to_nccl(each);
  messages.clear();
  group.messages = std::move(messages);  // reuse the memory in the next group
  auto nccl_calls = std::exchange(group.nccl_calls, {});
  const auto creations = std::exchange(group.creations, {});
  int early = run_in_order(extract_calls_before_nccl(nccl_calls, deferred));
  const std::vector<message_plan> early_plans = extract_plans_before_nccl(nccl_calls, deferred, plans);
  if (early == native_success) early = run_messages(early_plans);
  for (const nccl_call& call : nccl_calls)
    if (order_status == native_success)
      order_status = call.communicator->order().begin_call(call.stream, call_owner::nccl);
  const int end_status = call_nccl(real_nccl().group_end);
  const int code = order_status != native_success ? order_status : end_status;
  if (end_status == native_success)
    for (const nccl_call& call : nccl_calls) call.communicator->order().end_call(call.stream, call_owner::nccl);
  nccl_calls.clear();
  group.nccl_calls = std::move(nccl_calls);  // reuse the memory in the next group
  if (code != native_success) return code;
  if (!creations.empty()) attach_all(creations.data(), creations.size());
  const int late = run_in_order(deferred);
  if (early != native_success || late != native_success) return early != native_success ? early : late;
  return run_messages(plans);
}

int simulate_group_end(void* estimate) {
  group_state& group = current_group();
  if (group.depth > 0) --group.depth;
  if (group.depth == 0) {
    for (const grouped_message& each : group.messages) issue_to_nccl(each);
    group = {};
  }
  return call_nccl([&] { return real_nccl().group_simulate_end(estimate); });
}

}  // namespace isthmus::nccl_shim
