# isthmus_own_cxx_runtime(target...): links the C++ runtime statically and hides its symbols. A program may
# load other libraries that export a different version of the runtime, and lookup by name would mix the two.
# In a process with PyTorch 2.11 for CUDA 13, a std::istringstream parsed no numbers, and freeing a locale
# ended the program.
include(CheckLinkerFlag)
check_linker_flag(CXX "-static-libstdc++;-Wl,--exclude-libs,libstdc++.a" ISTHMUS_HAS_STATIC_CXX_RUNTIME)
function(isthmus_own_cxx_runtime)
  if(ISTHMUS_HAS_STATIC_CXX_RUNTIME AND NOT ISTHMUS_SANITIZE)
    foreach(target ${ARGN})
      target_link_options(${target} PRIVATE -static-libstdc++ -Wl,--exclude-libs,libstdc++.a)
    endforeach()
  endif()
endfunction()
