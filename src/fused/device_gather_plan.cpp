#include "fused/device_gather_plan.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "fused/host_costs.hpp"
#include "runtime/error.hpp"
#include "runtime/exchange.hpp"
#include "runtime/log.hpp"

namespace isthmus::fused {
namespace {

// A stage is published in so many steps: peers fetch the first while the last is still being copied.
constexpr std::uint32_t stage_steps = 4;

}  // namespace

device_gather_plan::device_gather_plan(std::shared_ptr<communicator> owner, const problem& what,
                                       device_driver& driver, const cublaslt& library)
    : plan(std::move(owner), what),
      m_driver(driver),
      m_library(library),
      m_device(m_owner->ranks().device.ordinal),
      m_product(m_what, driver, m_device, library) {
  if (m_what.asked.lda != m_what.asked.k)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("fused_plan_create: lda = {} differs from k = {}", m_what.asked.lda, m_what.asked.k),
        "on devices the gathered A is dense");
  allocate();
  const int nodes = m_owner->ranks().nodes;
  const bool may_pipeline = m_what.size > 1 && m_what.shard_bytes() > 0 && nodes == 1 &&
                            m_what.asked.mode != ISTHMUS_FUSED_SEQUENTIAL;
  if (may_pipeline) {
    m_board.emplace(*m_owner, driver, m_what.shard_bytes());
    m_figures = measure();
  } else {
    m_figures.product_us = [](std::uint64_t rows) { return static_cast<double>(rows); };
    m_figures.source = "not asked";
  }
  m_order = make_schedule(m_what, m_figures);
  if (nodes > 1) m_order = without_shared_memory(m_what, m_order, nodes);
  agree_on_mode(*m_owner, m_order);
  if (!m_order.pipelined) {
    m_board.reset();
    return;
  }
  for (std::size_t index = 0; index < m_order.groups.size(); ++index) {
    m_arrived.push_back(driver.create_event(m_device));
    if (m_what.traces())
      m_marks.push_back({driver.create_timed_event(m_device), driver.create_timed_event(m_device),
                         driver.create_timed_event(m_device), driver.create_timed_event(m_device)});
  }
  m_sentinel.emplace(
      m_owner->timeout_s(),
      [this] {
        return m_driver.done(m_start) && !m_driver.done(m_finished) ? sentinel::state::running
                                                                    : sentinel::state::idle;
      },
      [this] { return m_owner->poisoned(); },
      [this](bool timed_out) {
        if (timed_out)
          m_owner->poison(
              make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                         fmt::format("fused_run: a run did not end within {:.1f} s: rank {} waits for rows, "
                                     "or for others to fetch its own",
                                     m_owner->timeout_s(), m_what.rank),
                         "a rank is late, hangs, or has ended; timeout_s bounds this wait")
                  .info());
        m_board->release_all();
      });
}

void device_gather_plan::allocate() {
  m_copy = {m_driver.create_stream(m_device, stream_priority::high), m_driver.create_event(m_device)};
  m_signal = {m_driver.create_stream(m_device, stream_priority::normal), m_driver.create_event(m_device)};
  m_start = m_driver.create_event(m_device);
  m_finished = m_driver.create_event(m_device);
  if (m_what.traces()) m_zero = m_driver.create_timed_event(m_device);
  // Recorded once, so that whoever asks has an answer before the first run.
  m_driver.record(m_device, m_start, m_copy.stream);
  m_driver.record(m_device, m_finished, m_copy.stream);
}

device_gather_plan::~device_gather_plan() {
  m_sentinel.reset();
  m_board.reset();
  for (const lane& each : {m_copy, m_signal}) {
    m_driver.destroy_stream(m_device, each.stream);
    m_driver.destroy_event(each.event);
  }
  for (const native_event event : m_arrived) m_driver.destroy_event(event);
  for (const marks& each : m_marks)
    for (const native_event event : {each.copy_begin, each.copy_end, each.product_begin, each.product_end})
      m_driver.destroy_event(event);
  for (const native_event event : {m_start, m_finished, m_zero})
    if (event != nullptr) m_driver.destroy_event(event);
  if (m_workspace != nullptr) m_driver.free(m_device, m_workspace);
}

