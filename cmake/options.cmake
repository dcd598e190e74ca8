# By default, the library and its headers are built. docs/start/install.md lists the options.
option(ISTHMUS_DEV "Build everything that developers of Isthmus need: tests, applications, benchmarks, examples, the Python package" OFF)
isthmus_part(ISTHMUS_TESTS "Tests")
isthmus_part(ISTHMUS_APPS "Applications, benchmarks and examples")
isthmus_part(ISTHMUS_PYTHON "Python module")
isthmus_part(ISTHMUS_P2P "Peer-memory kernels for CUDA devices")
isthmus_part(ISTHMUS_SYCL "Parts that need a SYCL runtime: the plug-in oneccl, SYCL engines of libisthmus_ggml.so, SYCL programs")
# Parts of the library without requirements. A build without one keeps its C functions, which then fail with
# ISTHMUS_ERROR_UNSUPPORTED (src/api/disabled.cpp), so the ABI does not depend on the options.
option(ISTHMUS_FUSED "Build the fused operators of fused.h" ON)
option(ISTHMUS_DEVICE_MEMORY "Build the allocator for device memory of memory.h" ON)
option(ISTHMUS_GGML "Build the library that is preloaded into programs that use ggml, such as llama.cpp" ON)
option(ISTHMUS_GPU "Build the tests and benchmarks that run on NVIDIA devices (needs nvcc)" OFF)
option(ISTHMUS_INSTALL "Add the install rules" ${ISTHMUS_IS_TOP_LEVEL})
set(ISTHMUS_DEPS_DIR "" CACHE PATH "Folder whose include/ holds toml++, spdlog, fmt, nlohmann and gtest if the system lacks them")
set(ISTHMUS_VENV "${PROJECT_SOURCE_DIR}/.venv" CACHE PATH "Virtual environment created by scripts/setup")
if(SKBUILD)
  set(ISTHMUS_PYTHON ON)
  # pip builds in an isolated environment, in which the location of the installed umf package gives its root.
  # Nothing comes from a checkout.
  find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.metadata as m; print(next(f.locate().resolve().parents[2] for f in m.files('umf') if str(f).endswith('include/umf/memory_pool.h')))"
    OUTPUT_VARIABLE ISTHMUS_VENV OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
# The first is installed by scripts/setup_sycl; CMPLR_ROOT is the compiler of a oneAPI installation.
set(sycl_roots "")
if(NOT SKBUILD)
  set(sycl_roots ${ISTHMUS_VENV}/sycl-8 $ENV{CMPLR_ROOT})
endif()
set(ISTHMUS_SYCL_FOLDER "${ISTHMUS_VENV}" CACHE PATH "Folder with include/sycl and lib/libsycl.so.N: the SYCL runtime that everything is built with")
set(ISTHMUS_SYCL_ROOTS "${sycl_roots}" CACHE STRING "Folders with include/sycl and lib/libsycl.so.N: additional SYCL runtimes for which libisthmus_ggml.so gets an engine")
set(ISTHMUS_SANITIZE "" CACHE STRING "address,undefined or thread: instrument everything that is built")
# CUDA compiler: of the machine, or from the PyPI packages (scripts/setup cuda). pip keeps the build folder, but not the
# nvcc of the environment in which it built.
if(ISTHMUS_NVCC AND NOT EXISTS "${ISTHMUS_NVCC}")
  unset(ISTHMUS_NVCC CACHE)
  unset(CMAKE_CUDA_COMPILER CACHE)
endif()
if(SKBUILD)
  # Only the pinned one, which python/dev/build_backend.py requests for machines with a device.
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util as u; print(u.find_spec('nvidia.cu13').submodule_search_locations[0])"
    OUTPUT_VARIABLE cuda_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(cuda_wheel)
    find_program(ISTHMUS_NVCC nvcc PATHS ${cuda_wheel}/bin NO_DEFAULT_PATH)
  endif()
else()
  file(GLOB cuda_wheels ${ISTHMUS_VENV}/lib/python3*/site-packages/nvidia/cu13/bin)
  find_program(ISTHMUS_NVCC nvcc PATHS ${cuda_wheels} /usr/local/cuda/bin)
endif()
# Native code for Hopper, and PTX that the driver compiles for Ampere and later. Without a device, a developer's build only
# checks that the kernels compile, and nvcc compiles each file once for each architecture.
set(p2p_architectures "80-virtual;90-real")
set(optimizes_p2p ON)
if(ISTHMUS_DEV AND NOT EXISTS /proc/driver/nvidia/version)
  set(p2p_architectures "90-real")
  set(optimizes_p2p OFF)
endif()
set(ISTHMUS_P2P_ARCHITECTURES "${p2p_architectures}" CACHE STRING "CUDA architectures of the peer-memory kernels")
# Optimization takes 80 % of the time of nvcc. The backend warns if a device runs kernels that are not optimized.
option(ISTHMUS_P2P_OPTIMIZE "Optimize the peer-memory kernels (nvcc 13 and newer)" ${optimizes_p2p})
set(ISTHMUS_UNITY 16 CACHE STRING "Number of source files compiled as one; use 1 while working on a few files")
option(ISTHMUS_CONFORMANCE_FULL "Run the full product of cases on every topology of the conformance suite (an hour)" OFF)

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)
# GCC collects its own garbage from 128 MiB on, which takes 5 to 14 % of its time. With this limit, in KiB, a large
# translation unit needs up to 1.1 instead of 0.7 GB.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
# __FILE__ is relative to the checkout, so that no library contains a path of this machine. The second path is the one that
# ccache passes to the compiler.
file(RELATIVE_PATH path_to_source ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
foreach(path ${PROJECT_SOURCE_DIR}/ ${path_to_source})
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fmacro-prefix-map=${path}=>
                      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fmacro-prefix-map=${path}=>)
endforeach()
if(ISTHMUS_SANITIZE)
  # C callers may store any int in an enumeration of the C ABI, and validation has to read it.
  # The flags keep two more builds affordable: compared with -O1, -Og cuts the CPU time of half of src/core from
  # 35 s to 19 s under address and undefined, and from 11 s to 9 s under thread. -g1 still gives file and line.
  add_compile_options(-fsanitize=${ISTHMUS_SANITIZE} -fno-sanitize=enum -fno-omit-frame-pointer -Og -g1)
  if(ISTHMUS_SANITIZE STREQUAL "address,undefined")
    # A failed check executes an illegal instruction, which AddressSanitizer reports with file and line (handle_sigill=1).
    # Code for messages takes a fifth of the time to compile the core.
    add_compile_options(-fsanitize-undefined-trap-on-error)
  endif()
  add_compile_definitions(_GLIBCXX_ASSERTIONS)  # checks the indices of vectors and strings
  add_link_options(-fsanitize=${ISTHMUS_SANITIZE})
endif()
