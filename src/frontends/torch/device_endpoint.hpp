// One rank's communicator on one device, made when it is first used, with the count of what its calls took.
#pragma once

#include <isthmus/isthmus.h>

#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>

#include "rendezvous.hpp"
#include "report.hpp"
#include "task.hpp"

namespace isthmus::torch_backend {

struct endpoint_settings {
  int rank = 0, size = 1;
  isthmus_device device{};
  double timeout_s = 0;
  std::uint32_t collectives = 0;  // a bit each; 0: all
  std::string scope;              // prefix of the store's keys
  std::string group;              // for report()
  std::string device_name;        // "cpu", "cuda:0"
};

// A communicator that a shrink has made, and what it meets over.
struct shrink_result {
  isthmus_communicator communicator = nullptr;
  std::shared_ptr<rendezvous> store;
  std::vector<int> ranks;  // their numbers before
};

class device_endpoint {
 public:
  device_endpoint(c10::intrusive_ptr<c10d::Store> store, endpoint_settings settings, shrink_result survivors = {})
      : m_store(std::move(store)),
        m_settings(std::move(settings)),
        m_rendezvous(std::move(survivors.store)),
        m_communicator(survivors.communicator) {}
  ~device_endpoint() { close(); }
  device_endpoint(const device_endpoint&) = delete;
  device_endpoint& operator=(const device_endpoint&) = delete;

  const endpoint_settings& settings() const { return m_settings; }

  // Starts the transfers together, on `stream`; on the host they are complete on return. The first call is
  // collective and waits for the other ranks. Throws DistBackendError. Any thread.
  void launch(const std::vector<owned_operation>& operations, isthmus_stream stream);

  // Whether the stream belongs to a graph that is being captured.
  bool is_capturing(isthmus_stream stream) const;

  // Throws when the communicator has failed, asynchronously too. Any thread; does not wait.
  void check_health();

  // The communicator, made if need be: collective then.
  isthmus_communicator open();

  // A block of the symmetric heap: collective. The communicator outlives it, even if the endpoint is closed
  // before.
  void* allocate(std::uint64_t bytes);
  void free(void* block) noexcept;

  // The ranks that still call this (isthmus_communicator_shrink); ends what waits in launch. Whoever gets the
  // communicator owns it. Throws DistBackendError, also when there is no communicator yet.
  shrink_result shrink(double wait_s);

  // Poisons the communicator, here and on the other ranks, and ends waits in launch. One that is not made yet
  // can't be made any more. Any thread.
  void abort() noexcept;
  // Waits for outstanding operations and releases the communicator, or leaves that to the last block's end. It
  // cannot be opened again.
  void close() noexcept;

 private:
  struct call_signature {
    isthmus_collective collective;
    isthmus_datatype datatype;
    isthmus_reduction_op op;
    int root;
    std::uint64_t count;
    bool operator==(const call_signature&) const = default;
  };
  struct call_signature_hash {
    std::size_t operator()(const call_signature& signature) const noexcept;
  };

  isthmus_communicator open_locked();
  void release() noexcept;
  call_counter& counter_for(const isthmus_operation& operation);
  call_path explain_path(const isthmus_operation& operation);

  c10::intrusive_ptr<c10d::Store> m_store;
  const endpoint_settings m_settings;
  std::mutex m_mutex;         // calls on one communicator must not overlap
  std::mutex m_handle_mutex;  // guards what follows, so that abort need not wait for a call
  std::shared_ptr<rendezvous> m_rendezvous;
  isthmus_communicator m_communicator = nullptr;
  std::size_t m_block_count = 0;
  bool m_is_closed = false, m_is_aborted = false, m_is_store_shared = false;
  std::unordered_map<call_signature, call_counter*, call_signature_hash> m_counters;
};

}  // namespace isthmus::torch_backend
