// C entry points of communicators: creation, split, shrink, abort, destruction and queries.
#include "core/communicator.hpp"

#include <isthmus/interrupt.h>
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/exchange.hpp"
#include "bootstrap/tcp_store.hpp"
#include "core/group.hpp"
#include "core/handles.hpp"
#include "core/worker.hpp"

namespace isthmus {

namespace {

// The size of the options in their first version. Members that an older program's struct lacks are set to 0.
constexpr std::size_t min_options_bytes = offsetof(isthmus_communicator_options, setup_timeout_s);

// Returns the caller's validated options, or the defaults.
isthmus_communicator_options read_options(const char* function,
                                          const isthmus_communicator_options* user_options) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  if (user_options == nullptr) return options;
  if (user_options->struct_bytes < min_options_bytes)
    throw invalid_argument(
        ISTHMUS_HERE,
        fmt::format("{}: options->struct_bytes = {} must be at least {}", function, user_options->struct_bytes,
                    min_options_bytes),
        "zero-initialize the options and set struct_bytes = sizeof(isthmus_communicator_options)");
  std::memcpy(&options, user_options, std::min(user_options->struct_bytes, sizeof options));
  options.struct_bytes = sizeof options;
  check_device(ISTHMUS_HERE, function, options.device);
  const auto check_timeout = [function](const char* member, double value, const char* hint) {
    if (!(value >= 0) || value > 1e9)
      throw invalid_argument(
          ISTHMUS_HERE, fmt::format("{}: options->{} = {} must be in [0, 1e9]", function, member, value), hint);
  };
  check_timeout("timeout_s", options.timeout_s, "pass 0 to use the configured timeout");
  check_timeout("setup_timeout_s", options.setup_timeout_s, "pass 0 to use timeout_s");
  if (options.collectives >> ISTHMUS_COLLECTIVE_COUNT != 0)
    throw invalid_argument(
        ISTHMUS_HERE,
        fmt::format("{}: options->collectives = {:#x} must only have bits of the {} collectives", function,
                    options.collectives, static_cast<int>(ISTHMUS_COLLECTIVE_COUNT)),
        "combine values of 1u << isthmus_collective, or pass 0 to allow all collectives");
  return options;
}

isthmus_error_info make_abort_failure(const char* function, int rank) {
  isthmus_error_info failure =
      make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE, fmt::format("{} was called on rank {}", function, rank),
                 "destroy the communicator on every rank and create a new one")
          .info();
  failure.rank = rank;
  return failure;
}

void check_rank(const char* function, int rank, int size) {
  if (size < 1)
    throw invalid_argument(ISTHMUS_HERE, fmt::format("{}: size = {} must be at least 1", function, size),
                           "pass the number of ranks of the communicator");
  if (rank < 0 || rank >= size)
    throw out_of_range(ISTHMUS_HERE, fmt::format("{}: rank", function), rank, size,
                       "number the ranks from 0 to size - 1");
}

isthmus_communicator insert_handle(std::shared_ptr<communicator> new_communicator) {
  return handle_table::instance().insert(std::move(new_communicator));
}

// Runs `work` in a thread with its own copy of the descriptor table, in which it closes all descriptors except the
// standard ones. The program keeps its descriptors. Returns without running it if the kernel is older than 5.9.
template <typename Work>
void run_with_free_descriptors(Work&& work) {
  std::optional<error> failure;
  std::thread([&] {
    if (::close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_UNSHARE) == 0) failure = capture_error(work);
  }).join();
  if (failure) throw error(*failure);
}

// Creates the communicator of one rank. `make_bootstrap`: gets the timeout of the exchanges.
template <typename MakeBootstrap>
isthmus_communicator create_rank(const char* function, const isthmus_communicator_options* user_options,
                                 MakeBootstrap&& make_bootstrap) {
  const isthmus_communicator_options options = read_options(function, user_options);
  communicator_setup setup = prepare(options.device, options);
  std::unique_ptr<bootstrap> rank_bootstrap;
  try {
    rank_bootstrap = make_bootstrap(setup.exchange_timeout_s());
  } catch (const error& failure) {
    if (failure.info().native_code != EMFILE) throw;
    if (!setup.failure) setup.failure = failure;
    run_with_free_descriptors([&] {  // throws the failure after the other ranks have received it
      rank_bootstrap = make_bootstrap(setup.exchange_timeout_s());
      communicator::create(std::move(rank_bootstrap), std::move(setup));
    });
    throw;
  }
  return insert_handle(communicator::create(std::move(rank_bootstrap), std::move(setup)));
}

// Runs the body of an entry point that writes to `*communicator`, which is NULL if it fails.
template <typename Make>
isthmus_status make_handle(const char* function, isthmus_communicator* result, Make&& make) {
  return guard([&] {
    require_not_null(ISTHMUS_HERE, function, "communicator", result);
    *result = nullptr;
    make();
  });
}