void device_gather_plan::synchronize() {
  const auto begin = std::chrono::steady_clock::now();
  while (m_has_run && !m_driver.done(m_finished)) {
    const double waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    // The sentinel ends a run that is late, so twice the timeout means that the device itself hangs.
    if (waited_s > 2 * m_owner->timeout_s() + 10)
      throw make_error(
          ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
          fmt::format("fused: a run did not end in {:.0f} s, even after its waits were released", waited_s),
          "the device hangs; end the process");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (m_has_run) collect_marks();
}

void device_gather_plan::close() {
  m_sentinel.reset();
  m_driver.synchronize(m_device, m_signal.stream);
  m_driver.synchronize(m_device, m_copy.stream);
}

void device_gather_plan::describe(nlohmann::json& info) const {
  info["libraries"]["cublaslt"] = fmt::format("{} {}", m_library.path, m_library.get_version());
  info["libraries"]["driver"] = m_driver.version();
  info["workspace_bytes"] =
      m_workspace_bytes + m_product.workspace_bytes() + (m_board ? m_what.shard_bytes() : 0);
  if (m_staged)
    info["notes"].push_back(
        "A was outside the symmetric heap: its rows were copied into the plan's stage first");
}

void device_gather_plan::run(const isthmus_fused_arguments& with) {
  m_owner->check_alive();
  if (m_driver.is_capturing(m_device, with.stream))
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     "fused_run: the stream is being captured into a graph",
                     "every run has a number of its own, which a graph would repeat");
  if (!m_order.pipelined) return run_sequential(with);
  try {
    enqueue_run(with);
  } catch (const error& failure) {
    if (!m_owner->poisoned()) m_owner->poison(failure.info());
    throw;
  }
}

std::byte* device_gather_plan::gathered(const isthmus_fused_arguments& with) {
  if (with.gathered_a != nullptr) return static_cast<std::byte*>(with.gathered_a);
  if (m_workspace == nullptr) {
    m_workspace_bytes = std::max<std::uint64_t>(m_what.asked.m * row_bytes(), 1);
    m_workspace = m_driver.allocate(m_device, m_workspace_bytes);
  }
  return static_cast<std::byte*>(m_workspace);
}

void device_gather_plan::copy(void* to, const void* from, std::uint64_t bytes, native_stream stream) {
  const device_copy one{to, from, bytes};
  if (bytes > 0) m_driver.copy(m_device, {&one, 1}, stream);
}

void device_gather_plan::multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                                  const isthmus_fused_arguments& with) {
  m_product.enqueue(a, m_what.asked.k, rows, with.b,
                    static_cast<std::byte*>(with.c) + first_row * m_what.asked.ldc * m_what.output_bytes(),
                    {static_cast<float>(with.alpha), static_cast<float>(with.beta), with.bias}, with.stream);
}

// ---- sequential: the communicator's own allgather, then one product -----------------------------------

void device_gather_plan::run_sequential(const isthmus_fused_arguments& with) {
  const void* a = with.a;
  if (m_what.size > 1 || with.gathered_a != nullptr) {
    m_gathered = gathered(with);
    a = m_gathered;
    if (with.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_what.size == 1) {
      if (with.a != with.gathered_a) copy(m_gathered, with.a, m_what.shard_bytes(), with.stream);
    } else if (with.view != ISTHMUS_FUSED_COMPUTE_ONLY) {
      isthmus_operation operation{};
      operation.collective = ISTHMUS_ALLGATHER;
      operation.datatype = m_what.asked.input;
      operation.count = m_what.shard_rows * m_what.asked.k;
      operation.send_buf = with.a;
      operation.recv_buf = m_gathered;
      operation.stream = with.stream;
      m_owner->enqueue(operation);
    }
  }
  if (with.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) multiply(a, 0, m_what.asked.m, with);
  m_driver.record(m_device, m_finished, with.stream);
  m_has_run = true;
}

