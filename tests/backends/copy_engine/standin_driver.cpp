#include "standin_driver.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "base/error.hpp"
#include "standins/reduction.hpp"

namespace copy_engine_test {

using namespace isthmus;
using namespace std::chrono_literals;

namespace {

std::atomic_ref<std::uint32_t> word_at(std::uint32_t* word) { return std::atomic_ref<std::uint32_t>(*word); }

void run_word_step(const word_step& step, const std::atomic<bool>& stop) {
  if (step.action == word_action::write) {
    word_at(step.word).store(step.value, std::memory_order_release);
    return;
  }
  for (int spins = 0; word_at(step.word).load(std::memory_order_acquire) != step.value && !stop; ++spins)
    if (spins > 200) std::this_thread::sleep_for(20us);
}

}  // namespace

void standin_driver::fail_unexpected_call() {
  throw std::logic_error("the copy engine backend must not call this function");
}

// ---- queues -------------------------------------------------------------------------------------------

standin_driver::queue::queue(const driver_behavior& behavior, std::uint64_t seed)
    : m_delay_us(behavior.delay_us), m_random(behavior.seed * 1000003 + seed), m_thread([this] { run(); }) {}

standin_driver::queue::~queue() {
  {
    const std::lock_guard lock(m_mutex);
    m_stop = true;
  }
  m_changed.notify_all();
  m_thread.join();
}

void standin_driver::queue::push(command work) {
  {
    const std::lock_guard lock(m_mutex);
    m_commands.push_back(std::move(work));
  }
  m_changed.notify_all();
}

void standin_driver::queue::drain() {
  std::unique_lock lock(m_mutex);
  m_changed.wait(lock, [&] { return m_commands.empty() && !m_busy; });
}

void standin_driver::queue::run() {
  std::unique_lock lock(m_mutex);
  while (true) {
    m_changed.wait(lock, [&] { return m_stop || !m_commands.empty(); });
    if (m_stop) return;
    const command work = std::move(m_commands.front());
    m_commands.pop_front();
    m_busy = true;
    lock.unlock();
    if (m_delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(m_random() % m_delay_us));
    work(m_stop);
    lock.lock();
    m_busy = false;
    m_changed.notify_all();
  }
}

// ---- the driver ---------------------------------------------------------------------------------------

standin_driver::standin_driver(int devices, driver_behavior behavior)
    : m_devices(devices), m_behavior(behavior) {
  for (int device = 0; device < devices; ++device) {
    m_device_queues.push_back(std::make_shared<queue>(behavior, m_next++));
    m_null_streams.push_back(std::make_unique<stream>(stream{m_device_queues.back()}));
  }
}

standin_driver::~standin_driver() = default;

void standin_driver::count_call() {
  if (m_calls_left.load() < 0) return;
  if (m_calls_left.fetch_sub(1) == 0)
    throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, "an injected fault of the driver", "none", 719);
}

standin_driver::stream& standin_driver::stream_of(int device, native_stream handle) {
  if (handle == nullptr) return *m_null_streams.at(static_cast<std::size_t>(device));
  return *m_streams.at(handle);
}

void standin_driver::push(int device, native_stream stream, command work) {
  count_call();
  ++m_commands;
  const std::lock_guard lock(m_mutex);
  if (m_captured.contains(stream))
    m_graph.push_back(std::move(work));
  else
    stream_of(device, stream).work->push(std::move(work));
}

void* standin_driver::allocate_host(std::uint64_t bytes) {
  void* pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(pointer, 0x5a, bytes);
  return pointer;
}

void standin_driver::free_host(void* pointer) { std::free(pointer); }

native_stream standin_driver::create_stream(int device, stream_priority priority) {
  count_call();
  const std::lock_guard lock(m_mutex);
  const auto handle = reinterpret_cast<native_stream>(m_next++);
  const bool shared = m_behavior.one_queue && priority == stream_priority::normal;
  m_streams[handle] =
      std::make_unique<stream>(stream{shared ? m_device_queues.at(static_cast<std::size_t>(device))
                                             : std::make_shared<queue>(m_behavior, m_next)});
  return handle;
}

void standin_driver::destroy_stream(int, native_stream stream) {
  const std::lock_guard lock(m_mutex);
  m_streams.erase(stream);
}

