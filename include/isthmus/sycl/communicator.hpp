// The communicator of SYCL programs: creation, queries, splitting and destruction. The operations
// are in collectives.hpp.
#ifndef ISTHMUS_SYCL_COMMUNICATOR_HPP
#define ISTHMUS_SYCL_COMMUNICATOR_HPP

#include <isthmus/tools.h>

#include <isthmus/partition.hpp>
#include <isthmus/sycl/collectives.hpp>
#include <isthmus/sycl/platform.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace isthmus {

/// Options for creating a communicator. Use the same configuration on all ranks; if the rules differ, the
/// ranks get ISTHMUS_ERROR_MISMATCH.
/// @code
/// isthmus::communicator ranks{device, id, rank, size, {.config = "site.toml", .timeout_s = 30}};
/// @endcode
struct communicator_options {
  std::string config = {};  // TOML file; "": ISTHMUS_CONFIG, ./isthmus.toml, user and system folders
  double timeout_s = 0;     // limit of every wait for other ranks; 0: configuration or 300 s
  host_execution host = host_execution::calling_thread;
};

/// The rendezvous id of a communicator: the address and port of a store, and a 256-bit secret. It has 128 bytes
/// and is trivially copyable. Send it with MPI, a file or a socket, and treat it like a password.
using unique_id = isthmus_unique_id;

/// Starts a store in this process and returns its id. One rank calls this and sends the id to the others by any
/// means. The store listens until all ranks that used it have destroyed their communicators.
/// @code
/// isthmus::unique_id id;
/// if (rank == 0) id = isthmus::make_unique_id("node17");
/// MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
/// isthmus::communicator ranks{device, id, rank, size};
/// @endcode
/// @param address The address to listen on, "host" or "host:port", which the other ranks must be able to reach.
///   Null: loopback and a free port, for ranks on one machine.
/// @return The id; it contains a secret.
/// @throws isthmus::exception ISTHMUS_ERROR_SYSTEM if listening on the address fails.
inline unique_id make_unique_id(const char* address = nullptr) {
  unique_id id;
  detail::check(isthmus_unique_id_create(address, &id));
  return id;
}

/// One rank's handle to a communicator, on one device. Move-only; a moved-from communicator rejects all calls.
///
/// Ordering: every member function that communicates is collective. All ranks must call the operations of a
///   communicator in the same order. isthmus::collectives describes the operations.
///
/// Errors: all failures throw isthmus::exception, with argument, value, rule and hint. A rejected call
///   (ISTHMUS_ERROR_INVALID_ARGUMENT, _INVALID_USAGE, _UNSUPPORTED) has written nothing, and the communicator
///   stays usable. A failure after the start (ISTHMUS_ERROR_TIMEOUT, _REMOTE, _BACKEND) aborts the communicator
///   on all ranks: later calls throw ISTHMUS_ERROR_ABORTED. Asynchronous failures reach the queue's async
///   handler and async_error().
///
/// Thread safety: calls on one communicator must not overlap, except abort(), which any thread may call at any
///   time. If a process has several ranks, drive each from its own thread, or all from one thread inside
///   groups. If one thread calls them outside of a group, the first call waits for ranks that cannot arrive,
///   and times out.
/// @code
/// isthmus::communicator ranks{device, id, rank, size};
/// sycl::queue queue{device, sycl::property::queue::in_order{}};
/// float* data = sycl::malloc_device<float>(1000, queue);
/// queue.fill(data, 1.0F, 1000);
/// ranks.allreduce(queue, data, 1000);                       // every element is now size()
/// const sycl::event done = ranks.broadcast(queue, data, 1000, 0);
/// @endcode
class communicator : public collectives {
 public:
  /// Creates a communicator of `size` ranks. Collective over the ranks that pass the same id. Waits up
  /// to the timeout until all ranks have called it. If one process has several ranks, use one thread per
  /// rank or create_all().
  /// @param device The device of this rank's memory and of the queues for its operations. A CPU device belongs
  ///   to the platform `host`.
  /// @param id From make_unique_id(), the same on all ranks.
  /// @param rank This rank, unique in [0, size).
  /// @param size The number of ranks.
  /// @param options Configuration, timeout and the execution of host operations.
  /// @throws isthmus::exception ISTHMUS_ERROR_TIMEOUT lists the missing ranks; _MISMATCH names the setting that
  ///   differs; _CONFIG if the device's platform is unknown or the file is invalid.
  communicator(const sycl::device& device, const unique_id& id, int rank, int size,
               const communicator_options& options = {})
      : communicator(create(device, options,
                            [&](const isthmus_communicator_options& native, isthmus_communicator* handle) {
                              return isthmus_communicator_create(&id, rank, size, &native, handle);
                            }),
                     device, options.host) {}

