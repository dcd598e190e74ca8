# Third-party libraries as targets, so that no other file needs to know where they are installed.

# Header-only C++ libraries from Debian packages (or ISTHMUS_DEPS_DIR): toml++, spdlog, fmt, nlohmann json.
set(missing_packages "")
foreach(dependency TOML:toml++/toml.h:libtomlplusplus-dev SPDLOG:spdlog/spdlog.h:libspdlog-dev
                   FMT:fmt/format.h:libfmt-dev NLOHMANN:nlohmann/json.hpp:nlohmann-json3-dev
                   LEVEL_ZERO:level_zero/ze_api.h:libze-dev SODIUM:sodium.h:libsodium-dev)
  string(REPLACE ":" ";" dependency ${dependency})
  list(GET dependency 0 name)
  list(GET dependency 1 header)
  list(GET dependency 2 package)
  find_path(ISTHMUS_${name}_INCLUDE ${header} HINTS ${ISTHMUS_DEPS_DIR}/include)
  if(NOT ISTHMUS_${name}_INCLUDE)
    list(APPEND missing_packages ${package})
  endif()
endforeach()
if(missing_packages)
  list(JOIN missing_packages " " missing_packages)
  message(FATAL_ERROR "Libraries that Isthmus is built with are missing: ${missing_packages}. On Debian or Ubuntu run: apt-get install ${missing_packages}. Elsewhere install the same libraries, or set -DISTHMUS_DEPS_DIR=FOLDER with their headers in FOLDER/include.")
