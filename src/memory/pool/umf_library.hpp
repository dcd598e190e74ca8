// Intel's Unified Memory Framework (UMF), loaded at run time. Optional.
#pragma once

#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_cuda.h>
#include <umf/providers/provider_level_zero.h>
#include <umf/providers/provider_os_memory.h>

#include <string>

namespace isthmus {

// The functions of libumf.so.1 that Isthmus calls, named without the prefix "umf".
struct umf_library {
  // Returns the library of this process, which the first call loads. If it is not available, returns nullptr
  // and sets `reason`.
  static const umf_library* get(std::string& reason);

#define ISTHMUS_UMF_FUNCTION(member, name) decltype(&umf##name) member = nullptr;
#include "memory/pool/umf_functions.def"

  std::string path;
};

}  // namespace isthmus
