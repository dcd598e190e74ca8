# Third-party libraries as targets, so that no other file needs to know where they are installed.

# Everything that is missing is collected and reported at once. It comes from Debian packages or ISTHMUS_DEPS_DIR.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  isthmus_require("g++ 12 or newer (this is ${CMAKE_CXX_COMPILER_VERSION})")
endif()
# isthmus_find_header(NAME header package): sets ISTHMUS_NAME_INCLUDE, and adds the package to missing_packages in the
# caller if the header was not found.
function(isthmus_find_header name header package)
  find_path(ISTHMUS_${name}_INCLUDE ${header} HINTS ${ISTHMUS_DEPS_DIR}/include)
  if(NOT ISTHMUS_${name}_INCLUDE)
    set(missing_packages ${missing_packages} ${package} PARENT_SCOPE)
  endif()
endfunction()
set(missing_packages)
isthmus_find_header(TOML toml++/toml.h libtomlplusplus-dev)
isthmus_find_header(SPDLOG spdlog/spdlog.h libspdlog-dev)
isthmus_find_header(FMT fmt/format.h libfmt-dev)
isthmus_find_header(NLOHMANN nlohmann/json.hpp nlohmann-json3-dev)
isthmus_find_header(LEVEL_ZERO level_zero/ze_api.h libze-dev)
isthmus_find_header(SODIUM sodium.h libsodium-dev)
# libsodium, for the handshake of the store. It is linked statically, so that libisthmus.so needs no other file;
# none of its symbols are visible.
find_library(ISTHMUS_SODIUM_LIBRARY NAMES libsodium.a HINTS ${ISTHMUS_DEPS_DIR}/lib)
if(NOT ISTHMUS_SODIUM_LIBRARY)
  list(APPEND missing_packages libsodium-dev)
endif()
list(REMOVE_DUPLICATES missing_packages)
isthmus_require(${missing_packages})
isthmus_describe_part("library" on "")

# Python, for the module. The one of the checkout's virtual environment, if there is one.
set(python_missing)
if(ISTHMUS_PYTHON STREQUAL "AUTO" AND NOT ISTHMUS_DEV)
  set(python_reason "only with ISTHMUS_DEV=ON or ISTHMUS_PYTHON=ON; for users: pip install .")
elseif(ISTHMUS_PYTHON)
  set(python_reason "")
  if(EXISTS ${ISTHMUS_VENV}/bin/python AND NOT SKBUILD)
    set(Python_EXECUTABLE ${ISTHMUS_VENV}/bin/python)
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
  if(NOT Python_Development.Module_FOUND)
    list(APPEND python_missing python3-dev)
  endif()
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE nanobind_missing ERROR_QUIET)
  if(nanobind_missing)
    list(APPEND python_missing "nanobind (from PyPI, for ${Python_EXECUTABLE})")
  endif()
endif()
isthmus_decide(ISTHMUS_PYTHON "Python module" "${python_reason}" ${python_missing})

# Tests, applications and benchmarks.
set(missing_packages)
isthmus_find_header(CLI CLI/CLI.hpp libcli11-dev)
set(dev_reason "")
if(NOT ISTHMUS_DEV)
  set(dev_reason "only with ISTHMUS_DEV=ON")
endif()
isthmus_decide(ISTHMUS_APPS "benchmarks, applications, examples" "${dev_reason}" ${missing_packages})
isthmus_decide(ISTHMUS_TESTS "tests" "${dev_reason}" ${missing_packages})

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
    isthmus_decide(ISTHMUS_SYCL "oneccl plug-in, other SYCL parts" "")
  else()
    isthmus_decide(ISTHMUS_SYCL "oneccl plug-in, other SYCL parts" ""
                   "a SYCL runtime in ISTHMUS_SYCL_FOLDER=${ISTHMUS_SYCL_FOLDER}")
  endif()
else()
  isthmus_decide(ISTHMUS_SYCL "oneccl plug-in, other SYCL parts" "")
endif()
foreach(folder ${ISTHMUS_SYCL_ROOTS})
  isthmus_add_sycl_runtime(${folder})
endforeach()

# CUDA C++, for the peer-memory kernels and for programs that run on NVIDIA devices. Nothing else of the library needs it.
# A machine without a device does not need the kernels, whose compilation takes as long as that of half of the core.
set(cuda_missing)
set(p2p_reason "")
if(ISTHMUS_SANITIZE)
  set(p2p_reason "not with ISTHMUS_SANITIZE")
elseif(NOT ISTHMUS_DEV AND NOT SKBUILD AND NOT EXISTS /proc/driver/nvidia/version)
  set(p2p_reason "no NVIDIA device here; for other machines: ISTHMUS_P2P=ON")
