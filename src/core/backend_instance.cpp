#include "core/backend_instance.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "bootstrap/exchange.hpp"
#include "core/communicator.hpp"
#include "core/handles.hpp"

namespace isthmus {
namespace {

std::string format_text(const char* format, std::va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

backend_instance& self(void* runtime) { return *static_cast<backend_instance*>(runtime); }

failure_info make_backend_failure(isthmus_status status, int64_t native_code, const char* location,
                                  const char* hint, const std::string& message) {
  return make_error(status, location == nullptr ? "" : location, message, hint == nullptr ? "" : hint,
                    native_code)
      .info();
}

// Creates the failure for the current exception, which escaped from a backend. A backend must not throw, so the
// status is ISTHMUS_ERROR_BACKEND for every exception except std::bad_alloc.
failure_info exception_failure(const std::string& backend, const char* function) {
  const failure_info exception_info = current_error().info();
  const bool is_out_of_memory = exception_info.status == ISTHMUS_ERROR_OUT_OF_MEMORY;
  return make_error(
             is_out_of_memory ? exception_info.status : ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
             fmt::format("{} of backend {} threw an exception: {}", function, backend, exception_info.message),
             "catch exceptions in the backend, call context->fail and return its status; see isthmus/backend.h",
             exception_info.native_code)
      .info();
}

}  // namespace

void split_state_deleter::operator()(void* state) const noexcept {
  try {
    function(state);
  } catch (...) {
    log(log_level::warning, "discard_split_state of a backend threw an exception: {}", current_error().what());
  }
}

backend_instance::backend_instance(communicator& owner, backend_entry entry, std::size_t index)
    : m_enqueue(entry.backend != nullptr ? entry.backend->enqueue : nullptr),
      m_owner(owner),
      m_entry(std::move(entry)),
      m_index(index),
      m_reason(m_entry.reason) {
  m_capabilities = m_entry.backend == nullptr ? 0 : m_entry.backend->capabilities;
  const membership& ranks = owner.ranks();
  m_context.struct_bytes = sizeof m_context;
  m_context.runtime = this;
  m_context.rank = ranks.rank;
  m_context.size = ranks.size;
  m_context.node_rank = ranks.node_rank;
  m_context.node_size = ranks.node_size;
  m_context.process_size = ranks.process_size;
  m_context.node_of = ranks.node_of.data();
  m_context.process_of = ranks.process_of.data();
  m_context.pid_of = ranks.pid_of.data();
  m_context.device = ranks.device;
  m_context.timeout_s = owner.timeout_s();
  m_context.collectives = owner.collectives();
  m_context.mpi = owner.control().mpi_table();
  m_context.mpi_comm = owner.control().mpi_comm();
  m_context.allgather = on_allgather;
  m_context.option = on_option;
  m_context.fail = on_fail;
  m_context.fail_with_ranks = on_fail_with_ranks;
  m_context.log = on_log;
  m_context.is_aborted = on_aborted;
  m_context.heap_find = on_heap_find;
  m_context.heap_allocate = on_heap_allocate;
  m_context.heap_free = on_heap_free;
  m_context.progress = on_progress;
  m_context.create_subcommunicator = on_create_subcommunicator;
  m_context.abort_communicator = on_abort_communicator;
  m_context.set_awaited_rank = on_set_awaited_rank;
}

const char* backend_instance::version() const noexcept {
  if (!is_usable() || functions().version == nullptr) return "";
  try {
    const char* const text = functions().version(m_state);
    return text == nullptr ? "" : text;
  } catch (...) {
    return "";
  }
}

isthmus_status backend_instance::report_exception(const char* function) noexcept {
  const failure_info failure = exception_failure(name(), function);
  report(failure);
  return failure.status;
}

template <typename Call>
isthmus_status backend_instance::guard_call(const char* function, Call&& call) noexcept {
  try {
    return call();
  } catch (...) {
    return report_exception(function);
  }
}

template <typename Call>
void backend_instance::guard_call_or_abort(const char* function, Call&& call) {
  const isthmus_status status = guard_call(function, [&] {
    call();
    return ISTHMUS_SUCCESS;
  });
  if (status == ISTHMUS_SUCCESS) return;
  const failure_info failure = take_failure(status, function);
  m_owner.abort(failure);
  throw error(failure);
}

isthmus_status backend_instance::group_start() noexcept {
  return functions().group_start == nullptr ? ISTHMUS_SUCCESS
                                            : guard_call("group_start", functions().group_start);
}

isthmus_status backend_instance::group_end() noexcept {
  return functions().group_end == nullptr ? ISTHMUS_SUCCESS : guard_call("group_end", functions().group_end);
}

isthmus_status backend_instance::poll() noexcept {
  if (!is_usable() || functions().poll == nullptr) return ISTHMUS_SUCCESS;
  return guard_call("poll", [&] { return functions().poll(m_state); });
}

isthmus_status backend_instance::synchronize() noexcept {
  if (!is_usable() || functions().synchronize == nullptr) return ISTHMUS_SUCCESS;
  return guard_call("synchronize", [&] { return functions().synchronize(m_state); });
}

void backend_instance::abort() noexcept {
  if (!is_usable() || functions().abort == nullptr) return;
  try {
    functions().abort(m_state);
  } catch (...) {
    log(log_level::warning, "rank {}: {}", m_context.rank, exception_failure(name(), "abort").message);
  }
}

const char* backend_instance::supports(const isthmus_operation& operation, int algorithm) {
  const char* reason = nullptr;
  guard_call_or_abort("supports", [&] { reason = functions().supports(m_state, &operation, algorithm); });
  return reason;
}

const char* backend_instance::plan(const isthmus_operation& operation, int algorithm) {
  const char* text = nullptr;
  if (functions().plan != nullptr)
    guard_call_or_abort("plan", [&] { text = functions().plan(m_state, &operation, algorithm); });
  return text;
}

split_state backend_instance::split(int color, int key) {
  void* state = nullptr;
  if (is_usable() && functions().split != nullptr)
    guard_call_or_abort("split", [&] { state = functions().split(m_state, color, key); });
  return {state, split_state_deleter{m_entry.backend == nullptr ? nullptr : functions().discard_split_state}};
}

void backend_instance::register_block(const isthmus_heap_block& block) {
  if (is_usable() && functions().register_block != nullptr)
    guard_call_or_abort("register_block", [&] { functions().register_block(m_state, &block); });
}

void backend_instance::unregister_block(const isthmus_heap_block& block) {
  if (is_usable() && functions().unregister_block != nullptr)
    guard_call_or_abort("unregister_block", [&] { functions().unregister_block(m_state, &block); });
}

std::vector<std::string> backend_instance::notes() const {
  const std::lock_guard lock(m_mutex);
  std::vector<std::string> texts;
  for (const auto& [level, text] : m_logged_messages)
    if (level >= 2) texts.push_back(text);
  return texts;
}

void backend_instance::reject(backend_state state, std::string reason) {
  destroy();
  m_split_state.reset();
  m_rejected_state = state;
  m_reason = std::move(reason);
}

isthmus_status backend_instance::create() noexcept {
  m_context.split_state = m_split_state.release();
  const isthmus_status status = guard_call("create", [&] { return functions().create(&m_context, &m_state); });
  m_context.split_state = nullptr;
  m_is_created = status == ISTHMUS_SUCCESS;
  return status;
}

void backend_instance::destroy() noexcept {
  if (!std::exchange(m_is_created, false)) return;
  try {
    functions().destroy(std::exchange(m_state, nullptr));
  } catch (...) {
    log(log_level::warning, "rank {}: {}", m_context.rank, exception_failure(name(), "destroy").message);
  }
}

failure_info backend_instance::take_failure(isthmus_status status, const char* activity) {
  std::unique_lock lock(m_mutex);
  std::optional<failure_info> reported_failure = std::exchange(m_failure, std::nullopt);
  lock.unlock();
  const bool is_known_status = status > ISTHMUS_SUCCESS && status <= ISTHMUS_ERROR_INTERNAL;
  if (!is_known_status)
    reported_failure =
        make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                   fmt::format("backend {} returned {} from {}, which is not the status of an error{}{}",
                               name(), static_cast<int>(status), activity, reported_failure ? ": " : "",
                               reported_failure ? reported_failure->message : ""),
                   "return a status of isthmus/types.h from every function of the backend",
                   static_cast<int>(status))
            .info();
  if (!reported_failure)
    reported_failure =
        make_error(status, ISTHMUS_HERE,
                   fmt::format("backend {} returned the status {} from {} without a message", name(),
                               isthmus_status_name(status), activity),
                   "call context->fail in the backend, which records a message and returns the status")
            .info();
  failure_info info = *reported_failure;
  if (!is_known_status) status = ISTHMUS_ERROR_BACKEND;
  info.status = status;
  info.rank = m_context.rank;
  copy_text(info.backend, sizeof info.backend, name());
  // The backend reports a mismatch of byte counts; the recorder knows which calls differ.
  const resolver& causes = m_owner.failures().causes();
  return status == ISTHMUS_ERROR_MISMATCH ? causes.with_abort_diagnosis(info) : causes.with_diagnosis(info);
}

void backend_instance::report(const failure_info& info) {
  const std::lock_guard lock(m_mutex);
  m_failure = info;
}

// Runs a service of the context and records its failure.
template <typename Work>
isthmus_status backend_instance::serve(Work&& work) noexcept {
  const isthmus_status status = guard(work);
  if (status != ISTHMUS_SUCCESS) report(last_error());
  return status;
}

isthmus_status backend_instance::on_allgather(void* runtime, const void* contribution, void* all,
                                              size_t bytes) {
  backend_instance& backend = self(runtime);
  return backend.serve([&] {
    bootstrap& control = backend.m_owner.control();
    const auto ranks = static_cast<std::size_t>(control.size());
    control.allgather({static_cast<const std::byte*>(contribution), bytes},
                      {static_cast<std::byte*>(all), bytes * ranks});
    if (bytes != sizeof(vote<>)) return;  // the bootstrap refuses contributions of different sizes
    votes<> possible_votes(ranks);
    std::memcpy(possible_votes.data(), all, bytes * ranks);
    if (const int rank = find_early_return(possible_votes); rank >= 0)
      throw early_return_error(rank, possible_votes[static_cast<std::size_t>(rank)]);
  });
}

const char* backend_instance::on_option(void* runtime, const char* key) {
  const backend_instance& backend = self(runtime);
  return backend.m_owner.option(fmt::format("backend.{}.{}", backend.name(), key));
}

isthmus_status backend_instance::on_fail(void* runtime, isthmus_status status, int64_t native_code,
                                         const char* location, const char* hint, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  const std::string message = format_text(format, arguments);
  va_end(arguments);
  self(runtime).report(make_backend_failure(status, native_code, location, hint, message));
  return status;
}

isthmus_status backend_instance::on_fail_with_ranks(void* runtime, const int* ranks, size_t n,
                                                    isthmus_status status, int64_t native_code,
                                                    const char* location, const char* hint, const char* format,
                                                    ...) {
  std::va_list arguments;
  va_start(arguments, format);
  failure_info failure =
      make_backend_failure(status, native_code, location, hint, format_text(format, arguments));
  va_end(arguments);
  backend_instance& backend = self(runtime);
  backend.m_owner.failures().causes().attribute(failure, {ranks, n});
  backend.report(failure);
  return status;
}

void backend_instance::on_log(void* runtime, int level, const char* format, ...) {
  backend_instance& backend = self(runtime);
  std::va_list arguments;
  va_start(arguments, format);
  const std::string text = format_text(format, arguments);
  va_end(arguments);
  {
    const std::lock_guard lock(backend.m_mutex);
    if (!backend.m_logged_messages.emplace(level, text).second) return;  // log each text once per communicator
  }
  const auto severity = level >= 2 ? log_level::warning : level == 1 ? log_level::info : log_level::debug;
  log(severity, "rank {}: {}: {}", backend.m_context.rank, backend.name(), text);
}

// Polled by every wait of a backend, on the waiting thread.
int backend_instance::on_aborted(void* runtime) {
  failure_state& failures = self(runtime).m_owner.failures();
  if (is_interrupted()) failures.abort_on_interrupt();
  failures.poll();
  return failures.is_aborted() ? 1 : 0;
}

void backend_instance::on_set_awaited_rank(void* runtime, int rank) {
  self(runtime).m_owner.own_recorder().set_awaited_rank(rank);
}

int backend_instance::on_progress(void* runtime) { return self(runtime).m_owner.make_progress() ? 1 : 0; }

int backend_instance::on_heap_find(void* runtime, const void* pointer, uint64_t bytes,
                                   isthmus_heap_block* block, uint64_t* offset) {
  return self(runtime).m_owner.heap().find(pointer, bytes, block, offset) ? 1 : 0;
}

isthmus_status backend_instance::on_heap_allocate(void* runtime, uint64_t bytes, isthmus_heap_block* block) {
  backend_instance& backend = self(runtime);
  *block = {};
  return backend.serve([&] {
    communicator& owner = backend.m_owner;
    const void* const pointer =
        owner.heap().allocate(owner.control(), owner.ranks(), bytes, symmetric_heap::block_owner::backend);
    owner.heap().find(pointer, bytes, block, nullptr);
  });
}

isthmus_status backend_instance::on_heap_free(void* runtime, uint64_t id) {
  backend_instance& backend = self(runtime);
  return backend.serve([&] { backend.m_owner.heap().free_backend_block(id); });
}

isthmus_status backend_instance::on_create_subcommunicator(void* runtime, isthmus_device device, int color,
                                                           int key, const char* use,
                                                           isthmus_communicator* result) {
  backend_instance& backend = self(runtime);
  *result = nullptr;
  return backend.serve([&] {
    if (auto subcommunicator = backend.m_owner.create_subcommunicator(device, color, key, backend.name(), use))
      *result = handle_table::instance().insert(std::move(subcommunicator));
  });
}

void backend_instance::on_abort_communicator(void* runtime, isthmus_status status) {
  backend_instance& backend = self(runtime);
  failure_info failure = backend.take_failure(status, "part of an operation");
  backend.m_owner.failures().abort_on_backend_failure(failure);
}

}  // namespace isthmus