  /// Takes ownership of a C ABI handle. This object destroys the handle, even if this constructor throws.
  /// @param handle From any isthmus_communicator_create function.
  /// @param device The device that the handle was created on.
  /// @param host How operations are executed on the host platform.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT or _UNSUPPORTED if host_execution::host_task
  ///   is not possible.
  communicator(isthmus_communicator handle, const sycl::device& device,
               host_execution host = host_execution::calling_thread)
      : collectives(std::make_shared<detail::rank_state>(handle, device, host)) {}

  /// Creates all ranks of a communicator in this process, or none if there is a failure. Needs no id
  /// and no rendezvous.
  /// @code
  /// auto ranks = isthmus::communicator::create_all(sycl::device::get_devices(sycl::info::device_type::gpu));
  /// @endcode
  /// @param devices Rank i uses devices[i]. A device may appear several times, and sub-devices
  ///   count as devices.
  /// @param options As for the constructor; host_execution::host_task is rejected for more than one rank.
  /// @return One communicator per device, in the order of `devices`.
  /// @throws isthmus::exception As the constructor.
  static std::vector<communicator> create_all(const std::vector<sycl::device>& devices,
                                              const communicator_options& options = {}) {
    std::vector<isthmus_device> native_devices;
    for (const sycl::device& device : devices) {
      native_devices.push_back(detail::native_device(device, config_path(options)));
    }
    const isthmus_communicator_options native = native_options(options, {});
    std::vector<isthmus_communicator> handles(devices.size(), nullptr);
    detail::check(isthmus_communicator_create_all(static_cast<int>(devices.size()), native_devices.data(),
                                                  &native, handles.data()));
    return adopt_all(handles, devices, options.host);
  }

  /// Creates a C ABI handle with the native options for `device`. Used by front ends that add a
  /// bootstrap method (sycl/mpi.hpp).
  /// @param device The rank's device.
  /// @param options As for the constructor.
  /// @param create_handle Is called as create_handle(const isthmus_communicator_options&,
  ///   isthmus_communicator*); returns a C ABI status.
  /// @return The handle, for the constructor that takes ownership.
  /// @throws isthmus::exception The failure that `create_handle` reported.
  template <typename CreateHandle>
  static isthmus_communicator create(const sycl::device& device, const communicator_options& options,
                                     CreateHandle&& create_handle) {
    const isthmus_communicator_options native =
        native_options(options, detail::native_device(device, config_path(options)));
    isthmus_communicator handle = nullptr;
    detail::check(create_handle(native, &handle));
    return handle;
  }

  communicator(communicator&&) noexcept = default;
  communicator& operator=(communicator&& other) noexcept {
    std::swap(m_rank, other.m_rank);
    return *this;
  }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  /// Waits up to the timeout for this rank's asynchronous operations, then releases all resources. Never
  /// waits for other ranks and never throws.
  ~communicator() {
    if (m_rank) m_rank->close();
  }