endif()
if((ISTHMUS_P2P AND NOT p2p_reason) OR ISTHMUS_P2P STREQUAL "ON" OR ISTHMUS_GPU)
  if(NOT ISTHMUS_NVCC)
    list(APPEND cuda_missing "nvcc of CUDA 12 or newer (or set ISTHMUS_NVCC)")
  else()
    set(CMAKE_CUDA_COMPILER ${ISTHMUS_NVCC})
    get_filename_component(toolkit ${ISTHMUS_NVCC} DIRECTORY)
    if(EXISTS ${toolkit}/../lib/libcudart_static.a)  # nvcc from a wheel searches lib64 only
      string(APPEND CMAKE_CUDA_FLAGS " -L${toolkit}/../lib")
    endif()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a)
    endif()
    # The build folder can be older than the compiler, also if scikit-build-core has removed its CMakeCache.txt.
    if(EXISTS ${PROJECT_BINARY_DIR}/cuda_check/CMakeCache.txt)
      load_cache(${PROJECT_BINARY_DIR}/cuda_check READ_WITH_PREFIX checked_ CMAKE_CUDA_COMPILER)
      if(NOT checked_CMAKE_CUDA_COMPILER STREQUAL ISTHMUS_NVCC)
        file(GLOB stale_compiler ${PROJECT_BINARY_DIR}/CMakeFiles/*/CMakeCUDACompiler.cmake)
        file(REMOVE_RECURSE ${stale_compiler} ${PROJECT_BINARY_DIR}/cuda_check)
      endif()
    endif()
    # An error of enable_language would end the configuration.
    execute_process(
      COMMAND ${CMAKE_COMMAND} -S ${PROJECT_SOURCE_DIR}/cmake/cuda_check -B ${PROJECT_BINARY_DIR}/cuda_check -G ${CMAKE_GENERATOR}
              -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -DCMAKE_CUDA_COMPILER=${ISTHMUS_NVCC}
              "-DCMAKE_CUDA_FLAGS=${CMAKE_CUDA_FLAGS}" "-DCMAKE_CUDA_ARCHITECTURES=${CMAKE_CUDA_ARCHITECTURES}"
      RESULT_VARIABLE cuda_failed OUTPUT_FILE ${PROJECT_BINARY_DIR}/cuda_check.log ERROR_FILE ${PROJECT_BINARY_DIR}/cuda_check.log)
    if(cuda_failed)
      list(APPEND cuda_missing "an nvcc that works with this g++ and CMake (${PROJECT_BINARY_DIR}/cuda_check.log)")
    endif()
  endif()
endif()
isthmus_decide(ISTHMUS_P2P "p2p plug-in (CUDA kernels)" "${p2p_reason}" ${cuda_missing})
if(ISTHMUS_GPU)
  isthmus_require(${cuda_missing})
endif()

get_property(missing GLOBAL PROPERTY ISTHMUS_MISSING)
if(missing)
  list(REMOVE_DUPLICATES missing)
  set(packages ${missing})
  list(FILTER packages INCLUDE REGEX "^[a-z0-9+-]+$")
  set(install "")
  if(packages)
    list(JOIN packages " " packages)
    set(install " On Debian or Ubuntu run: apt-get install ${packages}. Elsewhere install the same libraries, or set -DISTHMUS_DEPS_DIR=FOLDER with their headers in FOLDER/include and libsodium.a in FOLDER/lib.")
  endif()
  list(JOIN missing ", " missing)
  message(FATAL_ERROR "Isthmus cannot be built, because this is missing: ${missing}.${install}")
endif()
if(ISTHMUS_P2P OR ISTHMUS_GPU)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know C++20 for nvcc
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
endif()
if(ISTHMUS_GPU)
  find_package(CUDAToolkit REQUIRED)
endif()

add_library(isthmus_deps INTERFACE)
target_compile_definitions(isthmus_deps INTERFACE SPDLOG_FMT_EXTERNAL)
# fmt is compiled once. Compiling it in every file takes 1.5 times as long as the rest of the core. That is the fallback
# for compilers and versions of fmt with which fmt.cpp does not contain everything. The check takes 4 CPU seconds, and
# try_compile does not skip it when the result is already in the cache.
if(NOT DEFINED ISTHMUS_COMPILES_FMT_ONCE)
  try_compile(ISTHMUS_COMPILES_FMT_ONCE ${PROJECT_BINARY_DIR}/fmt_check
    SOURCES ${PROJECT_SOURCE_DIR}/src/base/fmt.cpp ${PROJECT_SOURCE_DIR}/src/base/fmt_check.cpp
    CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${ISTHMUS_FMT_INCLUDE}
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
endif()
if(ISTHMUS_COMPILES_FMT_ONCE)
  add_library(isthmus_fmt STATIC ${PROJECT_SOURCE_DIR}/src/base/fmt.cpp)
  target_compile_options(isthmus_fmt PRIVATE -O1)  # -O3 takes 1.5 times as long
  if(ISTHMUS_SANITIZE)
    # Instrumentation triples the time, and -O1 doubles it. The linker keeps the core's instrumented copies of the standard
    # library's inline functions, because this archive comes after the objects of the core.
    target_compile_options(isthmus_fmt PRIVATE -fno-sanitize=all -O0)
  endif()
  target_include_directories(isthmus_fmt SYSTEM PRIVATE ${ISTHMUS_FMT_INCLUDE})
  target_link_libraries(isthmus_deps INTERFACE isthmus_fmt)
else()
  message(STATUS "fmt is compiled in every file, because src/base/fmt.cpp does not provide all of it with this compiler")
  target_compile_definitions(isthmus_deps INTERFACE FMT_HEADER_ONLY)
endif()
if(ISTHMUS_DEPS_DIR)
  target_include_directories(isthmus_deps SYSTEM INTERFACE ${ISTHMUS_DEPS_DIR}/include)
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
find_path(ISTHMUS_OPENMPI_INCLUDE NAMES mpi-ext.h PATHS ${PROJECT_SOURCE_DIR}/.peers/openmpi/include NO_DEFAULT_PATH)
find_path(ISTHMUS_OPENMPI_INCLUDE NAMES mpi-ext.h PATH_SUFFIXES x86_64-linux-gnu/openmpi/include openmpi/include openmpi)
