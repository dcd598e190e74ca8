// The object behind ggml's three allreduce functions, one for each set of backends of the meta backend.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <memory>
#include <string>
#include <vector>

#include "frontends/ggml/ggml_library.hpp"
#include "frontends/ggml/runtime.hpp"

namespace isthmus::ggml {

// Returns the Isthmus function for ggml_backend_comm_init, _free or _allreduce_tensor; NULL for other names.
void* find_comm_function(const char* name);

class device_group {
 public:
  // Creates a group that sums with Isthmus. If that is not possible, prints a warning with the reason and uses
  // ggml's own allreduce for these backends. Returns NULL if ggml has none.
  static std::unique_ptr<device_group> create(ggml_backend** backends, std::size_t n);
  ~device_group();
  device_group(const device_group&) = delete;
  device_group& operator=(const device_group&) = delete;

  // As ggml requires: only enqueues, except for backends in host memory. Returning false has no side effect.
  bool allreduce(ggml_tensor** tensors);

 private:
  // Arguments of init: the devices, and the streams in the form that the engine takes.
  struct stream_plan {
    std::vector<isthmus_device> devices{};
    std::vector<isthmus_stream> streams{};
    const isthmus_tensor_parallel_engine* engine = nullptr;  // NULL if the core selects it
    std::string reason{};                                    // "" if everything was found
  };
  // ggml's own functions, used if Isthmus cannot sum.
  struct native_comm {
    void* comm = nullptr;
    comm_allreduce* allreduce = nullptr;
    comm_free* free = nullptr;
  };

  device_group(const ggml_library& ggml, ggml_backend** backends, std::size_t n);
  stream_plan make_plan() const;
  stream_plan plan_streams(stream_kind kind) const;
  std::string open(const stream_plan& plan);
  bool open_native();
  const char* read_tensors(ggml_tensor** tensors);
  bool use_ggml_allreduce(const char* reason);

  const ggml_library& m_ggml;
  std::vector<ggml_backend*> m_backends;
  const core_functions* m_core = nullptr;
  isthmus_tensor_parallel m_handle = nullptr;
  bool m_is_host = false;
  native_comm m_native;

  // State of the call in progress. Stored in members so that a call does not allocate.
  std::vector<void*> m_pointers;
  std::uint64_t m_count = 0, m_active = 0;
  isthmus_datatype m_datatype = ISTHMUS_FLOAT32;

  std::uint64_t m_calls = 0, m_refused_calls = 0, m_elements = 0;
};

}  // namespace isthmus::ggml
