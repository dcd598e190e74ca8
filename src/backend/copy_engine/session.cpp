#include "backend/copy_engine/session.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "backend/copy_engine/watch.hpp"
#include "runtime/error.hpp"
#include "runtime/tables.hpp"

namespace isthmus::copy_engine {
namespace {

using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

}  // namespace

// reduce_scatter's only way needs no name of its own: through the transit area, like what is staged.
const char* const algorithm_names[] = {"staged", "zero_copy", "push", nullptr};

namespace {

// Nothing for a name that does not exist.
std::optional<way> find_way(const char* name) {
  for (const way one : {way::staged, way::pull, way::push})
    if (std::strcmp(name, algorithm_names[static_cast<int>(one)]) == 0) return one;
  return std::nullopt;
}

}  // namespace

session::session(const isthmus_backend_context& context, device_driver& driver, const settings& options)
    : m_context(context),
      m_held(driver, context.device.ordinal),
      m_tools(driver, context.device.ordinal, context.rank, context.size, options),
      m_overseer(context, m_tools, m_log, m_held),
      m_own_stream(m_held.stream(stream_priority::normal)),
      m_entered(m_held.event()),
      m_ended(m_held.event()) {
  m_tools.progress = m_overseer.progress();
  m_tools.local.start_on(m_held.stream(stream_priority::normal));
  m_tools.combiner.start_on(m_held.stream(stream_priority::raised));
  m_tools.fork = m_held.event();
  m_tools.local_join = m_held.event();
  m_tools.started = m_held.event();
  m_tools.slot_ready = m_held.event();
  const int lanes = options.streams == 0 ? context.size - 1 : std::min(options.streams, context.size - 1);
  for (int i = 1; i < lanes; ++i) {
    m_tools.beside.emplace_back(driver, m_tools.device, options.batch_bytes)
        .start_on(m_held.stream(stream_priority::normal));
    m_tools.joins.push_back(m_held.event());
  }
  // A device that lacks what is needed says so here, where all ranks can still do without.
  const word_step probe[] = {{word_action::write, m_tools.progress, 0},
                             {word_action::wait_equal, m_tools.progress, 0}};
  driver.words(m_tools.device, probe, m_own_stream);
  driver.synchronize(m_tools.device, m_own_stream);
  m_version = driver.version();
}

void session::open(const isthmus_heap_block& shared) {
  m_tools.area = peer_area(shared, m_context.size, m_tools.options.transit_bytes);
  watch::instance().add(m_overseer);
}

void session::compile_with(kernel_compiler& compiler) { m_tools.kernels.compile_with(compiler); }

// Reasons stay for the life of the process: whoever asked for one may keep it. There are few.
void session::refuse_reductions(const std::string& reason) {
  if (m_no_reductions != nullptr) return;
  static std::mutex mutex;
  static auto* const all = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  m_no_reductions = all->insert(reason).first->c_str();
}

session::~session() {
  if (!m_tools.area.is_open()) return;
  const auto deadline = overseer::clock::now() + seconds(std::min(m_context.timeout_s, 30.0));
  // Until the stream is through, the watch may still have to release it.
  while (m_overseer.current() != 0 && overseer::clock::now() < deadline) std::this_thread::sleep_for(1ms);
  watch::instance().remove(m_overseer);
  bool quiet = false;
  try {
    while (!m_overseer.failed() && m_context.aborted(m_context.runtime) == 0 &&
           !m_overseer.all_loans_returned() && overseer::clock::now() < deadline)
      std::this_thread::sleep_for(100us);
    quiet = m_overseer.current() == 0 && m_overseer.wait_briefly();
  } catch (const error& caught) {
    m_context.log(m_context.runtime, 1, "while releasing: %s", caught.what());
  }
  if (!quiet) m_held.keep_pinned();
}

const char* session::supports(const isthmus_operation& operation, const char* name) const {
  const auto wanted = name == nullptr ? way::staged : find_way(name);
  if (!wanted) return "unknown algorithm; zero_copy, push and staged exist";
  if (!is_moved(operation.collective))
    return "knows allgather, allgatherv, alltoall, broadcast, gather, scatter and reduce_scatter";
  if (*wanted != way::staged)
    if (const char* reason = never_in_heap(operation.collective)) return reason;
  if (row_of(operation.collective).reduces && m_no_reductions != nullptr) return m_no_reductions;
  const auto rows = static_cast<std::uint64_t>(std::max(m_context.size - 1, 1));
  if (m_context.size > 1 && m_tools.area.slot_bytes() < rows * alignment)
    return "backend.copy_engine.transit_bytes is less than 512 bytes for each peer";
  return nullptr;
}

isthmus_status session::report(const failure& why) {
  return m_context.fail(m_context.runtime, why.status, 0, ISTHMUS_HERE, why.hint.c_str(), "%s",
                        why.message.c_str());
}

isthmus_status session::report_driver(const char* doing, const isthmus_error_info& info) {
  return m_context.fail(m_context.runtime, info.status, info.native_code, info.location, info.hint, "%s: %s",
                        doing, info.message);
}

isthmus_status session::enqueue(const isthmus_operation* operations, const char* const* algorithms,
                                std::size_t n) {
  if (m_overseer.failed()) return poll();
  try {
    prepare({operations, n});
    for (std::size_t i = 0; i < n; ++i)
      start(operations[i], algorithms[i] == nullptr ? std::nullopt : find_way(algorithms[i]));
    return ISTHMUS_SUCCESS;
  } catch (const error& caught) {
    return report_driver("enqueue", caught.info());
  }
}

// Before any of a group's calls is issued: loading a kernel may wait for the device, and what is queued there
// may wait for ranks that this thread has yet to serve.
void session::prepare(std::span<const isthmus_operation> operations) {
  for (const isthmus_operation& one : operations)
    if (row_of(one.collective).reduces && m_context.size > 1 && one.count > 0)
      m_tools.kernels.prepare(one.datatype, one.op);
}

void session::start(const isthmus_operation& operation, std::optional<way> wanted) {
  describe(operation, m_context.rank, m_context.size, m_moved);
  if (operation.count == 0 && std::ranges::all_of(m_moved.longest, [](auto bytes) { return bytes == 0; }))
    return;
  device_driver& driver = m_tools.driver;
  const int device = m_tools.device;
  const bool legacy = is_null_stream(operation.stream);  // a stream of our own does the work between two events
  const bool captured = driver.is_capturing(device, operation.stream);
  const native_stream stream = legacy ? m_own_stream : operation.stream;
  if (legacy) {
    driver.record(device, m_entered, operation.stream);
    driver.wait(device, stream, m_entered);
  }
  // Calls of one communicator come one after the other, whatever streams they are on. A graph can't wait for
  // what is outside of it: its launches have to be ordered by the caller.
  if (!captured && m_any_ended) driver.wait(device, stream, m_ended);
  m_tools.caller.start_on(stream);
  issue(operation, wanted, captured);
  if (captured) return;
  driver.record(device, m_ended, stream);
  m_any_ended = true;
  if (legacy) driver.wait(device, operation.stream, m_ended);
}

// Fills m_places where the call can go that way.
bool session::in_heap(const isthmus_operation& operation, way how) {
  m_places.all = false;
  if (how != way::staged) find_places(m_context, operation, m_moved, how, m_places);
  return m_places.all;
}

// Pushing was the faster of the two wherever both were measured; it needs the receive buffers.
way session::choose(const isthmus_operation& operation, std::optional<way> wanted) {
  if (row_of(operation.collective).reduces) return way::deposit;
  if (wanted) return in_heap(operation, *wanted) ? *wanted : way::staged;
  for (const way how : {way::push, way::pull})
    if (in_heap(operation, how)) return how;
  return way::staged;
}

void session::issue(const isthmus_operation& operation, std::optional<way> wanted, bool captured) {
  m_record.id = ++m_last_id == 0 ? ++m_last_id : m_last_id;
  call one(m_tools, operation, m_moved, m_record, m_log, captured);
  const way how = choose(operation, wanted);
  if (wanted && how == way::staged && how != *wanted)
    m_context.log(
        m_context.runtime, 2,
        "%s: the rule says %s, but the buffers that peers would touch are not in the symmetric heap: it is "
        "staged",
        isthmus_collective_name(operation.collective), algorithm_names[static_cast<int>(*wanted)]);
  if (how == way::deposit)
    one.issue_deposit(m_context.size == 1 ? nullptr
                                          : m_tools.kernels.prepare(operation.datatype, operation.op));
  else if (how == way::staged)
    one.issue_staged();
  else
    one.issue_in_heap(how, m_places);
  m_tools.caller.write(m_tools.progress, 0);
  m_tools.caller.flush();
}

isthmus_status session::poll() {
  if (const auto why = m_overseer.reason()) return report(*why);
  return ISTHMUS_SUCCESS;
}

bool session::is_idle() { return (!m_any_ended || m_tools.driver.done(m_ended)) && m_overseer.current() == 0; }

isthmus_status session::synchronize() {
  const auto deadline = overseer::clock::now() + seconds(m_context.timeout_s);
  try {
    for (auto pause = 10us; !is_idle(); pause = std::min(pause * 2, decltype(pause)(1000us))) {
      if (m_overseer.failed()) return poll();
      if (m_context.aborted(m_context.runtime) != 0)
        return report({ISTHMUS_ERROR_ABORTED, "the communicator was aborted", ""});
      if (overseer::clock::now() > deadline)
        return report({ISTHMUS_ERROR_TIMEOUT, "the streams did not finish within the timeout",
                       "a kernel before or between the collectives takes longer, or a peer is stuck"});
      std::this_thread::sleep_for(pause);
    }
  } catch (const error& caught) {
    return report_driver("waiting for the device", caught.info());
  }
  return poll();
}

void session::abort() {
  m_overseer.request_abort();
  watch::instance().wake();
}

}  // namespace isthmus::copy_engine
