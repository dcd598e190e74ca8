// The torch.distributed backend "isthmus". Each call of c10d::Backend becomes a task of Isthmus operations.
//
// Ordering: the collectives of a group on one device run in the order of the calls. send and recv run
//   concurrently with them, in order for each peer, direction and tag. Tags are ignored on devices,
//   as with NCCL.
// Processes: a forked child cannot use the group. Its calls throw, and it leaves the group's threads and connections to
//   the parent process.
// Thread safety: calls may come from any thread, as torch.distributed allows. All ranks must make the same
//   calls in the same order.
// Blocking: a communicator is created at the first call that needs it, and that call waits for the other ranks.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <tuple>
#include <vector>

#include "executors.hpp"
#include "tensor_pool.hpp"
#include "torch_versions.hpp"

namespace isthmus::torch_backend {

using tensors = std::vector<at::Tensor>;
using tensor_lists = std::vector<std::vector<at::Tensor>>;
using splits = std::vector<int64_t>;

// Source and destination of messages. Default values denote the collectives of the group.
struct message_channel {
  int source = -1, destination = -1;
  auto operator<=>(const message_channel&) const = default;
};

class process_group final : public versioned_backend {
 public:
  using store_ptr = c10::intrusive_ptr<c10d::Store>;
  using backend_ptr = c10::intrusive_ptr<c10d::Backend>;
  // Creates PyTorch's own backend for a device type. It runs the operations that Isthmus does not support.
  using fallback_factory = std::function<backend_ptr(const store_ptr&, c10::DeviceType, int rank, int size)>;

  struct group_settings {
    milliseconds timeout{0};
    std::string name;                                      // of the group, for report() and error messages
    isthmus_platform accelerator = ISTHMUS_PLATFORM_CUDA;  // platform of PyTorch's device type "cuda"
    fallback_factory make_fallback;
    bool awaits_reconfigure = false;     // the group has no members before reconfigure()
    bool has_nonblocking_store = false;  // no user of the store waits for a key
  };

  process_group(store_ptr store, int rank, int size, group_settings settings);
  ~process_group() override;

  const std::string getBackendName() const override { return "isthmus"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsCoalescing() const override { return true; }
  void setTimeout(milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return m_sequence; }
  error_type getError() override;

  void startCoalescing() override;
  work_ptr endCoalescing() override;
  // Drops the calls since startCoalescing of this thread, if any. None of them has started, except calls of PyTorch's
  // own backends.
  void cancel_coalescing();

  work_ptr broadcast(tensors& data, const c10d::BroadcastOptions& options) override;
  work_ptr allreduce(tensors& data, const c10d::AllreduceOptions& options) override;
  // Fast path for a synchronous in-place allreduce of a host tensor. Returns false without any effect if
  // Isthmus does not support the reduction, or if profilers, Python modes or coalescing are active.
  bool try_allreduce_inline(const at::Tensor& data, c10d::ReduceOp::RedOpType op);
  // Runs isthmus/allreduce_rmsnorm.h on the current stream of the tensors' device.
  // Errors: throws, also while this thread coalesces calls.
  void allreduce_rmsnorm(const tasks::rmsnorm_tensors& tensors, double eps, bool round_before_weight);
  // Computes output = sum over the ranks of input * transposed weight, on the current stream of the device: with one
  // kernel if a backend has one, otherwise as a product and an allreduce.
  // Errors: throws, also while this thread coalesces calls.
  void matmul_allreduce(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output);
  // Computes ALLGATHER_GEMM or GEMM_REDUCE_SCATTER on the current stream of the device: with a plan if the communicator
  // supports it, otherwise as a product and a collective. The first call for a shape creates the plan, which takes
  // milliseconds. On the host, PyTorch computes the product.
  // Errors: throws, also while this thread coalesces calls, and if such a first call is captured.
  void fused_product(isthmus_fused_kind kind, const tasks::product_matrices& matrices);
  work_ptr allreduce_coalesced(tensors& data, const c10d::AllreduceCoalescedOptions& options) override;
  work_ptr allreduce_sparse(tensors& data, const c10d::AllreduceOptions& options) override;
  work_ptr reduce(tensors& data, const c10d::ReduceOptions& options) override;
  work_ptr allgather(tensor_lists& outputs, tensors& inputs, const c10d::AllgatherOptions& options) override;
  work_ptr _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& options) override;
  work_ptr allgather_coalesced(tensor_lists& outputs, tensors& inputs,
                               const c10d::AllgatherOptions& options) override;
  work_ptr allgather_into_tensor_coalesced(tensors& outputs, tensors& inputs,
                                           const c10d::AllgatherOptions& options) override;
  work_ptr gather(tensor_lists& outputs, tensors& inputs, const c10d::GatherOptions& options) override;
  work_ptr scatter(tensors& outputs, tensor_lists& inputs, const c10d::ScatterOptions& options) override;
  work_ptr reduce_scatter(tensors& outputs, tensor_lists& inputs,
                          const c10d::ReduceScatterOptions& options) override;
  work_ptr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override;
  work_ptr reduce_scatter_tensor_coalesced(tensors& outputs, tensors& inputs,
                                           const c10d::ReduceScatterOptions& options) override;
  work_ptr alltoall_base(at::Tensor& output, at::Tensor& input, splits& output_splits, splits& input_splits,
                         const c10d::AllToAllOptions& options) override;
  work_ptr alltoall(tensors& outputs, tensors& inputs, const c10d::AllToAllOptions& options) override;
  work_ptr send(tensors& data, int peer, int tag) override;
  work_ptr recv(tensors& data, int peer, int tag) override;
  work_ptr recvAnysource(tensors& data, int tag) override;
  work_ptr barrier(const c10d::BarrierOptions& options) override;
  // Every rank notifies rank 0, which reports the ranks that did not arrive within the timeout.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Allocates tensors in the symmetric heap of a device or of the host. Collective, in the order of the calls.
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }
  at::Tensor allocateTensor(long elements, at::TensorOptions options) override;

