# Third-party pieces as targets, so that no other file knows where they are installed.

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
  message(FATAL_ERROR "Isthmus is built with libraries that are missing here. On Debian or Ubuntu: apt-get install ${missing_packages} (elsewhere the packages of the same libraries, or -DISTHMUS_DEPS_DIR=FOLDER with their headers in FOLDER/include).")
endif()
add_library(isthmus_deps INTERFACE)
target_compile_definitions(isthmus_deps INTERFACE SPDLOG_FMT_EXTERNAL)
if(ISTHMUS_LINK_FMT)
  target_link_libraries(isthmus_deps INTERFACE fmt)
else()
  target_compile_definitions(isthmus_deps INTERFACE FMT_HEADER_ONLY)
endif()
if(ISTHMUS_DEPS_DIR)
  target_include_directories(isthmus_deps SYSTEM INTERFACE ${ISTHMUS_DEPS_DIR}/include)
endif()
# libsodium: the handshake of the store. The static library, so that libisthmus.so needs no other file; nothing of it
# is visible outside.
find_library(ISTHMUS_SODIUM_LIBRARY NAMES libsodium.a HINTS ${ISTHMUS_DEPS_DIR}/lib)
if(NOT ISTHMUS_SODIUM_LIBRARY)
  message(FATAL_ERROR "libsodium.a was not found beside sodium.h: run scripts/setup (Debian: libsodium-dev).")
endif()
add_library(isthmus_sodium INTERFACE)
target_include_directories(isthmus_sodium SYSTEM INTERFACE ${ISTHMUS_SODIUM_INCLUDE})
target_link_libraries(isthmus_sodium INTERFACE ${ISTHMUS_SODIUM_LIBRARY})
target_link_options(isthmus_sodium INTERFACE -Wl,--exclude-libs,libsodium.a)
find_package(Threads REQUIRED)
target_link_libraries(isthmus_deps INTERFACE Threads::Threads ${CMAKE_DL_LIBS} rt)

# MPI of the virtual environment (PyPI's MPICH). Only mpi.hpp's users need it; the core never does.
find_program(ISTHMUS_MPICC mpicc HINTS ${ISTHMUS_VENV}/bin NO_DEFAULT_PATH)
find_path(ISTHMUS_MPI_INCLUDE mpi.h HINTS ${ISTHMUS_VENV}/include)
find_library(ISTHMUS_MPI_LIBRARY mpi HINTS ${ISTHMUS_VENV}/lib)
if(ISTHMUS_MPI_INCLUDE AND ISTHMUS_MPI_LIBRARY)
  add_library(isthmus_mpi INTERFACE)
  target_include_directories(isthmus_mpi SYSTEM INTERFACE ${ISTHMUS_MPI_INCLUDE})
  target_link_libraries(isthmus_mpi INTERFACE ${ISTHMUS_MPI_LIBRARY})
endif()

# Open MPI's header, for the preloaded library's engine alone: of scripts/setup_peers, else the system's.
find_path(ISTHMUS_OPENMPI_INCLUDE NAMES mpi-ext.h PATHS ${CMAKE_SOURCE_DIR}/.peers/openmpi/include NO_DEFAULT_PATH)
find_path(ISTHMUS_OPENMPI_INCLUDE NAMES mpi-ext.h PATH_SUFFIXES x86_64-linux-gnu/openmpi/include openmpi/include openmpi)

# The SYCL runtime of the virtual environment (PyPI's dpcpp-cpp-rt): host code with plain g++.
if(ISTHMUS_SYCL)
  find_library(ISTHMUS_SYCL_LIBRARY NAMES sycl libsycl.so.9 HINTS ${ISTHMUS_VENV}/lib NO_DEFAULT_PATH)
endif()
if(ISTHMUS_SYCL_LIBRARY)
  add_library(isthmus_sycl_runtime INTERFACE)
  target_include_directories(isthmus_sycl_runtime SYSTEM INTERFACE ${ISTHMUS_VENV}/include ${ISTHMUS_VENV}/include/sycl)
  target_compile_definitions(isthmus_sycl_runtime INTERFACE SYCL_DISABLE_FSYCL_SYCLHPP_WARNING)
  target_link_libraries(isthmus_sycl_runtime INTERFACE ${ISTHMUS_SYCL_LIBRARY})
endif()

# CUDA C++, for programs that run on NVIDIA devices. The core and its plug-ins never need it.
if(ISTHMUS_GPU)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a)
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)
endif()
