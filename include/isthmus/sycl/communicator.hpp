// The communicator of SYCL programs: one rank's membership in a group of ranks, on one device.
#ifndef ISTHMUS_SYCL_COMMUNICATOR_HPP
#define ISTHMUS_SYCL_COMMUNICATOR_HPP

#include <isthmus/sycl/group.hpp>
#include <isthmus/sycl/platform.hpp>
#include <span>
#include <string>
#include <vector>

namespace isthmus {

struct communicator_options {
  std::string config = {};  // TOML file; "": ISTHMUS_CONFIG, ./isthmus.toml, user and system folders
  double timeout_s = 0;     // bound on every wait for other ranks; 0: config or 300 s
  host_execution host = host_execution::calling_thread;
};

using unique_id = isthmus_unique_id;

// A new id for `communicator(device, id, rank, size)`: one rank makes it, the others get it by any means.
// `address` is "host" or "host:port"; null: loopback. The id holds a secret.
inline unique_id make_unique_id(const char* address = nullptr) {
  unique_id id;
  detail::check(isthmus_unique_id_create(address, &id));
  return id;
}

using dependencies = std::vector<sycl::event>;
using counts = std::span<const std::uint64_t>;

// Move-only. Every member function that communicates is collective: all ranks call the operations of one
// communicator in the same order. Operands are described in operand.hpp; `count` and displacements are in
// elements. Shapes are those of isthmus.h, with n = size() and block r = elements [r*count, (r+1)*count).
//
// Ordering. An operation starts after its dependencies, after earlier accesses to its buffers and, on an
// in-order queue, after earlier work of the queue; the returned event, later accesses to its buffers and,
// on an in-order queue, later work see its result. On the host platform the call returns when this rank's
// part is complete (host_execution says how to change that); on device platforms it does not wait.
// Inside an isthmus::group nothing starts before the group's end.
// Errors. isthmus::exception. A call that is refused has written nothing. Failures in the background
// reach the queue's async handler, async_error() and, as ISTHMUS_ERROR_ABORTED, every later call.
// Threads. Calls on one communicator must not overlap; abort() may come at any time. Several ranks of one
// process are driven by a thread each or, from one thread, inside groups; ungrouped calls from one thread
// wait for ranks that cannot come and fail with the timeout.
class communicator {
 public:
  // Collective over `size` ranks with the same id; blocks until all have met, at most the timeout.
  communicator(const sycl::device& device, const unique_id& id, int rank, int size,
               const communicator_options& options = {})
      : communicator(create(device, options,
                            [&](const isthmus_communicator_options& native, isthmus_communicator* handle) {
                              return isthmus_communicator_create(&id, rank, size, &native, handle);
                            }),
                     device, options.host) {}

  // Takes over a handle of the C ABI that was created on `device`.
  communicator(isthmus_communicator handle, const sycl::device& device,
               host_execution host = host_execution::calling_thread)
      : m_rank(std::make_shared<detail::rank_state>(handle, device, host)) {}

  // All ranks of one communicator in this process, rank i on devices[i] (sub-devices count as devices).
  static std::vector<communicator> all(const std::vector<sycl::device>& devices,
                                       const communicator_options& options = {}) {
    std::vector<isthmus_device> natives;
    for (const sycl::device& device : devices) {
      natives.push_back(detail::native_device(device, config_path(options)));
    }
    const isthmus_communicator_options native = native_options(options, {});
    std::vector<isthmus_communicator> handles(devices.size(), nullptr);
    detail::check(isthmus_communicator_create_all(static_cast<int>(devices.size()), natives.data(), &native,
                                                  handles.data()));
    return adopt_all(handles, devices, options.host);
  }

  // Creates the handle with `make(options, &handle)`, which returns the C ABI's status; for front ends.
  template <typename Make>
  static isthmus_communicator create(const sycl::device& device, const communicator_options& options,
                                     Make&& make) {
    const isthmus_communicator_options native =
        native_options(options, detail::native_device(device, config_path(options)));
    isthmus_communicator handle = nullptr;
    detail::check(make(native, &handle));
    return handle;
  }

  communicator(communicator&&) noexcept = default;
  communicator& operator=(communicator&& other) noexcept {
    std::swap(m_rank, other.m_rank);
    return *this;
  }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  // Waits for this rank's operations, never for other ranks.
  ~communicator() {
    if (m_rank) m_rank->close();
  }

