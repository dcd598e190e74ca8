// The program's own NCCL, which the preloaded library hides by its name. Found without it: by
// ISTHMUS_NCCL_LIBRARY, among what the process has loaded, in the folders that its libraries name for theirs
// (PyTorch's and JAX's say where their wheel of NCCL lies), and where NCCL is installed.
#pragma once

namespace isthmus::nccl_shim {

// A handle of dlopen, and its path; NULL, with a line on standard error, where there is none. Any thread.
void* real_library();
const char* real_library_path();

}  // namespace isthmus::nccl_shim
