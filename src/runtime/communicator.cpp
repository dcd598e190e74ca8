#include "runtime/communicator.hpp"

#include <isthmus/isthmus.h>

#include <utility>

#include "runtime/log.hpp"
#include "runtime/siblings.hpp"
#include "runtime/watchdog.hpp"
#include "runtime/worker.hpp"

namespace isthmus {

communicator::communicator(std::unique_ptr<bootstrap> meeting, preparation prepared)
    : m_prepared(std::move(prepared)),
      m_meeting(std::move(meeting)),
      m_ranks(introduce(*m_meeting, {m_prepared.device, m_prepared.rules_text(), m_prepared.failure})),
      m_dispatcher(*m_prepared.rules, m_ranks, m_heap, m_backends),
      m_scope{m_ranks.rank, m_ranks.size, m_ranks.device.platform, false, m_prepared.collectives} {}

communicator::~communicator() {
  try {
    close();
  } catch (const error& failure) {
    log(log_level::warning, "rank {}: while destroying a communicator: {}", m_ranks.rank, failure.what());
  }
}

std::shared_ptr<communicator> communicator::create(std::unique_ptr<bootstrap> meeting, preparation prepared) {
  return create(std::move(meeting), std::move(prepared), {});
}

std::shared_ptr<communicator> communicator::create(std::unique_ptr<bootstrap> meeting, preparation prepared,
                                                   parts inherited) {
  std::shared_ptr<communicator> created(new communicator(std::move(meeting), std::move(prepared)));
  created->create_backends(std::move(inherited));
  add_sibling(created->m_ranks.token, created);
  // Only calls into the user's MPI wait without a bound of their own.
  if (created->m_meeting->mpi_table() != nullptr) watch(created);
  return created;
}

std::shared_ptr<communicator> communicator::split(int color, int key) {
  check_alive();
  if (color < ISTHMUS_NO_COLOR)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("communicator_split: color = {} must be >= 0 or ISTHMUS_NO_COLOR (-1)", color),
                     "ranks with the same color form a communicator");
  auto part = m_meeting->split(color, key);
  parts native = split_backends(color, key);
  if (!part) return nullptr;
  preparation inherited = m_prepared;
  return create(std::move(part), std::move(inherited), std::move(native));
}

// All ranks call the backends in the same order, those without a part, too.
communicator::parts communicator::split_backends(int color, int key) {
  parts made;
  for (const auto& backend : m_backends) {
    if (!backend->usable() || backend->functions().split == nullptr) continue;
    if (void* const part = backend->functions().split(backend->state(), color, key))
      made.emplace(backend->name(), backend_part(part, backend->functions().drop_part));
  }
  return made;
}

error communicator::annotate(const error& failure, const isthmus_operation& operation) const {
  isthmus_error_info info = failure.info();
  info.rank = m_ranks.rank;
  if (isthmus_collective_name(operation.collective) != nullptr) info.collective = operation.collective;
  return error(info);
}

void communicator::check(const isthmus_operation& operation, bool grouped) const {
  validation_scope scope = m_scope;
  scope.grouped = grouped;
  try {
    validate(operation, scope);
  } catch (const error& failure) {
    throw annotate(failure, operation);
  }
}

choice communicator::choose(const isthmus_operation& operation) {
  try {
    return m_dispatcher.choose(operation);
  } catch (const error& failure) {
    throw annotate(failure, operation);
  }
}

void communicator::enqueue(const isthmus_operation& operation) {
  check_alive();
  check(operation, false);
  const choice taken = choose(operation);
  run(*taken.backend, &operation, &taken.algorithm, 1);
}

void communicator::run(backend_instance& backend, const isthmus_operation* operations,
                       const char* const* algorithms, std::size_t n) {
  const std::uint64_t sequence = (m_flight.load(std::memory_order_relaxed) >> 24) + 1;
  m_flight_count.store(operations->count, std::memory_order_relaxed);
  m_flight.store(sequence << 24 | static_cast<std::uint64_t>(operations->datatype) << 16 |
                     static_cast<std::uint64_t>(operations->collective) << 8 | 1,
                 std::memory_order_relaxed);
  const isthmus_status status = backend.enqueue(operations, algorithms, n);
  m_flight.store(sequence << 24, std::memory_order_relaxed);
  if (status != ISTHMUS_SUCCESS) [[unlikely]]
    fail_batch(backend, status, *operations);
}

flight communicator::in_flight() const {
  const std::uint64_t word = m_flight.load(std::memory_order_relaxed);
  return {word >> 24, static_cast<isthmus_collective>(word >> 8 & 255),
          static_cast<isthmus_datatype>(word >> 16 & 255), m_flight_count.load(std::memory_order_relaxed),
          (word & 1) != 0};
}

