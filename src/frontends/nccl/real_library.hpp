// Finds the program's own NCCL, which the preloaded library hides because it has the same name. Search order:
// ISTHMUS_NCCL_LIBRARY; libraries that the process has loaded; the run paths of those libraries (PyTorch and
// JAX list the folder of their NCCL wheel there); LD_LIBRARY_PATH; the usual install folders.
#pragma once

namespace isthmus::nccl_shim {

// Return a dlopen handle and its path. If there is no NCCL, they print a line to standard error and return
// NULL. Any thread.
void* real_library();
const char* real_library_path();

}  // namespace isthmus::nccl_shim
