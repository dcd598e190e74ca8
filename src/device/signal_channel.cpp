#include "device/signal_channel.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "failure/wait.hpp"

namespace isthmus {
namespace {

constexpr std::chrono::milliseconds brief_wait{20};
constexpr std::chrono::microseconds poll_interval{20};
constexpr std::size_t max_streams = 16;  // of a monitor

}  // namespace

signal_channel::signal_channel(std::span<void* const> blocks, const layout& flag_layout)
    : m_layout(flag_layout) {
  for (void* block : blocks) m_blocks.push_back(static_cast<std::uint32_t*>(block));
}

signal_monitor::signal_monitor(device_driver& driver, int device, std::size_t words,
                               std::initializer_list<stream_priority> priorities)
    : m_driver(driver),
      m_device(device),
      m_done(driver, device),
      m_copy(driver, words * sizeof(std::uint32_t)) {
  std::memset(m_copy.get(), 0, words * sizeof(std::uint32_t));
  for (const stream_priority priority : priorities) m_streams.emplace_back(driver, device, priority);
}

void signal_monitor::attach(const signal_channel& channel, int rank) {
  m_channel = &channel;
  m_rank = rank;
}

bool signal_monitor::read() {
  const device_copy request{m_copy, m_channel->block(m_rank), m_channel->words() * sizeof(std::uint32_t)};
  m_driver.copy(m_device, {&request, 1}, m_streams.front());
  return wait_briefly();
}

// Streams of one priority are assigned to the hardware queues in turn, so one of the next streams is not stuck.
void signal_monitor::add_stream() {
  if (m_streams.size() >= max_streams) return;
  const auto priority = m_streams.size() % 2 == 0 ? stream_priority::high : stream_priority::normal;
  m_streams.emplace_front(m_driver, m_device, priority);
}

std::uint32_t signal_monitor::acknowledgement(std::size_t slot, int peer) const {
  return static_cast<const std::uint32_t*>(m_copy.get())[m_channel->acknowledgement_offset(slot, peer)];
}

std::uint32_t signal_monitor::ready(std::size_t slot, int peer) const {
  return static_cast<const std::uint32_t*>(m_copy.get())[m_channel->ready_offset(slot, peer)];
}

std::uint32_t signal_monitor::aborted_peer() const {
  return static_cast<const std::uint32_t*>(m_copy.get())[m_channel->abort_word_offset()];
}

void signal_monitor::write(std::span<const word_step> steps) {
  if (steps.empty()) return;
  for (const owned_stream& stream : m_streams) m_driver.enqueue_words(m_device, steps, stream);
}

bool signal_monitor::write_and_wait(std::span<const word_step> steps) {
  write(steps);
  std::vector<owned_event> ends;
  for (const owned_stream& stream : m_streams)
    m_driver.record(m_device, ends.emplace_back(m_driver, m_device), stream);
  const auto is_written = [&] {
    return std::ranges::any_of(ends, [&](const owned_event& end) { return m_driver.is_done(end); });
  };
  if (poll_until(is_written, deadline_after(brief_wait), poll_interval)) return true;
  add_stream();
  return false;
}

void signal_monitor::synchronize() {
  for (const owned_stream& stream : m_streams) m_driver.synchronize(m_device, stream);
}

void signal_monitor::notify_abort() {
  const std::uint32_t first = aborted_peer();
  const std::uint32_t word = first == 0 ? static_cast<std::uint32_t>(m_rank) + 1 : first;
  std::vector<word_step> steps;
  for (int peer = 0; peer < m_channel->size(); ++peer)
    if (peer != m_rank && static_cast<std::uint32_t>(peer) + 1 != word)  // not to the rank that aborted first
      steps.push_back({word_action::write, m_channel->abort_word(peer), word});
  write(steps);
}

bool signal_monitor::wait_briefly() {
  m_driver.record(m_device, m_done, m_streams.front());
  return poll_until([&] { return m_driver.is_done(m_done); }, deadline_after(brief_wait), poll_interval);
}

}  // namespace isthmus
