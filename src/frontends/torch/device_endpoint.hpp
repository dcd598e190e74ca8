// One rank's communicator on one device, created at first use, with the statistics of its calls.
#pragma once

#include <c10/util/Exception.h>
#include <isthmus/isthmus.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>

#include "captured_calls.hpp"
#include "product_plans.hpp"
#include "rendezvous.hpp"
#include "report.hpp"
#include "tasks.hpp"

namespace isthmus::torch_backend {

// ---- failures of the C API as exceptions of torch.distributed ----

// Returns the information of isthmus_last_error in one line.
inline std::string describe_last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  // Scripts recognize timeouts of torch.distributed by the words "Timed out".
  std::string text = c10::str(
      info.status == ISTHMUS_ERROR_TIMEOUT ? "isthmus: Timed out waiting: " : "isthmus: ", info.message);
  if (info.collective >= 0)
    text += c10::str("; in ", isthmus_collective_name(static_cast<isthmus_collective>(info.collective)),
                     " on rank ", info.rank);
  if (info.backend[0] != '\0') text += c10::str(", backend ", info.backend);
  if (info.native_code != 0) text += c10::str(", native code ", info.native_code);
  if (info.hint[0] != '\0') text += c10::str(" (", info.hint, ")");
  return text;
}

// Throws c10::DistBackendError (torch.distributed.DistBackendError) for anything but success.
inline void check(isthmus_status status) {
  if (status != ISTHMUS_SUCCESS) C10_THROW_ERROR(DistBackendError, describe_last_error());
}

// ---- forked children ----

// Recognizes objects that a forked child inherited. Their threads and locks belong to the parent process, so the child
// must neither use nor destroy them.
class fork_guard {
 public:
  bool is_inherited() const noexcept { return m_generation != current_generation(); }

 private:
  static unsigned current_generation() noexcept {
    static std::atomic<unsigned> generation{0};
    [[maybe_unused]] static const int result = pthread_atfork(nullptr, nullptr, [] { ++generation; });
    return generation.load(std::memory_order_relaxed);
  }

  const unsigned m_generation = current_generation();
};

// Throws the error of calls in a forked child on the parent process' group.
[[noreturn]] inline void throw_inherited(const std::string& group) {
  C10_THROW_ERROR(
      DistBackendError,
      c10::str("isthmus: process group ", group,
               " belongs to the parent process, which was forked after its creation (create process "
               "groups in the child, or start it with the method spawn or forkserver)"));
}

// ---- the communicator ----

struct endpoint_settings {
  int rank = 0, size = 1;
  isthmus_device device{};
  double timeout_s = 0;
  std::uint32_t collectives = 0;  // bit mask; 0: all collectives
  std::string scope;              // prefix of the store's keys
  std::string group;              // for report()
  std::string device_name;        // "cpu", "cuda:0"
  bool has_nonblocking_store = false;
};

// A communicator created by a shrink and its store.
struct shrink_result {
  isthmus_communicator communicator = nullptr;
  std::shared_ptr<store_rendezvous> store;
  std::vector<int> ranks;  // ranks in the parent communicator
};

class device_endpoint {
 public:
  device_endpoint(c10::intrusive_ptr<c10d::Store> store, endpoint_settings settings,
                  shrink_result survivors = {})
      : m_store(std::move(store)),
        m_settings(std::move(settings)),
        m_rendezvous(std::move(survivors.store)),
        m_communicator(survivors.communicator) {}
  ~device_endpoint() { close(); }
  device_endpoint(const device_endpoint&) = delete;
  device_endpoint& operator=(const device_endpoint&) = delete;

  const endpoint_settings& settings() const { return m_settings; }

  // Returns whether this process is a forked child of the process that created the endpoint. Such a child must only
  // call functions that are safe there: abort() and close(), which do nothing.
  bool is_inherited() const noexcept { return m_fork.is_inherited(); }