  void abort() override;
  void shutdown() override;

  // Closes all communicators after their work is complete. The next calls create new ones, which read the
  // configuration and the environment again. All ranks must call it between the same calls. Tensors of the
  // symmetric heap stay valid.
  void renew();

  // Agrees on the surviving ranks after a failure (isthmus_communicator_shrink) and returns the lost ranks.
  // Collective over the survivors. If no rank is lost, the group continues with new communicators. Otherwise,
  // shrink() returns the group of the survivors.
  // Errors: throws if no collective call has created a communicator yet.
  std::vector<int64_t> agree_on_lost_ranks(double wait_s);
  bool supportsShrinking() const override { return true; }
  // Implements torch.distributed.shrink_group. Calls agree_on_lost_ranks() first if necessary.
  // Errors: throws if the lost ranks differ from `excluded`.
  backend_ptr shrink(const std::vector<int64_t>& excluded, int flags,
                     const c10::intrusive_ptr<Options>& new_options) override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // Continues with the members whose handles are passed: survivors, replacements, or other groups. Calls of the old
  // members fail. The next calls create new communicators.
  // Blocking: collective over the new members.
  // Errors: throws if a member does not join within the timeout. The group is then aborted, and reconfigure() can be
  //   called again with another uuid.
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  work_ptr reconfigure(const c10d::ReconfigureOptions& options) override;
#endif

  // Returns the communicator of the collectives on `device`. The first use is collective.
  isthmus_communicator communicator(c10::Device device);

 private:
  using executor_key = std::tuple<c10::DeviceType, c10::DeviceIndex, message_channel>;

  tasks::rank_position self() const { return {getRank(), getSize()}; }
  void check_open() const;
  void check_process() const;  // throws in a forked child
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  static std::string make_identity();
  void join_members(c10d::Store& store, const c10d::ReconfigureOptions& options,
                    const std::vector<std::string>& members, std::size_t rank);
#endif
  c10::Device resolve(c10::Device device) const;
  c10::Device used_device();  // a device with collective calls
  c10::Device barrier_device(const c10d::BarrierOptions& options);
  std::shared_ptr<task_executor> executor_for(c10::Device device, const message_channel& channel = {});
  std::unique_ptr<task_executor> make_executor(c10::Device device, const message_channel& channel) const;
  std::unique_ptr<task_executor> make_executor(c10::Device device,
                                               std::shared_ptr<device_endpoint> endpoint) const;
  endpoint_settings endpoint_settings_for(c10::Device device) const;
  std::shared_ptr<tensor_pool> pool_for(c10::Device device);

