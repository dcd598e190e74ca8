#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>

#include "arithmetic.hpp"
#include "standin.h"

namespace standin {

std::atomic<int> partial_failure_code{0};

namespace {

struct pending_bytes {
  char* data;
  std::size_t remaining;
};

// All requests of one launch: transfers in both directions, then the work on received data.
class job {
 public:
  job(standin_comm& comm, std::vector<request> requests) : m_comm(comm), m_requests(std::move(requests)) {
    const std::lock_guard lock(comm.ticket_mutex);
    m_ticket = comm.next_ticket++;
  }
  std::vector<void*> streams() const;
  void wait_for_streams(std::size_t other_ranks);
  void arrive();
  void wait_until_done();
  void run();

 private:
  void prepare(const request& call);
  void send_to(int peer, const char* data, std::size_t bytes) {
    if (bytes != 0) m_out[peer].push_back({const_cast<char*>(data), bytes});
  }
  void recv_from(int peer, char* data, std::size_t bytes) {
    if (bytes != 0) m_in[peer].push_back({data, bytes});
  }
  void add_reduction(const request& call, bool sends, bool receives, bool is_scattered);
  bool progress();

  standin_comm& m_comm;
  std::vector<request> m_requests;
  std::uint64_t m_ticket;
  std::map<int, std::deque<pending_bytes>> m_out, m_in;
  std::vector<std::function<void()>> m_on_arrival;
  std::deque<std::vector<char>> m_scratch;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_arrivals = 0;
  bool m_done = false;
};

std::vector<void*> job::streams() const {
  std::vector<void*> unique_streams;
  for (const request& call : m_requests)
    if (std::find(unique_streams.begin(), unique_streams.end(), call.stream) == unique_streams.end())
      unique_streams.push_back(call.stream);
  return unique_streams;
}

void job::arrive() {
  const std::lock_guard lock(m_mutex);
  ++m_arrivals;
  m_changed.notify_all();
}

void job::wait_for_streams(std::size_t other_ranks) {
  std::unique_lock lock(m_mutex);
  m_changed.wait(lock, [&] { return m_arrivals >= other_ranks; });
}

void job::wait_until_done() {
  std::unique_lock lock(m_mutex);
  m_changed.wait(lock, [&] { return m_done; });
}

// Each rank collects all contributions in scratch memory and combines them in rank order.
void job::add_reduction(const request& call, bool sends, bool receives, bool is_scattered) {
  const std::size_t bytes = call.count * element_bytes(call.datatype);
  for (int peer = 0; peer < m_comm.size && sends; ++peer)
    if (call.kind != collective_kind::reduce || peer == call.root)
      send_to(peer, call.send + (is_scattered ? static_cast<std::size_t>(peer) * bytes : 0), bytes);
  if (!receives) return;
  m_scratch.emplace_back(bytes * static_cast<std::size_t>(m_comm.size));
  char* const all = m_scratch.back().data();
  for (int peer = 0; peer < m_comm.size; ++peer)
    recv_from(peer, all + static_cast<std::size_t>(peer) * bytes, bytes);
  m_on_arrival.push_back(
      [this, call, all] { combine(all, m_comm.size, call.count, call.datatype, call.op, call.recv); });
}

void job::prepare(const request& call) {
  const std::size_t bytes = call.count * element_bytes(call.datatype);
  const bool root = m_comm.rank == call.root;
  const auto block = [bytes](auto* base, int peer) { return base + static_cast<std::size_t>(peer) * bytes; };
  switch (call.kind) {
    case collective_kind::all_reduce: return add_reduction(call, true, true, false);
    case collective_kind::reduce: return add_reduction(call, true, root, false);
    case collective_kind::reduce_scatter: return add_reduction(call, true, true, true);
    case collective_kind::send: return send_to(call.root, call.send, bytes);
    case collective_kind::recv: return recv_from(call.root, call.recv, bytes);
    case collective_kind::broadcast:
      for (int peer = 0; peer < m_comm.size && root; ++peer)
        if (peer != m_comm.rank) send_to(peer, call.send, bytes);
      if (!root) recv_from(call.root, call.recv, bytes);
      if (root) m_on_arrival.push_back([=] { std::memmove(call.recv, call.send, bytes); });
      return;
    case collective_kind::all_gather:
      for (int peer = 0; peer < m_comm.size; ++peer) {
        if (peer == m_comm.rank) continue;
        send_to(peer, call.send, bytes);
        recv_from(peer, block(call.recv, peer), bytes);
      }
      m_on_arrival.push_back([=, this] { std::memmove(block(call.recv, m_comm.rank), call.send, bytes); });
      return;
    case collective_kind::all_to_all:
      for (int peer = 0; peer < m_comm.size; ++peer) {
        send_to(peer, block(call.send, peer), bytes);
        recv_from(peer, block(call.recv, peer), bytes);
      }
      return;
    case collective_kind::gather:
      send_to(call.root, call.send, bytes);
      for (int peer = 0; peer < m_comm.size && root; ++peer) recv_from(peer, block(call.recv, peer), bytes);
      return;
    case collective_kind::scatter:
      for (int peer = 0; peer < m_comm.size && root; ++peer) send_to(peer, block(call.send, peer), bytes);
      recv_from(call.root, call.recv, bytes);
      return;
  }
}

// Polls all mailboxes once. Returns true if data moved.
bool job::progress() {
  bool has_moved = false;
  const auto move_queue = [&](std::deque<pending_bytes>& queue, auto&& move) {
    while (!queue.empty()) {
      pending_bytes& next = queue.front();
      const std::size_t bytes = move(next);
      next.data += bytes;
      next.remaining -= bytes;
      has_moved = has_moved || bytes != 0;
      if (next.remaining != 0) return;
      queue.pop_front();
    }
  };
  for (auto& [peer, queue] : m_out)
    move_queue(queue, [&, to = peer](pending_bytes& next) {
      return m_comm.boxes->box(m_comm.rank, to).put(next.data, next.remaining);
    });
  for (auto& [peer, queue] : m_in)
    move_queue(queue, [&, from = peer](pending_bytes& next) {
      return m_comm.boxes->box(from, m_comm.rank).take(next.data, next.remaining);
    });
  std::erase_if(m_out, [](const auto& item) { return item.second.empty(); });
  std::erase_if(m_in, [](const auto& item) { return item.second.empty(); });
  return has_moved;
}

void job::run() {
  const auto stop = [this] { return m_comm.abort_flag->load(); };
  {
    std::unique_lock lock(m_comm.ticket_mutex);
    while (m_comm.current_ticket != m_ticket && !stop())
      m_comm.ticket_changed.wait_for(lock, std::chrono::milliseconds(5));
  }
  for (const request& call : m_requests) prepare(call);
  const int failure_code = partial_failure_code.exchange(0);
  // After a long wait, sleep and leave the cores to the peers.
  constexpr int polls_before_sleep = 200;
  for (int idle = 0; failure_code == 0 && !stop() && !(m_out.empty() && m_in.empty());) {
    idle = progress() ? 0 : idle + 1;
    if (idle > polls_before_sleep)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    else if (idle > 0)
      std::this_thread::yield();
  }
  if (failure_code != 0) m_comm.async_error = failure_code;
  if (failure_code == 0 && !stop())
    for (const auto& finish : m_on_arrival) finish();
  {
    const std::lock_guard lock(m_comm.ticket_mutex);
    if (m_comm.current_ticket <= m_ticket) m_comm.current_ticket = m_ticket + 1;
    m_comm.ticket_changed.notify_all();
  }
  const std::lock_guard lock(m_mutex);
  m_done = true;
  m_changed.notify_all();
}

using shared_job = std::shared_ptr<job>;

// Submits a task that shares ownership of the job.
void submit(void* stream, const shared_job& work, void (*task)(job&)) {
  struct bound {
    shared_job work;
    void (*task)(job&);
  };
  standin_stream_submit(
      stream,
      [](void* argument) {
        const std::unique_ptr<bound> call(static_cast<bound*>(argument));
        call->task(*call->work);
      },
      new bound{work, task});
}

}  // namespace

void launch(standin_comm& comm, std::vector<request> requests) {
  const auto work = std::make_shared<job>(comm, std::move(requests));
  const std::vector<void*> streams = work->streams();
  for (std::size_t i = 1; i < streams.size(); ++i)
    submit(streams[i], work, [](job& shared) {
      shared.arrive();
      shared.wait_until_done();
    });
  submit(streams[0], work, [](job& shared) {
    shared.wait_for_streams(shared.streams().size() - 1);
    shared.run();
  });
}

bool exchange(standin_comm& comm, const void* own_data, void* all, std::size_t bytes) {
  for (int peer = 0; peer < comm.size; ++peer) {
    const char* from = static_cast<const char*>(own_data);
    for (std::size_t sent_bytes = 0; sent_bytes < bytes;
         sent_bytes += comm.boxes->box(comm.rank, peer).put(from + sent_bytes, bytes - sent_bytes))
      if (comm.abort_flag->load()) return false;
  }
  for (int peer = 0; peer < comm.size; ++peer) {
    char* to = static_cast<char*>(all) + static_cast<std::size_t>(peer) * bytes;
    for (std::size_t received_bytes = 0; received_bytes < bytes;
         received_bytes += comm.boxes->box(peer, comm.rank).take(to + received_bytes, bytes - received_bytes))
      if (comm.abort_flag->load()) return false;
  }
  return true;
}

}  // namespace standin
