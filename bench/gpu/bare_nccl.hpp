// NCCL as used without Isthmus, through the function tables of the plug-in, so that no NCCL header is needed.
#pragma once

#include <stdexcept>
#include <string>

#include "backends/nccl_family/library.hpp"
#include "backends/nccl_family/traits.hpp"

namespace gpu_bench {

class bare_nccl {
 public:
  bare_nccl() {
    std::string reason;
    const auto library =
        isthmus::dynamic_library::open(isthmus::nccl_family::nccl_traits::library_search(), reason);
    if (!library) throw std::runtime_error("cannot load NCCL: " + reason);
    const std::string missing =
        m_functions.load("nccl", true, [&](const std::string& name) { return library.symbol(name); });
    if (!missing.empty()) throw std::runtime_error("NCCL has no function " + missing);
  }

  const isthmus::nccl::native_functions& functions() const { return m_functions; }
  std::string version() const {
    int number = 0;
    m_functions.get_version(&number);
    return isthmus::nccl::format_version(number);
  }
  isthmus::nccl::native_unique_id unique_id() const {
    isthmus::nccl::native_unique_id id{};
    m_functions.get_unique_id(&id);
    return id;
  }
  // Blocking: returns when all ranks have joined.
  isthmus::nccl::native_comm join(const isthmus::nccl::native_unique_id& id, int rank, int size) const {
    isthmus::nccl::native_config config;
    config.blocking = 1;
    isthmus::nccl::native_comm communicator = nullptr;
    if (m_functions.comm_init_rank_config(&communicator, size, id, rank, &config) != 0)
      throw std::runtime_error("ncclCommInitRankConfig failed");
    return communicator;
  }

 private:
  isthmus::nccl::native_functions m_functions;
};

}  // namespace gpu_bench