// Writes one property of a communicator to `*result`.
template <typename Result, typename Property>
isthmus_status query(const char* function, const char* argument, isthmus_communicator handle, Result* result,
                     Property membership::* property) {
  return guard([&] {
    require_not_null(ISTHMUS_HERE, function, argument, result);
    *result = handle_table::instance().find(handle).ranks().*property;
  });
}

// Replaces invalid UTF-8, because names from the system may have any encoding and the result must
// be valid JSON.
std::string dump_json(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Creates either all ranks or none. Uses one thread per rank, because creation is collective.
void create_all(int size, const isthmus_device* devices, const isthmus_communicator_options& options,
                isthmus_communicator* communicators) {
  const auto store = make_local_store();
  std::vector<std::shared_ptr<communicator>> new_communicators(static_cast<std::size_t>(size));
  const auto failure = run_concurrently(new_communicators.size(), [&](std::size_t rank) {
    auto setup = prepare(devices[rank], options);
    auto rank_bootstrap =
        make_store_bootstrap(store, "isthmus", static_cast<int>(rank), size, setup.exchange_timeout_s());
    new_communicators[rank] = communicator::create(std::move(rank_bootstrap), std::move(setup));
  });
  if (failure) throw error(*failure);
  for (std::size_t rank = 0; rank < new_communicators.size(); ++rank)
    communicators[rank] = insert_handle(std::move(new_communicators[rank]));
}

}  // namespace
}  // namespace isthmus

using isthmus::guard;
using isthmus::handle_table;

isthmus_status isthmus_communicator_set_progress(isthmus_communicator communicator, isthmus_progress progress,
                                                 void* context) {
  return guard([&] { handle_table::instance().find(communicator).set_progress(progress, context); });
}

isthmus_status isthmus_unique_id_create(const char* address, isthmus_unique_id* id) {
  return guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "unique_id_create", "id", id);
    *id = isthmus::start_tcp_store(address);
  });
}

isthmus_status isthmus_communicator_create(const isthmus_unique_id* id, int rank, int size,
                                           const isthmus_communicator_options* options,
                                           isthmus_communicator* communicator) {
  constexpr const char* function = "communicator_create";
  return isthmus::make_handle(function, communicator, [&] {
    isthmus::require_not_null(ISTHMUS_HERE, function, "id", id);
    isthmus::check_rank(function, rank, size);
    *communicator = isthmus::create_rank(function, options, [&](double timeout_s) {
      return isthmus::make_store_bootstrap(
          isthmus::connect_tcp_store(isthmus::parse_unique_id(*id), rank, size, timeout_s), "isthmus", rank,
          size, timeout_s);
    });
  });
}

isthmus_status isthmus_communicator_create_mpi(const isthmus_mpi_table* mpi,
                                               const isthmus_communicator_options* options,
                                               isthmus_communicator* communicator) {
  constexpr const char* function = "communicator_create_mpi";
  return isthmus::make_handle(function, communicator, [&] {
    isthmus::require_not_null(ISTHMUS_HERE, function, "mpi", mpi);
    *communicator = isthmus::create_rank(
        function, options, [&](double timeout_s) { return isthmus::make_mpi_bootstrap(mpi, timeout_s); });
  });
}

isthmus_status isthmus_communicator_create_store(const isthmus_store_table* store, int rank, int size,
                                                 const isthmus_communicator_options* options,
                                                 isthmus_communicator* communicator) {
  constexpr const char* function = "communicator_create_store";
  return isthmus::make_handle(function, communicator, [&] {
    isthmus::require_not_null(ISTHMUS_HERE, function, "store", store);
    isthmus::check_rank(function, rank, size);
    *communicator = isthmus::create_rank(function, options, [&](double timeout_s) {
      return isthmus::make_user_bootstrap(store, rank, size, timeout_s);
    });
  });
}

isthmus_status isthmus_communicator_create_all(int size, const isthmus_device* devices,
                                               const isthmus_communicator_options* options,
                                               isthmus_communicator* communicators) {
  return guard([&] {
    constexpr const char* function = "communicator_create_all";
    isthmus::check_rank(function, 0, size);
    isthmus::require_not_null(ISTHMUS_HERE, function, "communicators", communicators);
    for (int rank = 0; rank < size; ++rank) communicators[rank] = nullptr;
    isthmus::require_not_null(ISTHMUS_HERE, function, "devices", devices);
    for (int rank = 0; rank < size; ++rank) isthmus::check_device(ISTHMUS_HERE, function, devices[rank]);
    isthmus::create_all(size, devices, isthmus::read_options(function, options), communicators);
  });
}

isthmus_status isthmus_communicator_split(isthmus_communicator parent, int color, int key,
                                          isthmus_communicator* communicator) {
  return isthmus::make_handle("communicator_split", communicator, [&] {
    if (isthmus::group::is_active()) return isthmus::group::add_split(parent, color, key, communicator);
    auto subcommunicator = handle_table::instance().find(parent).split(color, key);
    if (subcommunicator) *communicator = isthmus::insert_handle(std::move(subcommunicator));
  });
}

