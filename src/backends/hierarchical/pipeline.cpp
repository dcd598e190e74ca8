#include "backends/hierarchical/pipeline.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "base/interrupt.hpp"

namespace isthmus::hierarchical {
namespace {

// How far the two threads are, and what went wrong first.
class progress {
 public:
  explicit progress(const node_hierarchy& hierarchy) : m_hierarchy(hierarchy) {}

  void gathered() { advance(m_gathered); }
  void crossed() { advance(m_crossed); }
  // False: the other thread has failed. The caller's thread asks whether the whole was poisoned.
  bool wait_until_gathered(std::uint64_t chunks) {
    return wait(m_gathered, chunks, [this] { return m_hierarchy.context->is_aborted(m_hierarchy.context->runtime) != 0; });
  }
  bool wait_until_crossed(std::uint64_t chunks) {
    return wait(m_crossed, chunks, [] { return false; });
  }

  // Of the thread that calls. The other one may wait for ranks that wait for this one: all are released, and
  // know why.
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

  template <typename Ask>
  bool wait(const std::uint64_t& chunks, std::uint64_t wanted, Ask&& is_over) {
    constexpr auto poll_interval = std::chrono::milliseconds(20);
    std::unique_lock lock(m_mutex);
    while (chunks < wanted && !m_failure) {
      if (m_changed.wait_for(lock, poll_interval) == std::cv_status::no_timeout) continue;
      lock.unlock();
      const bool over = is_over();
      lock.lock();
      if (over && !m_failure) {
        isthmus_error_info aborted{};
        aborted.status = ISTHMUS_ERROR_ABORTED;
        m_failure = std::make_exception_ptr(subcommunicator_failure("the communicator was poisoned", aborted));
      }
    }
    return !m_failure;
  }

  const node_hierarchy& m_hierarchy;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::uint64_t m_gathered = 0, m_crossed = 0;
  std::exception_ptr m_failure;
};

template <typename Work>
void report_failures(progress& told, Work&& work) noexcept {
  try {
    work();
  } catch (const subcommunicator_failure& failure) {
    told.fail(failure);
  } catch (const error& failure) {
    told.fail({failure.what(), failure.info()});
  } catch (const std::exception& failure) {  // no memory
    isthmus_error_info details{};
    details.status = ISTHMUS_ERROR_OUT_OF_MEMORY;
    told.fail({failure.what(), details});
  }
}

// The calls within islands, in the same order on all of their ranks.
void run_intra_node_stages(std::uint64_t chunks, const std::function<chunk_range(std::uint64_t)>& chunk_at, const stages& work,
                 progress& told) noexcept {
  const suspend_progress quiet;
  report_failures(told, [&] {
    for (std::uint64_t i = 0; i < chunks; ++i) {
      work.gather(chunk_at(i));
      told.gathered();
      if (i == 0) continue;
      if (!told.wait_until_crossed(i)) return;
      work.scatter(chunk_at(i - 1));
    }
    if (told.wait_until_crossed(chunks)) work.scatter(chunk_at(chunks - 1));
  });
}

void run_inter_node_stages(std::uint64_t chunks, const std::function<chunk_range(std::uint64_t)>& chunk_at, const stages& work,
                  progress& told) noexcept {
  report_failures(told, [&] {
    for (std::uint64_t i = 0; i < chunks && told.wait_until_gathered(i + 1); ++i) {
      work.cross(chunk_at(i));
      told.crossed();
    }
  });
}

}  // namespace

void node_hierarchy::run_in_chunks(std::uint64_t count, std::uint64_t step, const stages& work) {
  const std::uint64_t chunks = count / step + (count % step != 0 ? 1 : 0);
  const std::function<chunk_range(std::uint64_t)> chunk_at = [=](std::uint64_t i) -> chunk_range {
    return {i * step, std::min(step, count - i * step), static_cast<int>(i % slots)};
  };
  if (chunks < 2 || !overlaps) {
    for (std::uint64_t i = 0; i < chunks; ++i) {
      work.gather(chunk_at(i));
      work.cross(chunk_at(i));
      work.scatter(chunk_at(i));
    }
    return;
  }
  progress told(*this);
  {
    const std::jthread intra_node([&] { run_intra_node_stages(chunks, chunk_at, work, told); });
    run_inter_node_stages(chunks, chunk_at, work, told);
  }
  told.rethrow();
}

}  // namespace isthmus::hierarchical