endif()
add_library(isthmus_deps INTERFACE)
target_compile_definitions(isthmus_deps INTERFACE SPDLOG_FMT_EXTERNAL)
# fmt is compiled once. Compiling it in every file takes half as long again as the rest of the core. That is the fallback
# for compilers and versions of fmt with which fmt.cpp does not contain everything.
try_compile(ISTHMUS_COMPILES_FMT_ONCE ${CMAKE_BINARY_DIR}/fmt_check
  SOURCES ${CMAKE_SOURCE_DIR}/src/base/fmt.cpp ${CMAKE_SOURCE_DIR}/src/base/fmt_check.cpp
  CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${ISTHMUS_FMT_INCLUDE}
  COMPILE_DEFINITIONS -fkeep-inline-functions CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
if(ISTHMUS_COMPILES_FMT_ONCE)
  add_library(isthmus_fmt STATIC ${CMAKE_SOURCE_DIR}/src/base/fmt.cpp)
  target_compile_options(isthmus_fmt PRIVATE -fkeep-inline-functions)
  target_include_directories(isthmus_fmt SYSTEM PRIVATE ${ISTHMUS_FMT_INCLUDE})
  target_link_libraries(isthmus_deps INTERFACE isthmus_fmt)
else()
  message(STATUS "fmt is compiled in every file, because src/base/fmt.cpp does not provide all of it with this compiler")
  target_compile_definitions(isthmus_deps INTERFACE FMT_HEADER_ONLY)
endif()
if(ISTHMUS_DEPS_DIR)
  target_include_directories(isthmus_deps SYSTEM INTERFACE ${ISTHMUS_DEPS_DIR}/include)
endif()
# libsodium, for the handshake of the store. It is linked statically, so that libisthmus.so needs no other file;
# none of its symbols are visible.
find_library(ISTHMUS_SODIUM_LIBRARY NAMES libsodium.a HINTS ${ISTHMUS_DEPS_DIR}/lib)
if(NOT ISTHMUS_SODIUM_LIBRARY)
  message(FATAL_ERROR "libsodium.a was not found next to sodium.h; run scripts/setup (Debian: libsodium-dev).")
endif()
add_library(isthmus_sodium INTERFACE)
target_include_directories(isthmus_sodium SYSTEM INTERFACE ${ISTHMUS_SODIUM_INCLUDE})
target_link_libraries(isthmus_sodium INTERFACE ${ISTHMUS_SODIUM_LIBRARY})
target_link_options(isthmus_sodium INTERFACE -Wl,--exclude-libs,libsodium.a)
find_package(Threads REQUIRED)
target_link_libraries(isthmus_deps INTERFACE Threads::Threads ${CMAKE_DL_LIBS} rt)

# MPI of the virtual environment (MPICH from PyPI). Only users of mpi.hpp need it; the core never does.
find_program(ISTHMUS_MPICC mpicc HINTS ${ISTHMUS_VENV}/bin NO_DEFAULT_PATH)
find_path(ISTHMUS_MPI_INCLUDE mpi.h HINTS ${ISTHMUS_VENV}/include)
find_library(ISTHMUS_MPI_LIBRARY mpi HINTS ${ISTHMUS_VENV}/lib)
if(ISTHMUS_MPI_INCLUDE AND ISTHMUS_MPI_LIBRARY)
  add_library(isthmus_mpi INTERFACE)
  target_include_directories(isthmus_mpi SYSTEM INTERFACE ${ISTHMUS_MPI_INCLUDE})
  target_link_libraries(isthmus_mpi INTERFACE ${ISTHMUS_MPI_LIBRARY})
endif()

# Header of Open MPI, used only by the MPI engine of the preloaded library: from scripts/setup_peers if
# installed, otherwise from the system.
find_path(ISTHMUS_OPENMPI_INCLUDE NAMES mpi-ext.h PATHS ${CMAKE_SOURCE_DIR}/.peers/openmpi/include NO_DEFAULT_PATH)
find_path(ISTHMUS_OPENMPI_INCLUDE NAMES mpi-ext.h PATH_SUFFIXES x86_64-linux-gnu/openmpi/include openmpi/include openmpi)

# SYCL runtimes (DPC++ from PyPI); host code is compiled with plain g++. Everything is built with the runtime of
# the virtual environment. The other runtimes only provide one engine each for libisthmus_ggml.so, because
# programs that load it bring their own runtime.
# isthmus_add_sycl_runtime(folder): adds isthmus_sycl_runtime_N for lib/libsycl.so.N and appends N to
# ISTHMUS_SYCL_RUNTIMES. Sets sycl_added in the caller to N, or to nothing.
function(isthmus_add_sycl_runtime folder)
  file(GLOB found ${folder}/lib/libsycl.so.*)
  list(FILTER found INCLUDE REGEX "/libsycl\\.so\\.[0-9]+$")
  set(sycl_added "" PARENT_SCOPE)
  if(NOT found OR NOT EXISTS ${folder}/include/sycl/sycl.hpp)
    return()
  endif()
  list(GET found 0 library)
  string(REGEX REPLACE ".*\\." "" major ${library})
  if(NOT TARGET isthmus_sycl_runtime_${major})
    add_library(isthmus_sycl_runtime_${major} INTERFACE)
    target_include_directories(isthmus_sycl_runtime_${major} SYSTEM INTERFACE ${folder}/include ${folder}/include/sycl)
    target_compile_definitions(isthmus_sycl_runtime_${major} INTERFACE SYCL_DISABLE_FSYCL_SYCLHPP_WARNING)
    target_link_libraries(isthmus_sycl_runtime_${major} INTERFACE ${library})
    set_property(GLOBAL APPEND PROPERTY ISTHMUS_SYCL_RUNTIMES ${major})
  endif()
  set(sycl_added ${major} PARENT_SCOPE)
endfunction()
if(ISTHMUS_SYCL)
  isthmus_add_sycl_runtime(${ISTHMUS_SYCL_FOLDER})
  if(sycl_added)
    add_library(isthmus_sycl_runtime ALIAS isthmus_sycl_runtime_${sycl_added})
  endif()
endif()
foreach(folder ${ISTHMUS_SYCL_ROOTS})
  isthmus_add_sycl_runtime(${folder})
endforeach()

# CUDA C++, for programs that run on NVIDIA devices. The core and its plug-ins never need it.
if(ISTHMUS_GPU)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a)
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)
endif()
