#include "message_receiver.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "tasks.hpp"

namespace isthmus::torch_backend {
namespace {

bool has_rest(const message_packet& header) { return header.bytes > message_packet::data_bytes; }

owned_operation receive_operation(void* buffer, std::uint64_t bytes) {
  owned_operation result;
  result.operation.collective = ISTHMUS_RECV;
  result.operation.datatype = ISTHMUS_UINT8;
  result.operation.root = 0;  // the sender is rank 0 of the pair
  result.operation.count = bytes;
  result.operation.recv_buf = buffer;
  return result;
}

}  // namespace

message_receiver::message_receiver(std::shared_ptr<device_endpoint> endpoint, milliseconds timeout, int source)
    : host_executor(std::move(endpoint), timeout), m_source(source) {}

work_ptr message_receiver::run(collective_task task) {
  request call{task.tag, task.outputs.front(), {}};
  call.work = c10::make_intrusive<host_work>(m_endpoint->settings().rank, task, m_endpoint, m_timeout);
  std::optional<stored_message> arrived;
  {
    const std::lock_guard lock(m_match_mutex);
    const auto stored = std::find_if(m_stored.begin(), m_stored.end(), [&](const stored_message& each) {
      return each.header.tag == call.tag && !each.receiver;
    });
    if (stored == m_stored.end()) {
      m_requests.push_back(call);
    } else if (!stored->is_complete) {
      stored->receiver = call;
      return call.work;
    } else {
      arrived = std::move(*stored);
      m_stored.erase(stored);
    }
  }
  if (arrived)
    deliver(call, arrived->header, arrived->content);
  else
    enqueue({collective_task{}, call.work});
  return call.work;
}

// Reads messages until the call is complete. An earlier call may have read its message.
void message_receiver::perform(const queued_task& job) noexcept {
  try {
    while (is_waiting(*job.work)) receive_next();
  } catch (...) {
    fail_all(std::current_exception());
  }
}

bool message_receiver::is_waiting(const host_work& work) {
  const std::lock_guard lock(m_match_mutex);
  return std::any_of(m_requests.begin(), m_requests.end(),
                     [&](const request& each) { return each.work.get() == &work; });
}

void message_receiver::receive_next() {
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor packet = at::empty({sizeof(message_packet)}, at::kByte);
  owned_operation operation = receive_operation(packet.data_ptr(), sizeof(message_packet));
  operation.is_reported = false;
  m_endpoint->launch({operation}, nullptr);
  message_packet header;
  std::memcpy(&header, packet.const_data_ptr(), sizeof header);
  if (!has_rest(header)) {
    operation.is_reported = true;
    operation.reported_bytes = header.bytes;
    m_endpoint->report(operation, std::chrono::steady_clock::now() - start);
  }
  std::optional<request> call;
  std::list<stored_message>::iterator stored;
  {
    const std::lock_guard lock(m_match_mutex);
    call = take_request(header.tag);
    if (!call) stored = m_stored.insert(m_stored.end(), stored_message{header, packet, false, std::nullopt});
  }
  if (call)
    receive_into(*call, header, packet);
  else
    complete(stored);
}

// Must be called with the lock.
std::optional<message_receiver::request> message_receiver::take_request(std::int64_t tag) {
  const auto match =
      std::find_if(m_requests.begin(), m_requests.end(), [&](const request& each) { return each.tag == tag; });
  if (match == m_requests.end()) return std::nullopt;
  request result = std::move(*match);
  m_requests.erase(match);
  return result;
}

// Receives directly into the tensor of the call if its memory has the layout of the message.
void message_receiver::receive_into(const request& call, const message_packet& header,
                                    const at::Tensor& packet) {
  try {
    const bool is_direct = has_rest(header) && matches(call, header) && tasks::is_row_major(call.data);
    if (!is_direct) return deliver(call, header, receive_content(header, packet));
    m_endpoint->launch({receive_operation(call.data.data_ptr(), header.bytes)}, nullptr);
  } catch (...) {
    call.work->complete(std::current_exception());
    throw;
  }
  call.work->complete(nullptr);
}

// Receives a message that no call has requested yet.
void message_receiver::complete(std::list<stored_message>::iterator stored) {
  const message_packet header = stored->header;
  const at::Tensor content = receive_content(header, stored->content);
  std::optional<request> call;
  {
    const std::lock_guard lock(m_match_mutex);
    call = std::move(stored->receiver);
    stored->content = content;
    stored->is_complete = true;
    if (call) m_stored.erase(stored);
  }
  if (call) deliver(*call, header, content);
}

// Returns the tensor that holds the data of a message: its packet or, if the data did not fit, only the data.
at::Tensor message_receiver::receive_content(const message_packet& header, const at::Tensor& packet) {
  if (!has_rest(header)) return packet;
  const at::Tensor data = at::empty({static_cast<int64_t>(header.bytes)}, at::kByte);
  m_endpoint->launch({receive_operation(data.data_ptr(), header.bytes)}, nullptr);
  return data;
}

void message_receiver::deliver(const request& call, const message_packet& header,
                               const at::Tensor& content) const noexcept {
  std::exception_ptr failure;
  try {
    check_matches(call, header);
    const std::size_t offset = has_rest(header) ? 0 : offsetof(message_packet, data);
    std::byte* const source = static_cast<std::byte*>(content.data_ptr()) + offset;
    const at::Tensor target = call.data;
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    if (tasks::is_row_major(target))
      std::copy_n(source, header.bytes, static_cast<std::byte*>(target.data_ptr()));
    else
      target.copy_(at::from_blob(source, target.sizes(), target.options()));
  } catch (...) {
    failure = std::current_exception();
  }
  call.work->complete(failure);
}

bool message_receiver::matches(const request& call, const message_packet& header) {
  return header.bytes == call.data.nbytes() &&
         header.type == static_cast<std::int32_t>(call.data.scalar_type());
}

void message_receiver::check_matches(const request& call, const message_packet& header) const {
  if (matches(call, header)) return;
  const auto type = static_cast<at::ScalarType>(header.type);
  C10_THROW_ERROR(DistBackendError,
                  c10::str("isthmus: recv: the message of rank ", m_source, " with tag ", header.tag, " has ",
                           header.bytes, " bytes of ", type, "; the tensor has ", call.data.nbytes(),
                           " bytes of ", call.data.scalar_type(),
                           " (pass a tensor with the dtype and number of elements that the sender passes)"));
}

void message_receiver::fail_all(const std::exception_ptr& failure) noexcept {
  std::deque<request> calls;
  {
    const std::lock_guard lock(m_match_mutex);
    calls.swap(m_requests);
    for (auto each = m_stored.begin(); each != m_stored.end();) {
      if (each->receiver) calls.push_back(*each->receiver);
      each = each->is_complete ? std::next(each) : m_stored.erase(each);
    }
  }
  for (const request& call : calls) call.work->complete(failure);
}

}  // namespace isthmus::torch_backend