  /// Returns this rank, in [0, size()).
  int rank() const { return state().rank(); }
  /// Returns the number of ranks.
  int size() const { return state().size(); }
  /// Returns the number of ranks in this process; 1 with one rank per process, as in MPI.
  int local_size() const { return state().local_size(); }
  /// Returns the device that this rank was created on. The queues of all operations must belong to it.
  const sycl::device& device() const { return state().device(); }
  /// Returns the platform of the device: host, CUDA, HIP, Level Zero or OpenCL. Every CPU device is the host.
  isthmus_platform platform() const { return state().native().platform; }
  /// Returns the C ABI handle, for calls without a C++ form. The communicator keeps ownership: do
  /// not destroy it.
  isthmus_communicator native() const { return state().handle(); }
  /// Returns the path from operations to the core, which is the same for all calls. explain() gives the reason
  /// for the choice.
  enqueue_path path() const { return state().path().path; }

  /// Describes this communicator: ranks, nodes, device, bootstrap, rules with their sources, and every backend
  /// with its version, state and, if it is unavailable, the reason.
  /// @return JSON, as from isthmus_communicator_info.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE if the communicator was moved from.
  std::string info() const {
    return read_json([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
      return isthmus_communicator_info(native(), text, capacity, required_bytes);
    });
  }