isthmus_status isthmus_communicator_shrink(isthmus_communicator parent, double wait_s,
                                           isthmus_communicator* communicator) {
  constexpr const char* function = "communicator_shrink";
  return isthmus::make_handle(function, communicator, [&] {
    if (!(wait_s >= 0) || wait_s > 1e9)
      throw isthmus::invalid_argument(ISTHMUS_HERE,
                                      fmt::format("{}: wait_s = {} must be in [0, 1e9]", function, wait_s),
                                      "pass 0 to use the communicator's timeout");
    if (isthmus::group::is_active()) return isthmus::group::add_shrink(parent, wait_s, communicator);
    *communicator = isthmus::insert_handle(handle_table::instance().find(parent).shrink(wait_s));
  });
}

isthmus_status isthmus_communicator_parent_rank(isthmus_communicator communicator, int rank, int* parent_rank) {
  return guard([&] {
    constexpr const char* function = "communicator_parent_rank";
    isthmus::require_not_null(ISTHMUS_HERE, function, "parent_rank", parent_rank);
    const isthmus::membership& ranks = handle_table::instance().find(communicator).ranks();
    isthmus::check_rank(function, rank, ranks.size);
    *parent_rank = ranks.parent_rank_of[static_cast<std::size_t>(rank)];
  });
}

isthmus_status isthmus_communicator_destroy(isthmus_communicator communicator) {
  return guard([&] {
    if (communicator == nullptr) return;
    if (isthmus::group::has_work_for(communicator))
      throw isthmus::make_error(
          ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
          "communicator_destroy: communicator must not have operations in the open group of this thread",
          "call isthmus_group_end first");
    handle_table::instance().remove(communicator)->close();
  });
}

isthmus_status isthmus_communicator_abort(isthmus_communicator communicator) {
  return guard([&] {
    const auto member = handle_table::instance().share(communicator);
    member->abort(member->failures().causes().with_abort_diagnosis(
        isthmus::make_abort_failure("isthmus_communicator_abort", member->ranks().rank)));
  });
}

isthmus_status isthmus_communicator_abort_local(isthmus_communicator communicator) {
  return guard([&] {
    const auto member = handle_table::instance().share(communicator);
    member->failures().abort_local(
        isthmus::make_abort_failure("isthmus_communicator_abort_local", member->ranks().rank));
  });
}

isthmus_status isthmus_communicator_async_error(isthmus_communicator communicator) {
  return guard([&] {
    if (const auto failure = handle_table::instance().find(communicator).failure())
      throw isthmus::error(*failure);
  });
}

isthmus_status isthmus_communicator_rank(isthmus_communicator communicator, int* rank) {
  return isthmus::query("communicator_rank", "rank", communicator, rank, &isthmus::membership::rank);
}

isthmus_status isthmus_communicator_size(isthmus_communicator communicator, int* size) {
  return isthmus::query("communicator_size", "size", communicator, size, &isthmus::membership::size);
}

isthmus_status isthmus_communicator_device(isthmus_communicator communicator, isthmus_device* device) {
  return isthmus::query("communicator_device", "device", communicator, device, &isthmus::membership::device);
}

isthmus_status isthmus_communicator_local_size(isthmus_communicator communicator, int* local_size) {
  return isthmus::query("communicator_local_size", "local_size", communicator, local_size,
                        &isthmus::membership::process_size);
}

isthmus_status isthmus_communicator_nodes(isthmus_communicator communicator, int* nodes) {
  return isthmus::query("communicator_nodes", "nodes", communicator, nodes, &isthmus::membership::nodes);
}

isthmus_status isthmus_communicator_info(isthmus_communicator communicator, char* json, size_t capacity,
                                         size_t* required_bytes) {
  return guard([&] {
    const std::string text = isthmus::dump_json(handle_table::instance().find(communicator).info());
    isthmus::write_json(ISTHMUS_HERE, "communicator_info", text, json, capacity, required_bytes);
  });
}

isthmus_status isthmus_communicator_path(isthmus_communicator communicator, const isthmus_operation* operation,
                                         char* path, size_t capacity) {
  return guard([&] {
    constexpr const char* function = "communicator_path";
    isthmus::communicator& member = handle_table::instance().find(communicator);
    isthmus::require_not_null(ISTHMUS_HERE, function, "operation", operation);
    isthmus::write_json(ISTHMUS_HERE, function, member.path(*operation), path, capacity, nullptr);
  });
}

isthmus_status isthmus_communicator_explain(isthmus_communicator communicator,
                                            const isthmus_operation* operation, char* json, size_t capacity,
                                            size_t* required_bytes) {
  return guard([&] {
    isthmus::communicator& member = handle_table::instance().find(communicator);
    isthmus::require_not_null(ISTHMUS_HERE, "communicator_explain", "operation", operation);
    isthmus::write_json(ISTHMUS_HERE, "communicator_explain", isthmus::dump_json(member.explain(*operation)),
                        json, capacity, required_bytes);
  });
}
