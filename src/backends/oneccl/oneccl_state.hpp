// The oneCCL communicator of one rank, through the C interface of libccl.so.2. Streams are sycl::queue*.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <memory>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "backends/nccl_family/collectives.hpp"
#include "backends/nccl_family/native_calls.hpp"
#include "base/dynamic_library.hpp"

namespace isthmus::oneccl {

struct oneccl_unique_id {
  char data[4096];
};
using probe_record = nccl_family::probe<sizeof(oneccl_unique_id)>;

// The oneCCL library of this process. get() returns null and sets `reason` if this machine
// has no usable library.
struct oneccl_library {
  nccl_family::native_functions functions;
  int (*comm_init_rank)(nccl_family::native_comm* comm, std::size_t size, oneccl_unique_id id,
                        int rank) = nullptr;
  int version = 0;
  std::string path, version_text;

  static oneccl_library* get(const isthmus_backend_context& context, std::string& reason);
};

class oneccl_state {
 public:
  oneccl_state(const isthmus_backend_context& context, oneccl_library& library)
      : m_context(context), m_library(library) {}

  isthmus_status connect(const votes<probe_record>& all);
  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n);
  // oneCCL does not report asynchronous errors, so this function waits for all queues that were used.
  isthmus_status synchronize();
  void abort() { m_aborted = true; }
  void release();
  const char* supports(const isthmus_operation& operation) const;
  const char* version() const { return m_library.version_text.c_str(); }

 private:
  isthmus_status fail(int result, const char* function) const;
  isthmus_status fail_interrupted(const char* activity) const;
  bool is_aborted() const { return m_aborted || m_context.is_aborted(m_context.runtime) != 0; }
  isthmus_status enqueue_one(const isthmus_operation& operation);
  void add_queue(const sycl::queue& queue);

  const isthmus_backend_context& m_context;
  oneccl_library& m_library;
  nccl_family::native_comm m_comm = nullptr;
  std::vector<sycl::queue> m_queues;  // each copy refers to the user's queue and keeps it alive
  std::byte* m_barrier_byte = nullptr;
  std::atomic<bool> m_aborted{false};
};

}  // namespace isthmus::oneccl
