// NCCL as used without Isthmus, through the function tables of the plug-in, so that no NCCL header is needed.
// Programs include this header only, not the tables.
#pragma once

#include <stdexcept>
#include <string>

#include "backends/nccl_family/traits.hpp"
#include "nccl/api.hpp"

namespace bench {

namespace nccl = isthmus::nccl;
using nccl_comm = nccl::native_comm;
using nccl_config = nccl::native_config;
using nccl_functions = nccl::native_functions;
using nccl_unique_id = nccl::native_unique_id;

inline void check_nccl(int code) {
  if (code != 0) throw std::runtime_error("NCCL failed with code " + std::to_string(code));
}

class nccl_library {
 public:
  // `path`: a file to load instead of the installed NCCL, even if it is an interposer.
  explicit nccl_library(const char* path = nullptr) {
    std::string reason;
    isthmus::library_search_request search = isthmus::nccl_family::nccl_traits.library_search;
    search.option = path;
    if (path != nullptr) search.real_path_symbol = nullptr;
    m_library = isthmus::dynamic_library::open(search, reason);
    if (!m_library) throw std::runtime_error("cannot load NCCL: " + reason);
    const std::string missing =
        m_functions.load("nccl", true, [&](const std::string& name) { return m_library.symbol(name.c_str()); });
    if (!missing.empty()) throw std::runtime_error("NCCL has no function " + missing);
  }

  const nccl_functions& functions() const { return m_functions; }
  const nccl_functions* operator->() const { return &m_functions; }
  // A function that the tables lack.
  template <typename Function>
  Function* function(const char* name) const {
    void* const symbol = m_library.symbol(name);
    if (symbol == nullptr) throw std::runtime_error(std::string("NCCL has no function ") + name);
    return reinterpret_cast<Function*>(symbol);
  }
  std::string version() const {
    int number = 0;
    check_nccl(m_functions.get_version(&number));
    return nccl::format_version(number);
  }
  nccl_unique_id unique_id() const {
    nccl_unique_id id{};
    check_nccl(m_functions.get_unique_id(&id));
    return id;
  }
  // Blocking: returns when all ranks have joined.
  nccl_comm join(const nccl_unique_id& id, int rank, int size, nccl_config* config = nullptr) const {
    nccl_config default_config = isthmus::nccl_family::blocking_config();
    nccl_comm communicator = nullptr;
    check_nccl(
        m_functions.comm_init_rank_config(&communicator, size, id, rank, config ? config : &default_config));
    return communicator;
  }

 private:
  isthmus::dynamic_library m_library;
  nccl_functions m_functions;
};

}  // namespace bench