// ---- pipelined ----------------------------------------------------------------------------------------

void device_gather_plan::enqueue_run(const isthmus_fused_arguments& with) {
  m_gathered = gathered(with);
  if (m_has_run) m_driver.wait(m_device, with.stream, m_finished);  // the caller may have changed streams
  if (m_zero != nullptr) m_driver.record(m_device, m_zero, with.stream);
  m_driver.record(m_device, m_start, with.stream);
  if (m_sentinel) m_sentinel->begin_run();
  if (with.view != ISTHMUS_FUSED_COMPUTE_ONLY) {
    ++m_run;
    // Before the copies, which wait for peers: streams of one queue must not hold up what peers wait for.
    publish(with);
    pull(with);
  }
  if (with.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) compute(with);
  finish(with);
}

std::uint64_t device_gather_plan::stage_step_end(std::uint32_t step) const {
  return m_what.shard_rows * (step + 1) / stage_steps;
}

// Tells every peer how many steps of this rank's rows it may fetch.
void device_gather_plan::publish(const isthmus_fused_arguments& with) {
  m_driver.wait(m_device, m_signal.stream, m_start);
  isthmus_heap_block block{};
  m_staged = !m_owner->heap().find(with.a, m_what.shard_bytes(), &block, nullptr);
  const std::uint32_t before = (m_run - 1) * stage_steps;
  const auto tell = [&](std::uint32_t steps) {
    for (int step = 1; step < m_what.size; ++step) {
      const int peer = (m_what.rank - step + m_what.size) % m_what.size;
      m_driver.write_word(m_device, m_board->ready(peer, m_what.rank), before + steps, m_signal.stream);
    }
  };
  if (!m_staged) return tell(stage_steps);
  const auto* a = static_cast<const std::byte*>(with.a);
  std::uint64_t begin = 0;
  for (std::uint32_t step = 0; step < stage_steps; ++step) {
    const std::uint64_t end = stage_step_end(step);
    copy(m_board->stage(m_what.rank) + begin * row_bytes(), a + begin * row_bytes(),
         (end - begin) * row_bytes(), m_signal.stream);
    begin = end;
    tell(step + 1);
  }
}

void device_gather_plan::pull(const isthmus_fused_arguments& with) {
  m_driver.wait(m_device, m_copy.stream, m_start);
  isthmus_heap_block block{};
  std::uint64_t offset = 0;
  if (!m_staged) m_owner->heap().find(with.a, m_what.shard_bytes(), &block, &offset);
  for (std::size_t index = 1; index < m_order.groups.size(); ++index) {
    const int source = m_order.groups[index].source;
    pull_group(index,
               m_staged ? m_board->stage(source) : static_cast<const std::byte*>(block.peers[source]) + offset);
    const bool last = index + 1 == m_order.groups.size() || m_order.groups[index + 1].source != source;
    if (last) m_driver.write_word(m_device, m_board->done(source, m_what.rank), m_run, m_copy.stream);
  }
  std::byte* own = m_gathered + static_cast<std::uint64_t>(m_what.rank) * m_what.shard_bytes();
  if (with.gathered_a != nullptr && with.a != own) copy(own, with.a, m_what.shard_bytes(), m_copy.stream);
  m_driver.record(m_device, m_copy.event, m_copy.stream);
}