  /// Explains the selection for a call. Runs the same selection as the call. Does not communicate, so a single
  /// rank can call it.
  /// @code
  /// std::puts(ranks.explain(ISTHMUS_ALLREDUCE, 1 << 20).c_str());
  /// @endcode
  /// @param collective The collective.
  /// @param count The number of elements, as in the call.
  /// @param type The datatype of the elements.
  /// @param op The reduction operation; ignored if the collective does not reduce.
  /// @param root The root, or the peer of send and recv.
  /// @return JSON: {"sycl": {"path", "reason"}, "selection": ...}. selection is the result of
  ///   isthmus_communicator_explain: backend, algorithm, rule, and the reason why each other rule was not used.
  /// @throws isthmus::exception ISTHMUS_ERROR_UNSUPPORTED if no backend can run the call.
  std::string explain(isthmus_collective collective, std::uint64_t count, datatype type = datatype::float32,
                      reduction_op op = reduction_op::sum, int root = 0) const {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = static_cast<isthmus_datatype>(type);
    operation.op = static_cast<isthmus_reduction_op>(op);
    operation.root = root;
    operation.count = count;
    const std::string selection = read_json([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
      return isthmus_communicator_explain(native(), &operation, text, capacity, required_bytes);
    });
    const detail::path_choice& path = state().path();
    return std::string(R"({"sycl": {"path": ")") + detail::path_name(path.path) + R"(", "reason": ")" +
           path.reason + R"("}, "selection": )" + selection + "}";
  }

  /// Splits the communicator. Collective. Ranks with the same color form a new communicator with the
  /// configuration and timeout of this one. If one process has several ranks, use split_all() or one
  /// thread per rank.
  /// @code
  /// const auto row = ranks.split(ranks.rank() / columns, ranks.rank() % columns);
  /// @endcode
  /// @param color At least 0, or ISTHMUS_NO_COLOR for a rank that does not join a subcommunicator.
  /// @param key Determines the order in the new communicator. Ranks with equal keys keep their old order.
  /// @return This rank's subcommunicator; std::nullopt for ISTHMUS_NO_COLOR.
  /// @throws isthmus::exception As the constructor.
  std::optional<communicator> split(int color, int key) const {
    isthmus_communicator handle = nullptr;
    detail::check(isthmus_communicator_split(native(), color, key, &handle));
    if (handle == nullptr) return std::nullopt;
    return communicator(handle, device(), host());
  }

  /// Forms a new communicator of the surviving ranks after a failure, in their old order, with the
  /// configuration and timeout of this one. Collective over the survivors. This communicator is aborted and can
  /// only be destroyed. If one process has several ranks, use one thread per rank.
  /// @code
  /// try { ranks.allreduce(queue, data, n); } catch (const isthmus::exception&) { ranks = ranks.shrink(); }
  /// @endcode
  /// @param wait_s The time to wait for ranks whose process has not exited, in seconds; 0: the timeout.
  /// @return The communicator of the survivors; parent_rank() maps its ranks to the old ones.
  /// @throws isthmus::exception ISTHMUS_ERROR_TIMEOUT if too few ranks called to rule out that the other ranks
  ///   continue without them; _REMOTE if the others have continued without this rank or the store is lost;
  ///   _UNSUPPORTED on an MPI without ULFM.
  communicator shrink(double wait_s = 0) const {
    isthmus_communicator handle = nullptr;
    detail::check(isthmus_communicator_shrink(native(), wait_s, &handle));
    return communicator(handle, device(), host());
  }

  /// Returns the rank in the parent: the communicator that this one was split or shrunk from.
  /// @param rank A rank in [0, size()).
  /// @return The rank in the parent; -1 if there is no parent.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT if `rank` is out of range.
  int parent_rank(int rank) const {
    int parent = -1;
    detail::check(isthmus_communicator_parent_rank(native(), rank, &parent));
    return parent;
  }

  /// split() for all ranks of one communicator in this process, from one thread.
  /// @param ranks All local ranks of one communicator.
  /// @param colors One color per rank, in the same order.
  /// @param keys One key per rank.
  /// @return The subcommunicators, in the order of `ranks`.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT if the three lengths differ. Also throws the
  ///   exceptions of split().
  static std::vector<std::optional<communicator>> split_all(std::span<const communicator> ranks,
                                                            std::span<const int> colors,
                                                            std::span<const int> keys) {
    if (ranks.size() != colors.size() || ranks.size() != keys.size()) {
      throw detail::make_exception(
          {.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
           .message = "colors and keys: " + std::to_string(colors.size()) + " and " +
                      std::to_string(keys.size()) +
                      " entries, must have one per rank: " + std::to_string(ranks.size()),
           .hint = "pass one color and one key for each element of ranks"});
    }
    std::vector<isthmus_communicator> handles(ranks.size(), nullptr);
    detail::run_core_group([&] {
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        detail::check(isthmus_communicator_split(ranks[r].native(), colors[r], keys[r], &handles[r]));
      }
    });
    std::vector<std::optional<communicator>> subcommunicators(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (handles[r] != nullptr)
        subcommunicators[r] = communicator(handles[r], ranks[r].device(), ranks[r].host());
    }
    return subcommunicators;
  }

  /// Aborts the communicator on this rank and on all other ranks that can be reached. Pending operations and
  /// all later calls fail with ISTHMUS_ERROR_ABORTED. Call it if the program stops while other ranks wait.
  /// Thread safety: can be called from any thread at any time.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE if the communicator was moved from.
  void abort() const { detail::check(isthmus_communicator_abort(native())); }

  /// Returns the first asynchronous failure. Does not wait for operations, so it can be polled.
  /// @return The failure that aborted the communicator, or the first background failure; std::nullopt if
  ///   there is none.
  std::optional<exception> async_error() const {
    if (auto failure = state().failure()) return failure;
    if (isthmus_communicator_async_error(native()) != ISTHMUS_SUCCESS) return detail::last_exception();
    return std::nullopt;
  }

 private:
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
    native.starts_together = 1;  // a SYCL program does not control its calls of the device driver
    return native;
  }

  // Creates an owner for each handle. If a constructor throws, it has destroyed its own handle, and the
  // remaining handles are destroyed here.
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
    std::size_t required_bytes = 0;
    detail::check(read(nullptr, 0, &required_bytes));
    std::string text(required_bytes, '\0');
    detail::check(read(text.data(), text.size(), &required_bytes));
    text.resize(required_bytes == 0 ? 0 : required_bytes - 1);
    return text;
  }

  detail::rank_state& state() const { return detail::state_of(m_rank); }
  host_execution host() const {
    return path() == enqueue_path::host_task ? host_execution::host_task : host_execution::calling_thread;
  }
};

}  // namespace isthmus

#endif