void communicator::fail_batch(backend_instance& backend, isthmus_status status,
                              const isthmus_operation& first) {
  isthmus_error_info failure = backend.take_failure(status, row_of(first.collective).name);
  if (failure.collective < 0) failure.collective = first.collective;
  // Whoever was poisoned by another rank's failure reports that one: it is the cause.
  if (poisoned() && is_consequence(status)) throw_poisoned();
  poison(failure);
  throw error(failure);
}

worker& communicator::own_worker() {
  if (!m_worker) m_worker = std::make_unique<worker>();
  return *m_worker;
}

void communicator::poison_here(const isthmus_error_info& failure) noexcept {
  {
    const std::lock_guard lock(m_failure_mutex);
    if (m_failure) return;
    m_failure = failure;
  }
  m_poisoned.store(true, std::memory_order_release);
  m_meeting->cancel();
  const std::lock_guard lock(m_abort_mutex);
  if (m_closed) return;
  for (const auto& backend : m_backends)
    if (backend->usable() && backend->functions().abort != nullptr)
      backend->functions().abort(backend->state());
}

void communicator::poison(const isthmus_error_info& failure) noexcept {
  poison_here(failure);
  for (const auto& sibling : siblings_of(m_ranks.token, this)) sibling->poison_here(failure);
}

void communicator::throw_poisoned() const {
  const std::lock_guard lock(m_failure_mutex);
  isthmus_error_info info = *m_failure;
  info.status = ISTHMUS_ERROR_ABORTED;
  copy_text(info.message, sizeof info.message,
            fmt::format("the communicator was poisoned by an earlier failure ({}{}): {}",
                        isthmus_status_name(m_failure->status),
                        m_failure->rank >= 0 ? fmt::format(" on rank {}", m_failure->rank) : std::string(),
                        m_failure->message));
  info.rank = m_ranks.rank;
  if (info.hint[0] == '\0')
    copy_text(info.hint, sizeof info.hint, "destroy the communicator on every rank and create a new one");
  throw error(info);
}

std::optional<isthmus_error_info> communicator::failure() {
  if (!poisoned())
    for (const auto& backend : m_backends) {
      if (!backend->usable() || backend->functions().poll == nullptr) continue;
      const isthmus_status status = backend->functions().poll(backend->state());
      if (status != ISTHMUS_SUCCESS)
        poison(backend->take_failure(status, "an operation that had been started"));
    }
  if (!poisoned()) return std::nullopt;
  const std::lock_guard lock(m_failure_mutex);
  return m_failure;
}

void communicator::synchronize() {
  for (const auto& backend : m_backends) {
    if (!backend->usable() || backend->functions().synchronize == nullptr || poisoned()) continue;
    const isthmus_status status = backend->functions().synchronize(backend->state());
    if (status == ISTHMUS_SUCCESS) continue;
    const isthmus_error_info failure = backend->take_failure(status, "synchronize");
    poison(failure);
    throw error(failure);
  }
}

void communicator::close() {
  std::optional<error> failure;
  if (!m_closed) {
    try {
      synchronize();
    } catch (const error& caught) {
      failure = caught;
    }
  }
  const std::lock_guard lock(m_abort_mutex);
  if (std::exchange(m_closed, true)) return;
  remove_sibling(m_ranks.token, this);
  m_worker.reset();
  for (const auto& backend : m_backends) backend->destroy();
  if (const std::size_t left = m_heap.clear(); left > 0)
    log(log_level::warning,
        "rank {}: {} block(s) of the symmetric heap were still live when the communicator was destroyed",
        m_ranks.rank, left);
  if (failure) throw error(*failure);
}

void* communicator::allocate_symmetric(std::uint64_t bytes) {
  check_alive();
  void* const pointer = m_heap.allocate(*m_meeting, m_ranks, bytes);
  isthmus_heap_block block;
  if (m_heap.find(pointer, 1, &block, nullptr))
    for (const auto& backend : m_backends)
      if (backend->usable() && backend->functions().block_added != nullptr)
        backend->functions().block_added(backend->state(), &block);
  return pointer;
}

void communicator::free_symmetric(void* pointer) {
  isthmus_heap_block block;
  std::uint64_t offset = 0;
  if (m_heap.find(pointer, 1, &block, &offset) && offset == 0)
    for (const auto& backend : m_backends)
      if (backend->usable() && backend->functions().block_removed != nullptr)
        backend->functions().block_removed(backend->state(), &block);
  m_heap.free(pointer);
}

const char* communicator::option(const std::string& key) const {
  for (const auto& [name, value] : m_prepared.rules->options)
    if (name == key) return value.c_str();
  return nullptr;
}

}  // namespace isthmus
