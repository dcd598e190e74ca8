// The communicator of SYCL programs: how it is made, what it can be asked, how it is divided and ended. What it
// can communicate is in collectives.hpp.
#ifndef ISTHMUS_SYCL_COMMUNICATOR_HPP
#define ISTHMUS_SYCL_COMMUNICATOR_HPP

#include <isthmus/partition.hpp>
#include <isthmus/sycl/collectives.hpp>
#include <isthmus/sycl/platform.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace isthmus {

/// What a communicator is made with. Ranks whose rules differ get ISTHMUS_ERROR_MISMATCH, so give all of them
/// the same configuration.
/// @code
/// isthmus::communicator ranks{device, id, rank, size, {.config = "site.toml", .timeout_s = 30}};
/// @endcode
struct communicator_options {
  std::string config = {};  // TOML file; "": ISTHMUS_CONFIG, ./isthmus.toml, user and system folders
  double timeout_s = 0;     // bound on every wait for other ranks; 0: config or 300 s
  host_execution host = host_execution::calling_thread;
};

/// What ranks meet by: address and port of a store and a secret of 256 bits. 128 bytes, trivially copyable;
/// send it by MPI, a file, a socket, and treat it as a password.
using unique_id = isthmus_unique_id;

/// Starts a store in this process that listens until all ranks that met through it have destroyed their
/// communicators, and returns its id. One rank calls this and hands the id to the others by any means.
/// @code
/// isthmus::unique_id id;
/// if (rank == 0) id = isthmus::make_unique_id("node17");
/// MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
/// isthmus::communicator ranks{device, id, rank, size};
/// @endcode
/// @param address Where the store listens, "host" or "host:port"; the others must reach it. Null: loopback and
///   a free port, so ranks of one machine.
/// @return The id; it holds a secret.
/// @throws isthmus::exception ISTHMUS_ERROR_SYSTEM when the address can't be listened on.
inline unique_id make_unique_id(const char* address = nullptr) {
  unique_id id;
  detail::check(isthmus_unique_id_create(address, &id));
  return id;
}