  int rank() const { return state().rank(); }
  int size() const { return state().size(); }
  // Ranks of this communicator in this process.
  int local_size() const { return state().local_size(); }
  const sycl::device& device() const { return state().device(); }
  isthmus_platform platform() const { return state().native().platform; }
  // The C ABI's handle; stays the communicator's.
  isthmus_communicator native() const { return state().handle(); }
  // How its operations reach the core.
  enqueue_path path() const { return state().path().path; }

  // JSON of isthmus_communicator_info.
  std::string info() const {
    return read_json([&](char* text, std::size_t capacity, std::size_t* needed) {
      return isthmus_communicator_info(native(), text, capacity, needed);
    });
  }

  // JSON: {"sycl": {"path", "reason"}, "selection": what isthmus_communicator_explain says}: which backend,
  // algorithm and rule a call would take and why every other rule did not.
  std::string explain(isthmus_collective collective, std::uint64_t count, datatype type = datatype::float32,
                      reduction_op op = reduction_op::sum, int root = 0) const {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = static_cast<isthmus_datatype>(type);
    operation.op = static_cast<isthmus_reduction_op>(op);
    operation.root = root;
    operation.count = count;
    const std::string selection = read_json([&](char* text, std::size_t capacity, std::size_t* needed) {
      return isthmus_communicator_explain(native(), &operation, text, capacity, needed);
    });
    const detail::path_choice& path = state().path();
    return std::string(R"({"sycl": {"path": ")") + detail::path_name(path.path) + R"(", "reason": ")" +
           path.reason + R"("}, "selection": )" + selection + "}";
  }

  // Collective. Ranks with the same color >= 0 form a new communicator, ordered by (key, old rank); color
  // ISTHMUS_NO_COLOR gets none. Several ranks of one process: split_all, or a thread each.
  std::optional<communicator> split(int color, int key) const {
    isthmus_communicator handle = nullptr;
    detail::check(isthmus_communicator_split(native(), color, key, &handle));
    if (handle == nullptr) return std::nullopt;
    return communicator(handle, device(), host());
  }

  // The same for all ranks that this process has of one communicator, from one thread.
  static std::vector<std::optional<communicator>> split_all(std::span<const communicator> ranks,
                                                            std::span<const int> colors,
                                                            std::span<const int> keys) {
    if (ranks.size() != colors.size() || ranks.size() != keys.size()) {
      throw detail::make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                                    .message = "colors and keys: " + std::to_string(colors.size()) + " and " +
                                               std::to_string(keys.size()) +
                                               " entries; the rule is one for each of " +
                                               std::to_string(ranks.size()) + " ranks"});
    }
    std::vector<isthmus_communicator> handles(ranks.size(), nullptr);
    detail::run_core_group([&] {
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        detail::check(isthmus_communicator_split(ranks[r].native(), colors[r], keys[r], &handles[r]));
      }
    });
    std::vector<std::optional<communicator>> parts(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (handles[r] != nullptr) parts[r] = communicator(handles[r], ranks[r].device(), ranks[r].host());
    }
    return parts;
  }

  // Poisons the communicator here and, as far as they can be reached, on the other ranks. Any thread.
  void abort() const { detail::check(isthmus_communicator_abort(native())); }

  // The failure that poisoned the communicator or happened in the background; none when all is well.
  std::optional<exception> async_error() const {
    if (auto failure = state().failure()) return failure;
    if (isthmus_communicator_async_error(native()) != ISTHMUS_SUCCESS) return detail::last_exception();
    return std::nullopt;
  }

  // ---- collectives ------------------------------------------------------------------------------------

  // recv[count] on every rank = send[count] of root; send is read on root only.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event broadcast(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        int root, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_BROADCAST, .root = root, .count = count}, send, recv, after);
  }
  template <recv_operand Data>
  sycl::event broadcast(const sycl::queue& queue, const Data& data, std::uint64_t count, int root,
                        const dependencies& after = {}) const {
    return broadcast(queue, data, data, count, root, after);
  }

  // recv[count] on root = reduction over ranks of send[count]; recv is not touched elsewhere.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event reduce(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                     reduction_op op, int root, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_REDUCE, .op = native_op(op), .root = root, .count = count}, send,
               recv, after);
  }

  // recv[count] on every rank = reduction over ranks of send[count], bit-identical everywhere.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event allreduce(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        reduction_op op = reduction_op::sum, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_ALLREDUCE, .op = native_op(op), .count = count}, send, recv,
               after);
  }
  template <recv_operand Data>
    requires reducible_operand<Data>
  sycl::event allreduce(const sycl::queue& queue, const Data& data, std::uint64_t count,
                        reduction_op op = reduction_op::sum, const dependencies& after = {}) const {
    return allreduce(queue, data, data, count, op, after);
  }

  // recv[count] on rank r = reduction over ranks of block r of send[n*count].
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv> && reducible_operand<Send>
  sycl::event reduce_scatter(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                             reduction_op op = reduction_op::sum, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_REDUCE_SCATTER, .op = native_op(op), .count = count}, send, recv,
               after);
  }

  // Block r of recv[n*count] on every rank = send[count] of rank r.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event allgather(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                        const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_ALLGATHER, .count = count}, send, recv, after);
  }

  // recv_counts[r] elements at recv_displs[r] of recv = send of rank r; count is recv_counts[rank()]. Both
  // arrays have n entries and are equal on all ranks.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event allgatherv(const sycl::queue& queue, const Send& send, std::uint64_t count, const Recv& recv,
                         counts recv_counts, counts recv_displs, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_ALLGATHERV, .count = count}, send, recv, after,
               {.recv_counts = recv_counts, .recv_displs = recv_displs});
  }

  // Block r of recv[n*count] on root = send[count] of rank r.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event gather(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                     int root, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_GATHER, .root = root, .count = count}, send, recv, after);
  }

  // The same with counts and displacements, which are read on root only.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event gatherv(const sycl::queue& queue, const Send& send, std::uint64_t count, const Recv& recv,
                      counts recv_counts, counts recv_displs, int root, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_GATHERV, .root = root, .count = count}, send, recv, after,
               {.recv_counts = recv_counts, .recv_displs = recv_displs});
  }

  // recv[count] on rank r = block r of root's send[n*count].
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event scatter(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                      int root, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_SCATTER, .root = root, .count = count}, send, recv, after);
  }

  // The same with counts and displacements, which are read on root only.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event scatterv(const sycl::queue& queue, const Send& send, counts send_counts, counts send_displs,
                       const Recv& recv, std::uint64_t count, int root, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_SCATTERV, .root = root, .count = count}, send, recv, after,
               {.send_counts = send_counts, .send_displs = send_displs});
  }

  // Block s of recv[n*count] on rank r = block r of send[n*count] of rank s.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event alltoall(const sycl::queue& queue, const Send& send, const Recv& recv, std::uint64_t count,
                       const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_ALLTOALL, .count = count}, send, recv, after);
  }

  // The same with counts and displacements: recv_counts[s] here equals send_counts[r] on rank s.
  template <send_operand Send, recv_operand Recv>
    requires matching_operands<Send, Recv>
  sycl::event alltoallv(const sycl::queue& queue, const Send& send, counts send_counts, counts send_displs,
                        const Recv& recv, counts recv_counts, counts recv_displs,
                        const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_ALLTOALLV}, send, recv, after,
               {.send_counts = send_counts,
                .send_displs = send_displs,
                .recv_counts = recv_counts,
                .recv_displs = recv_displs});
  }

  // Point to point: the peer calls the other with the same count and type. A send may block until it is
  // received, so an exchange belongs in a group.
  template <send_operand Send>
  sycl::event send(const sycl::queue& queue, const Send& send, std::uint64_t count, int peer,
                   const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_SEND, .root = peer, .count = count}, send, nullptr, after);
  }
  template <recv_operand Recv>
  sycl::event recv(const sycl::queue& queue, const Recv& recv, std::uint64_t count, int peer,
                   const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_RECV, .root = peer, .count = count}, nullptr, recv, after);
  }

  // No rank leaves (host) or lets its stream pass (device) before every rank has entered.
  sycl::event barrier(const sycl::queue& queue, const dependencies& after = {}) const {
    return run(queue, {.collective = ISTHMUS_BARRIER}, nullptr, nullptr, after);
  }

 private:
  struct scalar_arguments {
    isthmus_collective collective;
    isthmus_reduction_op op = ISTHMUS_SUM;
    int root = 0;
    std::uint64_t count = 0;
  };
  struct vector_arguments {
    counts send_counts = {}, send_displs = {}, recv_counts = {}, recv_displs = {};
  };

  static isthmus_reduction_op native_op(reduction_op op) { return static_cast<isthmus_reduction_op>(op); }
  static const char* config_path(const communicator_options& options) {
    return options.config.empty() ? nullptr : options.config.c_str();
  }
  static isthmus_communicator_options native_options(const communicator_options& options,
                                                     isthmus_device device) {
    isthmus_communicator_options native{};
    native.struct_bytes = sizeof native;
    native.device = device;
    native.config_path = config_path(options);
    native.timeout_s = options.timeout_s;
    return native;
  }

  // Every handle gets an owner, or is destroyed; the one whose owner could not be made already is.
  static std::vector<communicator> adopt_all(const std::vector<isthmus_communicator>& handles,
                                             const std::vector<sycl::device>& devices, host_execution host) {
    std::vector<communicator> ranks;
    try {
      for (std::size_t r = 0; r < handles.size(); ++r) ranks.emplace_back(handles[r], devices[r], host);
    } catch (...) {
      for (std::size_t r = ranks.size() + 1; r < handles.size(); ++r) isthmus_communicator_destroy(handles[r]);
      throw;
    }
    return ranks;
  }

  template <typename Read>
  static std::string read_json(Read&& read) {
    std::size_t needed = 0;
    detail::check(read(nullptr, 0, &needed));
    std::string text(needed, '\0');
    detail::check(read(text.data(), text.size(), &needed));
    text.resize(needed == 0 ? 0 : needed - 1);
    return text;
  }

  detail::rank_state& state() const {
    if (m_rank) return *m_rank;
    throw detail::make_exception({.status = ISTHMUS_ERROR_INVALID_USAGE,
                                  .message = "the communicator was moved from",
                                  .hint = "use the object that it was moved to"});
  }
  host_execution host() const {
    return path() == enqueue_path::host_task ? host_execution::host_task : host_execution::calling_thread;
  }

  // Copies what a v-collective says, in units of the datatype; `units` is 1 but for types that travel as bytes.
  static std::vector<std::uint64_t> scaled(const detail::request& request, const char* name, counts values,
                                           bool needed, std::uint64_t units) {
    const auto size = static_cast<std::size_t>(request.rank->size());
    if (!needed) return {};
    if (values.size() != size) {
      throw request.error(ISTHMUS_ERROR_INVALID_ARGUMENT,
                          std::string(name) + " has " + std::to_string(values.size()) +
                              " entries; the rule is one for each of " + std::to_string(size) + " ranks",
                          "give counts and displacements for every rank");
    }
    std::vector<std::uint64_t> result(values.begin(), values.end());
    for (std::uint64_t& value : result) value *= units;
    return result;
  }

  template <typename Send, typename Recv>
  sycl::event run(const sycl::queue& queue, const scalar_arguments& scalars, const Send& send, const Recv& recv,
                  const dependencies& after, const vector_arguments& vectors = {}) const {
    state();
    detail::request request{.rank = m_rank,
                            .queue = queue,
                            .operation = {},
                            .send = detail::traits_of<Send>::make(send),
                            .recv = detail::traits_of<Recv>::make(recv),
                            .send_counts = {},
                            .send_displs = {},
                            .recv_counts = {},
                            .recv_displs = {},
                            .dependencies = after};
    request.operation.collective = scalars.collective;
    request.operation.op = scalars.op;
    request.operation.root = scalars.root;
    const detail::element element = detail::elements_of(request);
    request.operation.datatype = element.type;
    request.operation.count = scalars.count * element.units;
    const bool send_vectors = request.row().send_extent == detail::extent::COUNTS && request.sends();
    const bool recv_vectors = request.row().recv_extent == detail::extent::COUNTS && request.receives();
    request.send_counts = scaled(request, "send_counts", vectors.send_counts, send_vectors, element.units);
    request.send_displs = scaled(request, "send_displs", vectors.send_displs, send_vectors, element.units);
    request.recv_counts = scaled(request, "recv_counts", vectors.recv_counts, recv_vectors, element.units);
    request.recv_displs = scaled(request, "recv_displs", vectors.recv_displs, recv_vectors, element.units);
    detail::validate(request);
    detail::group_state& group = detail::this_threads_group();
    if (group.depth == 0) return detail::run(std::move(request));
    group.requests.push_back(std::move(request));
    return {};
  }

  std::shared_ptr<detail::rank_state> m_rank;
};

}  // namespace isthmus

#endif