  // Wait mode and timeout of a call.
  struct wait_options {
    bool is_asynchronous = true;
    milliseconds timeout = c10d::kUnsetTimeout;  // if set, replaces the group's timeout
  };
  template <typename Options>
  static wait_options wait_options_from(const Options& options) {
    if constexpr (requires { options.asyncOp; })
      return {options.asyncOp, options.timeout};
    else  // before PyTorch 2.8, the caller waits for the work
      return {true, options.timeout};
  }

  work_ptr submit(c10::Device device, const wait_options& wait, c10::function_ref<collective_task()> build);
  // Submits `build` if Isthmus supports the reduction, otherwise calls `call_fallback` with PyTorch's backend.
  work_ptr submit_reduction(const char* collective, const at::Tensor& sample, const c10d::ReduceOp& op,
                            const wait_options& wait,
                            c10::function_ref<collective_task(const tasks::scaled_reduction&)> build,
                            c10::function_ref<work_ptr(c10d::Backend&)> call_fallback);
  bool try_matmul_allreduce(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output);
  bool try_fused_product(isthmus_fused_kind kind, const tasks::product_matrices& matrices);
  void reject_coalescing(const char* operation);
  work_ptr message(const at::Tensor& data, isthmus_collective collective, int peer, int tag);
  // Returns PyTorch's own backend and records the reason in the log and in report().
  c10d::Backend& fallback(c10::Device device, const char* collective, const std::string& reason,
                          const at::Tensor& data);

  const fork_guard m_fork;
  const store_ptr m_base_store;  // the same part of the store on all ranks
  store_ptr m_store;             // the part that only the current members of this group use
  group_settings m_settings;
  const c10::intrusive_ptr<Options> m_options;
  std::atomic<uint64_t> m_sequence{0};

  std::mutex m_mutex;  // guards the following members
  struct communicator_set {
    std::map<executor_key, std::shared_ptr<task_executor>> executors;
    std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::shared_ptr<tensor_pool>> pools;
    void close();
  };
  communicator_set m_communicators;
  std::map<c10::DeviceType, backend_ptr> m_fallbacks;
  bool m_is_closed = false;
  int m_generation = 0;                                // number of renewals of the communicators
  c10::intrusive_ptr<process_group> m_survivor_group;  // created by agree_on_lost_ranks, without m_lost_ranks
  std::vector<int64_t> m_lost_ranks;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  const std::string m_identity = make_identity();
  int64_t m_reconfigure_uuid = -1;  // of the latest reconfiguration
#endif

  // Calls of a thread between startCoalescing and endCoalescing, which starts them.
  struct coalesced_calls {
    bool has_failed = false;  // a call threw, so none is started
    std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, collective_task> tasks;
    std::vector<std::pair<std::shared_ptr<task_executor>, collective_task>> messages;  // on the host
    std::vector<work_ptr> works;                                                       // of fallback calls
  };
  // A call that is part of a batch, if there is one. If the call throws, the batch fails.
  class batch_call {
   public:
    explicit batch_call(coalesced_calls* current) : batch(current) {}
    ~batch_call() {
      if (batch != nullptr && std::uncaught_exceptions() > m_exceptions) batch->has_failed = true;
    }
    batch_call(const batch_call&) = delete;
    batch_call& operator=(const batch_call&) = delete;

    coalesced_calls* const batch;

   private:
    const int m_exceptions = std::uncaught_exceptions();
  };
  coalesced_calls* current_batch();
  std::unique_ptr<coalesced_calls> take_batch();
  std::map<std::thread::id, std::unique_ptr<coalesced_calls>> m_batches;
  uint64_t m_monitored_barrier_count = 0;
};

}  // namespace isthmus::torch_backend
