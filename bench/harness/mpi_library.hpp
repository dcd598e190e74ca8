// Properties of the MPI library.
#pragma once

#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <isthmus/mpi.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace bench {

inline void check_mpi(int code) {
  if (code != MPI_SUCCESS) throw std::runtime_error("MPI failed with code " + std::to_string(code));
}

inline bool mpi_supports_device_memory() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

inline const char* mpi_family() {
  static const std::string_view library = isthmus::mpi::detail::library();
  if (library.find("Open MPI") != std::string_view::npos) return "openmpi";
  return library.find("Intel") != std::string_view::npos ? "impi" : "mpich";
}

}  // namespace bench
