// The MPI implementation that this program is linked with: the provider of plain MPI in records.
#pragma once

#include <isthmus/mpi.hpp>
#include <string_view>

namespace apps {

inline const char* mpi_family() {
  static const std::string_view library = isthmus::mpi::detail::library();
  if (library.find("Open MPI") != library.npos) return "openmpi";
  if (library.find("Intel") != library.npos) return "impi";
  return "mpich";
}

}  // namespace apps