void device_gather_plan::pull_group(std::size_t index, const std::byte* base) {
  const row_group& each = m_order.groups[index];
  std::uint32_t step = 0;
  while (stage_step_end(step) < each.begin + each.rows) ++step;
  m_driver.wait_word(m_device, m_board->ready(m_what.rank, each.source), (m_run - 1) * stage_steps + step + 1,
                     m_copy.stream);
  if (!m_marks.empty()) mark(m_marks[index].copy_begin, m_copy.stream);
  const std::uint64_t row = static_cast<std::uint64_t>(each.source) * m_what.shard_rows + each.begin;
  copy(m_gathered + row * row_bytes(), base + each.begin * row_bytes(), each.rows * row_bytes(), m_copy.stream);
  if (!m_marks.empty()) mark(m_marks[index].copy_end, m_copy.stream);
  m_driver.record(m_device, m_arrived[index], m_copy.stream);
}

void device_gather_plan::compute(const isthmus_fused_arguments& with) {
  const bool waits = with.view == ISTHMUS_FUSED_WHOLE;
  for (std::size_t index = 0; index < m_order.groups.size(); ++index) {
    const row_group& each = m_order.groups[index];
    const bool own = each.source == m_what.rank;
    const std::uint64_t row = static_cast<std::uint64_t>(each.source) * m_what.shard_rows + each.begin;
    if (!own && waits) m_driver.wait(m_device, with.stream, m_arrived[index]);
    if (!m_marks.empty()) mark(m_marks[index].product_begin, with.stream);
    multiply(own ? with.a : m_gathered + row * row_bytes(), row, each.rows, with);
    if (!m_marks.empty()) mark(m_marks[index].product_end, with.stream);
  }
}

// The run ends when everything has arrived, and when nobody reads this rank's rows any more.
void device_gather_plan::finish(const isthmus_fused_arguments& with) {
  if (with.view != ISTHMUS_FUSED_COMPUTE_ONLY) {
    m_driver.record(m_device, m_signal.event, m_signal.stream);
    m_driver.wait(m_device, with.stream, m_signal.event);
    m_driver.wait(m_device, with.stream, m_copy.event);
    for (int peer = 0; peer < m_what.size; ++peer)
      if (peer != m_what.rank)
        m_driver.wait_word(m_device, m_board->done(m_what.rank, peer), m_run, with.stream);
  }
  m_driver.record(m_device, m_finished, with.stream);
  m_has_run = true;
}

// ---- timeline -----------------------------------------------------------------------------------------

void device_gather_plan::mark(native_event event, native_stream stream) {
  m_driver.record(m_device, event, stream);
}

void device_gather_plan::collect_marks() {
  if (m_marks.empty()) return;
  m_timeline.clear();
  const auto add = [&](track where, std::size_t index, native_event begin, native_event end) {
    const double begin_us = m_driver.elapsed_us(m_zero, begin), end_us = m_driver.elapsed_us(m_zero, end);
    m_timeline.add({where, name_of(m_order.groups[index]), static_cast<std::int64_t>(1e3 * begin_us),
                    static_cast<std::int64_t>(1e3 * end_us)});
  };
  for (std::size_t index = 0; index < m_marks.size(); ++index) {
    add(track::compute, index, m_marks[index].product_begin, m_marks[index].product_end);
    if (index > 0) add(track::copy, index, m_marks[index].copy_begin, m_marks[index].copy_end);
  }
}

std::unique_ptr<plan> make_device_gather_plan(std::shared_ptr<communicator> owner, const problem& what) {
  std::string reason;
  auto* driver = device_driver::get(owner->ranks().device.platform, reason);
  const cublaslt* library = nullptr;
  if (driver != nullptr && owner->ranks().device.platform == ISTHMUS_PLATFORM_CUDA)
    library = cublaslt::get(owner->option("backend.fused.cublaslt_library"), reason);
  const auto all = gather_values(owner->meeting(), static_cast<std::int32_t>(library != nullptr));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == 0)
      throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                       library == nullptr ? "fused_plan_create: " + reason
                                          : fmt::format("fused_plan_create: rank {} has no cuBLASLt", rank),
                       "name the library in ISTHMUS_CUBLASLT_LIBRARY");
  return std::make_unique<device_gather_plan>(std::move(owner), what, *driver, *library);
}

}  // namespace isthmus::fused
