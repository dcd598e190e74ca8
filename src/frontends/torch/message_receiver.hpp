// Receives the messages of all tags from one rank over one connection on the host.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "executors.hpp"

namespace isthmus::torch_backend {

// The thread reads the next message while some receive call waits for its message. It gives each message to the first
// call with its tag and stores messages that no call has requested yet, so that calls complete in any order of tags.
class message_receiver final : public host_executor {
 public:
  message_receiver(std::shared_ptr<device_endpoint> endpoint, milliseconds timeout, int source);
  ~message_receiver() override { end(); }

  // `task` comes from tasks::host_receive.
  work_ptr run(collective_task task) override;

 private:
  struct request {
    std::int64_t tag;
    at::Tensor data;
    c10::intrusive_ptr<host_work> work;
  };
  // A message that arrived before its call.
  struct stored_message {
    message_packet header;
    at::Tensor content;  // see receive_content
    bool is_complete = false;
    std::optional<request> receiver;  // a call that waits until the message is complete
  };

  void perform(const queued_task& job) noexcept override;
  bool is_waiting(const host_work& work);
  void receive_next();
  std::optional<request> take_request(std::int64_t tag);
  void receive_into(const request& call, const message_packet& header, const at::Tensor& packet);
  void complete(std::list<stored_message>::iterator stored);
  at::Tensor receive_content(const message_packet& header, const at::Tensor& packet);
  void deliver(const request& call, const message_packet& header, const at::Tensor& content) const noexcept;
  static bool matches(const request& call, const message_packet& header);
  void check_matches(const request& call, const message_packet& header) const;
  void fail_all(const std::exception_ptr& failure) noexcept;

  const int m_source;        // rank in the group
  std::mutex m_match_mutex;  // guards the following members
  std::deque<request> m_requests;
  std::list<stored_message> m_stored;
};

}  // namespace isthmus::torch_backend
