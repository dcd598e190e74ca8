#include "backends/hierarchical/pipeline.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "failure/wait.hpp"

namespace isthmus::hierarchical {
namespace {

// Progress of the two threads, and the first failure.
class progress {
 public:
  explicit progress(const node_hierarchy& hierarchy) : m_hierarchy(hierarchy) {}

  void count_gathered() { advance(m_gathered_chunks); }
  void count_exchanged() { advance(m_exchanged_chunks); }
  // Both functions return false if the other thread failed. wait_until_gathered runs on the caller's thread and
  // also polls whether the parent was aborted.
  bool wait_until_gathered(std::uint64_t chunks) {
    return wait(m_gathered_chunks, chunks,
                [this] { return m_hierarchy.context->is_aborted(m_hierarchy.context->runtime) != 0; });
  }
  bool wait_until_exchanged(std::uint64_t chunks) {
    return wait(m_exchanged_chunks, chunks, [] { return false; });
  }

  // Records a failure of the calling thread and aborts the parent, which releases all ranks and reports the
  // cause. This is necessary because the other thread may wait for ranks that wait for this one.
  void fail(const subcommunicator_failure& failure) noexcept {
    {
      const std::lock_guard lock(m_mutex);
      if (m_failure) return;
      m_failure = std::make_exception_ptr(failure);
    }
    m_changed.notify_all();
    const isthmus_backend_context& context = *m_hierarchy.context;
    context.abort_communicator(context.runtime, report(context, failure));
  }
  void rethrow() const {
    if (m_failure) std::rethrow_exception(m_failure);
  }

 private:
  void advance(std::uint64_t& chunks) {
    {
      const std::lock_guard lock(m_mutex);
      ++chunks;
    }
    m_changed.notify_all();
  }

  template <typename Predicate>
  bool wait(const std::uint64_t& chunks, std::uint64_t target, Predicate&& is_interrupted) {
    constexpr auto poll_interval = std::chrono::milliseconds(20);
    std::unique_lock lock(m_mutex);
    while (chunks < target && !m_failure) {
      if (m_changed.wait_for(lock, poll_interval) == std::cv_status::no_timeout) continue;
      lock.unlock();
      const bool was_interrupted = is_interrupted();
      lock.lock();
      if (was_interrupted && !m_failure) {
        isthmus_error_info abort_info{};
        abort_info.status = ISTHMUS_ERROR_ABORTED;
        m_failure =
            std::make_exception_ptr(subcommunicator_failure("the communicator was aborted", abort_info));
      }
    }
    return !m_failure;
  }

  const node_hierarchy& m_hierarchy;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::uint64_t m_gathered_chunks = 0, m_exchanged_chunks = 0;
  std::exception_ptr m_failure;
};

template <typename Work>
void report_failures(progress& state, Work&& work) noexcept {
  try {
    work();
  } catch (const subcommunicator_failure& failure) {
    state.fail(failure);
  } catch (const error& failure) {
    state.fail({failure.what(), failure.info()});
  } catch (const std::exception& failure) {  // out of memory
    isthmus_error_info details{};
    details.status = ISTHMUS_ERROR_OUT_OF_MEMORY;
    state.fail({failure.what(), details});
  }
}

// The intra-node calls, in the same order on all ranks of a node.
void run_intra_node_stages(std::uint64_t chunks, const std::function<chunk_range(std::uint64_t)>& chunk_at,
                           const stages& work, progress& state) noexcept {
  const progress_suspension progress_pause;
  report_failures(state, [&] {
    for (std::uint64_t i = 0; i < chunks; ++i) {
      work.gather(chunk_at(i));
      state.count_gathered();
      if (i == 0) continue;
      if (!state.wait_until_exchanged(i)) return;
      work.scatter(chunk_at(i - 1));
    }
    if (state.wait_until_exchanged(chunks)) work.scatter(chunk_at(chunks - 1));
  });
}

void run_inter_node_stages(std::uint64_t chunks, const std::function<chunk_range(std::uint64_t)>& chunk_at,
                           const stages& work, progress& state) noexcept {
  report_failures(state, [&] {
    for (std::uint64_t i = 0; i < chunks && state.wait_until_gathered(i + 1); ++i) {
      work.exchange(chunk_at(i));
      state.count_exchanged();
    }
  });
}

}  // namespace

device_staging::device_staging(const isthmus_backend_context& context, device_driver& driver,
                               const subcommunicator& intra_node)
    : m_context(context),
      m_driver(driver),
      m_intra_node(intra_node),
      m_stream(driver, context.device.ordinal),
      m_done(driver, context.device.ordinal) {}

void device_staging::reserve(std::uint64_t scratch_bytes, std::uint64_t pinned_bytes) {
  for (owned_memory& each : m_scratch)
    if (each.bytes() < scratch_bytes) {
      each.reset();
      each = owned_memory(m_driver, m_context.device.ordinal, scratch_bytes);
    }
  for (owned_pinned& each : m_pinned)
    if (each.bytes() < pinned_bytes) each = owned_pinned(m_driver, std::max(pinned_bytes, 2 * each.bytes()));
}

void device_staging::move(std::byte* destination, const std::byte* source, std::uint64_t bytes) {
  if (bytes == 0) return;
  const device_copy copies[] = {{destination, source, bytes}};
  m_driver.copy_each(m_context.device.ordinal, copies, m_stream);
}

void device_staging::fetch(int slot, const std::byte* source, std::uint64_t bytes) {
  move(pinned(slot), source, bytes);
  finish();
}

void device_staging::finish() {
  constexpr int polls_per_check = 64;
  m_driver.record(m_context.device.ordinal, m_done, m_stream);
  int polls = 0;
  const auto is_done = [&] {
    if (m_driver.is_done(m_done)) return true;
    if (++polls % polls_per_check != 0) return false;
    if (m_context.is_aborted(m_context.runtime) != 0) throw aborted_error(ISTHMUS_HERE);
    m_intra_node.check();
    return false;
  };
  if (!poll_until(is_done, deadline_after(m_context.timeout_s), yielding))
    throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                     fmt::format("{}: reductions on the device exceeded the timeout of {:g} s",
                                 m_intra_node.name(), m_context.timeout_s),
                     "look for a missing or stuck rank; raise timeout_s if the ranks are only slow");
  m_intra_node.check();  // an abort also ends the kernels, so completion does not imply success
}

void node_hierarchy::run_in_chunks(std::uint64_t count, std::uint64_t step, const stages& work) {
  const std::uint64_t chunks = count / step + (count % step != 0 ? 1 : 0);
  const std::function<chunk_range(std::uint64_t)> chunk_at = [=](std::uint64_t i) -> chunk_range {
    return {i * step, std::min(step, count - i * step), static_cast<int>(i % slots)};
  };
  if (chunks < 2 || !overlaps) {
    for (std::uint64_t i = 0; i < chunks; ++i) {
      work.gather(chunk_at(i));
      work.exchange(chunk_at(i));
      work.scatter(chunk_at(i));
    }
    return;
  }
  progress state(*this);
  {
    const std::jthread intra_node([&] { run_intra_node_stages(chunks, chunk_at, work, state); });
    run_inter_node_stages(chunks, chunk_at, work, state);
  }
  state.rethrow();
}

}  // namespace isthmus::hierarchical