  // Starts the operations together.
  // Ordering: operations run on `stream`; on the host, they are complete on return.
  // Blocking: the first call is collective and waits for the other ranks.
  // Errors: throws DistBackendError.
  // Thread safety: may be called from any thread.
  void launch(const std::vector<owned_operation>& operations, isthmus_stream stream);

  // Returns whether a backend supports the operation. Equal on all ranks. The first use is collective, as of open().
  bool is_supported(const owned_operation& operation);

  // Returns the plan for a shape. NULL: create_plan() must be called.
  std::shared_ptr<product_plan> find_plan(const product_shape& shape);
  // Creates a plan, unless another thread has created it.
  // Blocking: collective. No other call may use the communicator or its memory.
  // Errors: as product_plans::create().
  std::shared_ptr<product_plan> create_plan(const product_shape& shape);

  // Counts a host operation in the report. launch() counts its operations, except those with `is_reported` = false.
  void report(const owned_operation& operation, std::chrono::nanoseconds elapsed);

  // Returns whether a graph is being captured on the stream.
  bool is_capturing(isthmus_stream stream) const;

  // Records that a graph that is being captured contains calls of this communicator.
  void add_captured_call() const { captured_calls::instance().add(m_captured); }

  // Throws if the communicator has failed, including asynchronous failures. Does not block. May be called
  // from any thread.
  void check_health();

  // Returns the communicator. The first use is collective and creates it.
  isthmus_communicator open();

  // Allocates a block in the symmetric heap. Collective.
  // Lifetime: the communicator outlives the block, even if the endpoint is closed first.
  void* allocate(std::uint64_t bytes);
  void free(void* block) noexcept;

  // Creates a communicator of the ranks that call this (isthmus_communicator_shrink). Calls blocked
  // in launch() fail.
  // Lifetime: the caller owns the communicator.
  // Errors: throws DistBackendError, also if there is no communicator yet.
  shrink_result shrink(double wait_s);

  // Aborts the communicator on all ranks; calls blocked in launch() fail. If the communicator does not exist
  // yet, it can no longer be created. May be called from any thread.
  void abort() noexcept;
  // Waits for outstanding operations and releases the communicator. If symmetric memory is still in use, the
  // communicator is released when the last block is freed. The endpoint cannot be opened again.
  void close() noexcept;

 private:
  struct call_signature {
    isthmus_collective collective;
    isthmus_datatype datatype;
    isthmus_reduction_op op;
    int root;
    std::uint64_t count;
    bool has_rmsnorm, has_product;
    bool operator==(const call_signature&) const = default;
  };
  struct call_signature_hash {
    std::size_t operator()(const call_signature& signature) const noexcept;
  };

  isthmus_communicator open_locked();
  void release() noexcept;
  isthmus_status start_call(isthmus_communicator communicator, const owned_operation& operation,
                            isthmus_stream stream) const;
  void report_locked(const isthmus_operation& operation, const std::optional<std::uint64_t>& bytes,
                     std::chrono::nanoseconds elapsed);
  static call_signature signature_of(const isthmus_operation& operation);
  call_counter& counter_for(const isthmus_operation& operation);
  call_path explain_path(isthmus_operation operation);

  c10::intrusive_ptr<c10d::Store> m_store;
  const endpoint_settings m_settings;
  const fork_guard m_fork;
  const std::shared_ptr<captured_communicator> m_captured =
      std::make_shared<captured_communicator>(m_settings.group);
  std::mutex m_mutex;         // serializes the calls on the communicator
  std::mutex m_handle_mutex;  // guards the following members, so that abort() does not wait for a call
  std::shared_ptr<store_rendezvous> m_rendezvous;
  isthmus_communicator m_communicator = nullptr;
  std::size_t m_block_count = 0;
  bool m_is_closed = false, m_is_aborted = false, m_is_store_shared = false;
  std::unordered_map<call_signature, call_counter*, call_signature_hash> m_counters;
  std::unordered_map<call_signature, bool, call_signature_hash> m_supported;
  product_plans m_plans;
};

}  // namespace isthmus::torch_backend