/// One rank's membership in a group of ranks, on one device. Move-only; what was moved from only refuses calls.
///
/// Every member function that communicates is collective: all ranks call the operations of one communicator in
/// the same order. The operations are those of isthmus::collectives, which says what they share.
///
/// Errors. isthmus::exception, with argument, value, rule and hint. A call that is refused
/// (ISTHMUS_ERROR_INVALID_ARGUMENT, _INVALID_USAGE, _UNSUPPORTED) has written nothing, and the communicator
/// stays usable. A failure on the way (ISTHMUS_ERROR_TIMEOUT, _REMOTE, _BACKEND) poisons it on all ranks: later
/// calls throw ISTHMUS_ERROR_ABORTED. Failures in the background reach the queue's async handler and
/// async_error().
///
/// Threads. Calls on one communicator must not overlap; abort() may come at any time from any thread. Several
/// ranks of one process are driven by a thread each or, from one thread, inside groups; ungrouped calls from
/// one thread wait for ranks that cannot come and fail with the timeout.
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
  /// Collective over `size` ranks with the same id; blocks until all have met, at most the timeout. Ranks of
  /// one process do this from a thread each, or use all().
  /// @param device Where this rank's memory is; queues of its operations belong to it. A CPU device is the
  ///   platform `host`.
  /// @param id From make_unique_id(), the same on all ranks.
  /// @param rank This rank, in [0, size); no two ranks have the same.
  /// @param size How many ranks meet.
  /// @param options Configuration, timeout and how operations of the host run.
  /// @throws isthmus::exception ISTHMUS_ERROR_TIMEOUT names the ranks that did not come; _MISMATCH what ranks
  ///   disagree about; _CONFIG a device whose platform is not known, or a bad file.
  communicator(const sycl::device& device, const unique_id& id, int rank, int size,
               const communicator_options& options = {})
      : communicator(create(device, options,
                            [&](const isthmus_communicator_options& native, isthmus_communicator* handle) {
                              return isthmus_communicator_create(&id, rank, size, &native, handle);
                            }),
                     device, options.host) {}

  /// Takes over a handle of the C ABI, which is destroyed with this object, and also when this throws.
  /// @param handle From any isthmus_communicator_create function.
  /// @param device The device that it was created on.
  /// @param host How its operations run where the platform is the host.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT or _UNSUPPORTED when host_execution::host_task
  ///   is not possible here.
  communicator(isthmus_communicator handle, const sycl::device& device,
               host_execution host = host_execution::calling_thread)
      : collectives(std::make_shared<detail::rank_state>(handle, device, host)) {}

  /// All ranks of one communicator in this process; all or none are created. Does not meet anybody, so it needs
  /// no id.
  /// @code
  /// auto ranks = isthmus::communicator::create_all(sycl::device::get_devices(sycl::info::device_type::gpu));
  /// @endcode
  /// @param devices Rank i is on devices[i]. A device may come several times, and sub-devices count as devices.
  /// @param options As for the constructor; host_execution::host_task is refused for more than one rank.
  /// @return One communicator for each device, in their order.
  /// @throws isthmus::exception As the constructor.
  static std::vector<communicator> create_all(const std::vector<sycl::device>& devices,
                                       const communicator_options& options = {}) {
    std::vector<isthmus_device> native_devices;
    for (const sycl::device& device : devices) {
      native_devices.push_back(detail::native_device(device, config_path(options)));
    }
    const isthmus_communicator_options native = native_options(options, {});
    std::vector<isthmus_communicator> handles(devices.size(), nullptr);
    detail::check(isthmus_communicator_create_all(static_cast<int>(devices.size()), native_devices.data(), &native,
                                                  handles.data()));
    return adopt_all(handles, devices, options.host);
  }

  /// For front ends that add a way for ranks to meet (sycl/mpi.hpp): fills in the native options for `device`.
  /// @param device The rank's device.
  /// @param options As for the constructor.
  /// @param create_handle Called as make(const isthmus_communicator_options&, isthmus_communicator*); returns the C
  ///   ABI's status.
  /// @return The handle, for the constructor that takes one over.
  /// @throws isthmus::exception What `make` reported.
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
  /// Waits for this rank's operations in the background, each of which ends by the timeout at the latest, and
  /// releases everything. Never waits for other ranks, never throws.
  ~communicator() {
    if (m_rank) m_rank->close();
  }

  /// This rank, in [0, size()).
  int rank() const { return state().rank(); }
  /// The number of ranks.
  int size() const { return state().size(); }
  /// How many of the ranks live in this process; 1 for MPI style.
  int local_size() const { return state().local_size(); }
  /// The device that this rank was made on; queues of its operations belong to it.
  const sycl::device& device() const { return state().device(); }
  /// What drives the device: host, CUDA, HIP, Level Zero or OpenCL. Every CPU device is the host.
  isthmus_platform platform() const { return state().native().platform; }
  /// The C ABI's handle, for calls that have no C++ form. It stays the communicator's: do not destroy it.
  isthmus_communicator native() const { return state().handle(); }
  /// How operations reach the core; decided once, for every call. explain() has the reason.
  enqueue_path path() const { return state().path().path; }

  /// What this communicator is: ranks, nodes, device, bootstrap, every backend with version, state and, if it
  /// is not available, why, and the rules with their sources.
  /// @return JSON, as of isthmus_communicator_info.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE on a communicator that was moved from.
  std::string info() const {
    return read_json([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
      return isthmus_communicator_info(native(), text, capacity, required_bytes);
    });
  }

  /// Which way a call would take. Runs the selector that a call runs, so it is never a guess; communicates
  /// nothing, so any rank may call it alone.
  /// @code
  /// std::puts(ranks.explain(ISTHMUS_ALLREDUCE, 1 << 20).c_str());
  /// @endcode
  /// @param collective A row of THE TABLE.
  /// @param count Elements, as in the call.
  /// @param type Their datatype.
  /// @param op The reduction operation; of no meaning where the collective has none.
  /// @param root Root, or the peer of send and recv.
  /// @return JSON: {"sycl": {"path", "reason"}, "selection": ...}, where selection is what
  ///   isthmus_communicator_explain says: backend, algorithm, rule, and why every other rule was not taken.
  /// @throws isthmus::exception ISTHMUS_ERROR_UNSUPPORTED where no backend can do it.
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

  /// Collective. Ranks with the same color form a new communicator with the configuration and timeout of this
  /// one. For several ranks of one process: split_all, or a thread each.
  /// @code
  /// const auto row = ranks.split(ranks.rank() / columns, ranks.rank() % columns);
  /// @endcode
  /// @param color >= 0, or ISTHMUS_NO_COLOR for a rank that joins no part.
  /// @param key The order in the new communicator; equal keys keep their old order.
  /// @return The part that this rank is in; none for ISTHMUS_NO_COLOR.
  /// @throws isthmus::exception As the constructor.
  std::optional<communicator> split(int color, int key) const {
    isthmus_communicator handle = nullptr;
    detail::check(isthmus_communicator_split(native(), color, key, &handle));
    if (handle == nullptr) return std::nullopt;
    return communicator(handle, device(), host());
  }

  /// After a failure: the ranks that still call this form a new communicator in their old order, with the
  /// configuration and timeout of this one, which is poisoned and only to be destroyed. Collective over the
  /// survivors. For several ranks of one process: a thread each.
  /// @code
  /// try { ranks.allreduce(queue, data, n); } catch (const isthmus::exception&) { ranks = ranks.shrink(); }
  /// @endcode
  /// @param wait_s How long ranks whose process has not ended are waited for; 0: the timeout.
  /// @return The communicator of the survivors; parent_rank() tells who they were.
  /// @throws isthmus::exception ISTHMUS_ERROR_TIMEOUT when too few came to be sure that no others go on,
  /// _REMOTE
  ///   when the others have gone on without this rank or the store is lost, _UNSUPPORTED on an MPI without
  ///   ULFM.
  communicator shrink(double wait_s = 0) const {
    isthmus_communicator handle = nullptr;
    detail::check(isthmus_communicator_shrink(native(), wait_s, &handle));
    return communicator(handle, device(), host());
  }

  /// The number that a rank of this communicator had in the one that it was split or shrunk from.
  /// @param rank In [0, size()).
  /// @return -1 where there was none.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT when `rank` is out of range.
  int parent_rank(int rank) const {
    int parent = -1;
    detail::check(isthmus_communicator_parent_rank(native(), rank, &parent));
    return parent;
  }

  /// split() for all ranks that this process has of one communicator, from one thread.
  /// @param ranks All local ranks of one communicator.
  /// @param colors One color for each of them, in the same order.
  /// @param keys One key for each of them.
  /// @return The parts, in the order of `ranks`.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT where the three have different lengths; else as
  ///   split().
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
    std::vector<std::optional<communicator>> subcommunicators(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (handles[r] != nullptr) subcommunicators[r] = communicator(handles[r], ranks[r].device(), ranks[r].host());
    }
    return subcommunicators;
  }

  /// Poisons the communicator here and, as far as they can be reached, on the other ranks: operations that wait
  /// end with ISTHMUS_ERROR_ABORTED, and so does every later call. For a program that gives up while other
  /// ranks wait. Any thread, at any time.
  /// @throws isthmus::exception ISTHMUS_ERROR_INVALID_USAGE on a communicator that was moved from.
  void abort() const { detail::check(isthmus_communicator_abort(native())); }

  /// Does not wait for operations, so it may be polled.
  /// @return The failure that poisoned the communicator or the first that happened in the background; none when
  ///   all is well.
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