void standin_driver::synchronize(int device, native_stream stream) {
  std::shared_ptr<queue> work;
  {
    const std::lock_guard lock(m_mutex);
    work = stream_of(device, stream).work;
  }
  work->drain();
}

bool standin_driver::is_capturing(int, native_stream stream) {
  const std::lock_guard lock(m_mutex);
  return m_captured.contains(stream);
}

native_event standin_driver::create_event(int) {
  const std::lock_guard lock(m_mutex);
  const auto handle = reinterpret_cast<native_event>(m_next++);
  m_events[handle] = std::make_unique<event>();
  return handle;
}

void standin_driver::destroy_event(native_event event) {
  const std::lock_guard lock(m_mutex);
  m_events.erase(event);
}

void standin_driver::record(int device, native_event handle, native_stream stream) {
  const std::lock_guard lock(m_mutex);
  event& item = *m_events.at(handle);
  item.captured = m_captured.contains(stream);
  if (item.captured) return;  // a captured graph is executed in issue order
  item.is_reached = std::make_shared<std::atomic<bool>>(false);
  push(device, stream, [is_reached = item.is_reached](const auto&) { *is_reached = true; });
}

void standin_driver::wait(int device, native_stream stream, native_event handle) {
  const std::lock_guard lock(m_mutex);
  const event& item = *m_events.at(handle);
  if (item.captured) {
    m_captured.insert(stream);
    return;
  }
  if (m_captured.contains(stream))
    throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, "a captured stream waits for an event outside", "",
                     904);
  push(device, stream, [is_reached = item.is_reached](const std::atomic<bool>& stop) {
    while (!*is_reached && !stop) std::this_thread::sleep_for(10us);
  });
}

bool standin_driver::is_done(native_event handle) {
  const std::lock_guard lock(m_mutex);
  return *m_events.at(handle)->is_reached;
}

void standin_driver::copy(int device, std::span<const device_copy> copies, native_stream stream) {
  m_copies += static_cast<int>(copies.size());
  push(device, stream, [this, list = std::vector<device_copy>(copies.begin(), copies.end())](const auto&) {
    if (on_copies) on_copies(list.size(), false);
    // Copies are unordered, so run them in reverse.
    for (auto item = list.rbegin(); item != list.rend(); ++item)
      std::memcpy(item->destination, item->source, item->bytes);
    if (on_copies) on_copies(list.size(), true);
  });
}

void standin_driver::enqueue_words(int device, std::span<const word_step> steps, native_stream stream) {
  push(device, stream,
       [list = std::vector<word_step>(steps.begin(), steps.end())](const std::atomic<bool>& stop) {
         for (const word_step& step : list) run_word_step(step, stop);
       });
}

std::string standin_compiler::compile(device_driver&, int, const kernel_source& source) {
  ++compiled;
  std::string code;
  for (const std::string& definition : source.definitions)
    code += definition.substr(definition.find('=') + 1) + ' ';
  return code;
}

native_kernel standin_driver::load_kernel(int, const std::string& code, const char*) {
  count_call();
  const std::lock_guard lock(m_mutex);
  m_kernels.push_back(code);
  return &m_kernels.back();
}

void standin_driver::launch(int device, native_kernel kernel, unsigned, unsigned, std::span<void*> arguments,
                            native_stream stream) {
  const auto arguments_copy = *static_cast<const copy_engine::reduction_arguments*>(arguments[0]);
  std::string datatype, op;
  std::istringstream(*static_cast<const std::string*>(kernel)) >> datatype >> op;
  push(device, stream, [=](const auto&) { standin::reduce(arguments_copy, datatype, op); });
}

// ---- for tests ----------------------------------------------------------------------------------------

void standin_driver::begin_capture(native_stream stream) {
  const std::lock_guard lock(m_mutex);
  m_captured = {stream};
  m_graph.clear();
}

standin_driver::graph standin_driver::end_capture() {
  const std::lock_guard lock(m_mutex);
  m_captured.clear();
  for (auto& [handle, item] : m_events) item->captured = false;
  return std::move(m_graph);
}

void standin_driver::launch(const graph& captured, native_stream stream) {
  const std::lock_guard lock(m_mutex);
  for (const command& item : captured) stream_of(0, stream).work->push(item);
}

void standin_driver::run_on(native_stream stream, command work) { push(0, stream, std::move(work)); }

}  // namespace copy_engine_test
