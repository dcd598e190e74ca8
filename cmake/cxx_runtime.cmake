# isthmus_own_cxx_runtime(target...): links the C++ runtime statically and exports only C functions. Such an object must
# not exchange C++ objects with others, because each side allocates with its own operators. A program may
# load other libraries that export a different version of the runtime, and lookup by name would mix the two.
# In a process with PyTorch 2.11 for CUDA 13, a std::istringstream parsed no numbers, and freeing a locale
# ended the program.
include(CheckLinkerFlag)
set(ISTHMUS_C_SYMBOLS ${CMAKE_CURRENT_LIST_DIR}/c_symbols.map)
check_linker_flag(CXX "-static-libstdc++;-Wl,--exclude-libs,libstdc++.a" ISTHMUS_HAS_STATIC_CXX_RUNTIME)
function(isthmus_own_cxx_runtime)
  if(ISTHMUS_SANITIZE)
    return()
  endif()
  foreach(target ${ARGN})
    target_link_options(${target} PRIVATE -Wl,--version-script=${ISTHMUS_C_SYMBOLS})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${ISTHMUS_C_SYMBOLS})
    if(ISTHMUS_HAS_STATIC_CXX_RUNTIME)
      target_link_options(${target} PRIVATE -static-libstdc++)
    endif()
  endforeach()
endfunction()
