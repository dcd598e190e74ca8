// What ggml's meta backend gets: one object for each set of backends, behind ggml's three functions.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <memory>
#include <string>
#include <vector>

#include "frontends/ggml/abi.hpp"
#include "frontends/ggml/core.hpp"
#include "frontends/ggml/ggml_library.hpp"
#include "frontends/ggml/streams.hpp"

namespace isthmus::ggml {

// The function of ours that answers a look-up of ggml_backend_comm_init, _free or _allreduce_tensor; NULL for
// other names.
void* find_comm_function(const char* name);

class device_group {
 public:
  // Sums by Isthmus; where that can't be, by whatever ggml itself has for these backends, with a warning that
  // says why; NULL where ggml has nothing either.
  static std::unique_ptr<device_group> create(ggml_backend** backends, std::size_t n);
  ~device_group();
  device_group(const device_group&) = delete;
  device_group& operator=(const device_group&) = delete;

  // As ggml wants it: enqueues only, except for backends in host memory; false has no side effect.
  bool allreduce(ggml_tensor** tensors);

 private:
  // What init needs: devices and streams as the engine takes them.
  struct device_plan {
    std::vector<isthmus_device> devices{};
    std::vector<isthmus_stream> streams{};
    const isthmus_tensor_parallel_engine* engine = nullptr;  // NULL: the core finds it
    std::string reason{};                                    // "" when everything was found
  };
  // ggml's own trio, used where Isthmus can't.
  struct native_comm {
    void* comm = nullptr;
    comm_allreduce* allreduce = nullptr;
    comm_free* free = nullptr;
  };

  device_group(const ggml_library& ggml, ggml_backend** backends, std::size_t n);
  device_plan make_plan() const;
  device_plan plan_streams(stream_kind kind) const;
  std::string open(const device_plan& plan);
  bool open_native();
  const char* read_tensors(ggml_tensor** tensors);
  bool leave_to_ggml(const char* reason);

  const ggml_library& m_ggml;
  std::vector<ggml_backend*> m_backends;
  const core_functions* m_core = nullptr;
  isthmus_tensor_parallel m_handle = nullptr;
  bool m_is_host = false;
  native_comm m_native;

  // Of the call in progress; kept so that a call allocates nothing.
  std::vector<void*> m_pointers;
  std::uint64_t m_count = 0, m_active = 0;
  isthmus_datatype m_datatype = ISTHMUS_FLOAT32;

  std::uint64_t m_calls = 0, m_refused_calls = 0, m_elements = 0;
};

}  // namespace isthmus::ggml
