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

std::atomic<int> half_way_code{0};

namespace {

struct transfer {
  char* data;
  std::size_t left;
};

// All requests of one launch: transfers in both directions, then what is done with what arrived.
class job {
 public:
  job(communicator& comm, std::vector<request> requests) : m_comm(comm), m_requests(std::move(requests)) {
    const std::lock_guard lock(comm.turn_mutex);
    m_ticket = comm.next_ticket++;
  }
  std::vector<void*> streams() const;
  void wait_for_streams(std::size_t others);
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
  void reduction(const request& call, bool sends, bool receives, bool scattered);
  bool progress();

  communicator& m_comm;
  std::vector<request> m_requests;
  std::uint64_t m_ticket;
  std::map<int, std::deque<transfer>> m_out, m_in;
  std::vector<std::function<void()>> m_finish;
  std::deque<std::vector<char>> m_scratch;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_arrived = 0;
  bool m_done = false;
};

std::vector<void*> job::streams() const {
  std::vector<void*> distinct;
  for (const request& call : m_requests)
    if (std::find(distinct.begin(), distinct.end(), call.stream) == distinct.end())
      distinct.push_back(call.stream);
  return distinct;
}

void job::arrive() {
  const std::lock_guard lock(m_mutex);
  ++m_arrived;
  m_changed.notify_all();
}

void job::wait_for_streams(std::size_t others) {
  std::unique_lock lock(m_mutex);
  m_changed.wait(lock, [&] { return m_arrived >= others; });
}

void job::wait_until_done() {
  std::unique_lock lock(m_mutex);
  m_changed.wait(lock, [&] { return m_done; });
}

// Contributions of all ranks meet in scratch memory; each rank combines them in rank order.
void job::reduction(const request& call, bool sends, bool receives, bool scattered) {
  const std::size_t bytes = call.count * element_bytes(call.datatype);
  for (int peer = 0; peer < m_comm.size && sends; ++peer)
    if (call.what != kind::reduce || peer == call.root)
      send_to(peer, call.send + (scattered ? static_cast<std::size_t>(peer) * bytes : 0), bytes);
  if (!receives) return;
  m_scratch.emplace_back(bytes * static_cast<std::size_t>(m_comm.size));
  char* const all = m_scratch.back().data();
  for (int peer = 0; peer < m_comm.size; ++peer)
    recv_from(peer, all + static_cast<std::size_t>(peer) * bytes, bytes);
  m_finish.push_back(
      [this, call, all] { combine(all, m_comm.size, call.count, call.datatype, call.op, call.recv); });
}

void job::prepare(const request& call) {
  const std::size_t bytes = call.count * element_bytes(call.datatype);
  const bool root = m_comm.rank == call.root;
  const auto block = [bytes](auto* base, int peer) { return base + static_cast<std::size_t>(peer) * bytes; };
  switch (call.what) {
    case kind::all_reduce: return reduction(call, true, true, false);
    case kind::reduce: return reduction(call, true, root, false);
    case kind::reduce_scatter: return reduction(call, true, true, true);
    case kind::send: return send_to(call.root, call.send, bytes);
    case kind::recv: return recv_from(call.root, call.recv, bytes);
    case kind::broadcast:
      for (int peer = 0; peer < m_comm.size && root; ++peer)
        if (peer != m_comm.rank) send_to(peer, call.send, bytes);
      if (!root) recv_from(call.root, call.recv, bytes);
      if (root) m_finish.push_back([=] { std::memmove(call.recv, call.send, bytes); });
      return;
    case kind::all_gather:
      for (int peer = 0; peer < m_comm.size; ++peer) {
        if (peer == m_comm.rank) continue;
        send_to(peer, call.send, bytes);
        recv_from(peer, block(call.recv, peer), bytes);
      }
      m_finish.push_back([=, this] { std::memmove(block(call.recv, m_comm.rank), call.send, bytes); });
      return;
    case kind::all_to_all:
      for (int peer = 0; peer < m_comm.size; ++peer) {
        send_to(peer, block(call.send, peer), bytes);
        recv_from(peer, block(call.recv, peer), bytes);
      }
      return;
    case kind::gather:
      send_to(call.root, call.send, bytes);
      for (int peer = 0; peer < m_comm.size && root; ++peer) recv_from(peer, block(call.recv, peer), bytes);
      return;
    case kind::scatter:
      for (int peer = 0; peer < m_comm.size && root; ++peer) send_to(peer, block(call.send, peer), bytes);
      recv_from(call.root, call.recv, bytes);
      return;
  }
}

// One round over all wires; true when something moved.
bool job::progress() {
  bool moved = false;
  const auto drain = [&](std::deque<transfer>& queue, auto&& move) {
    while (!queue.empty()) {
      transfer& next = queue.front();
      const std::size_t bytes = move(next);
      next.data += bytes;
      next.left -= bytes;
      moved = moved || bytes != 0;
      if (next.left != 0) return;
      queue.pop_front();
    }
  };
  for (auto& [peer, queue] : m_out)
    drain(queue, [&, to = peer](transfer& next) {
      return m_comm.wires->wire(m_comm.rank, to).put(next.data, next.left);
    });
  for (auto& [peer, queue] : m_in)
    drain(queue, [&, from = peer](transfer& next) {
      return m_comm.wires->wire(from, m_comm.rank).take(next.data, next.left);
    });
  std::erase_if(m_out, [](const auto& item) { return item.second.empty(); });
  std::erase_if(m_in, [](const auto& item) { return item.second.empty(); });
  return moved;
}

void job::run() {
  const auto stop = [this] { return m_comm.abort_flag->load(); };
  {
    std::unique_lock lock(m_comm.turn_mutex);
    while (m_comm.serving != m_ticket && !stop())
      m_comm.turn_changed.wait_for(lock, std::chrono::milliseconds(5));
  }
  for (const request& call : m_requests) prepare(call);
  const int broken = half_way_code.exchange(0);
  // Whoever waits long leaves the cores to those that it waits for.
  constexpr int looks_before_naps = 200;
  for (int idle = 0; broken == 0 && !stop() && !(m_out.empty() && m_in.empty());) {
    idle = progress() ? 0 : idle + 1;
    if (idle > looks_before_naps)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    else if (idle > 0)
      std::this_thread::yield();
  }
  if (broken != 0) m_comm.asynchronous = broken;
  if (broken == 0 && !stop())
    for (const auto& finish : m_finish) finish();
  {
    const std::lock_guard lock(m_comm.turn_mutex);
    if (m_comm.serving <= m_ticket) m_comm.serving = m_ticket + 1;
    m_comm.turn_changed.notify_all();
  }
  const std::lock_guard lock(m_mutex);
  m_done = true;
  m_changed.notify_all();
}

using shared_job = std::shared_ptr<job>;

// Submits a task that owns its share of the job.
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

void launch(communicator& comm, std::vector<request> requests) {
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

bool exchange(communicator& comm, const void* mine, void* all, std::size_t bytes) {
  for (int peer = 0; peer < comm.size; ++peer) {
    const char* from = static_cast<const char*>(mine);
    for (std::size_t sent = 0; sent < bytes;
         sent += comm.wires->wire(comm.rank, peer).put(from + sent, bytes - sent))
      if (comm.abort_flag->load()) return false;
  }
  for (int peer = 0; peer < comm.size; ++peer) {
    char* to = static_cast<char*>(all) + static_cast<std::size_t>(peer) * bytes;
    for (std::size_t taken = 0; taken < bytes;
         taken += comm.wires->wire(peer, comm.rank).take(to + taken, bytes - taken))
      if (comm.abort_flag->load()) return false;
  }
  return true;
}

}  // namespace standin
