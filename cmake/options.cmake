option(ISTHMUS_TESTS "Build the tests" ON)
option(ISTHMUS_APPS "Build the apps, benchmarks and examples" ON)
option(ISTHMUS_PYTHON "Build the Python module" ON)
option(ISTHMUS_SYCL "Build the SYCL programs (needs a SYCL runtime)" ON)
option(ISTHMUS_GPU "Build the tests and benchmarks that run on NVIDIA devices (needs nvcc)" OFF)
set(ISTHMUS_DEPS_DIR "" CACHE PATH "Folder whose include/ holds toml++, spdlog, fmt, nlohmann and gtest where the system lacks them")
set(ISTHMUS_VENV "${CMAKE_SOURCE_DIR}/.venv" CACHE PATH "Virtual environment that scripts/setup made")
if(SKBUILD)
  # pip builds in an environment of its own: what it has been given says where it lies. Nothing of a checkout's.
  find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.metadata as m; print(next(f.locate().resolve().parents[2] for f in m.files('umf') if str(f).endswith('include/umf/memory_pool.h')))"
    OUTPUT_VARIABLE ISTHMUS_VENV OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
# scripts/setup_sycl's; CMPLR_ROOT is the compiler of a oneAPI installation.
set(sycl_roots "")
if(NOT SKBUILD)
  set(sycl_roots ${ISTHMUS_VENV}/sycl-8 $ENV{CMPLR_ROOT})
endif()
set(ISTHMUS_SYCL_FOLDER "${ISTHMUS_VENV}" CACHE PATH "Folder with include/sycl and lib/libsycl.so.N: the SYCL runtime that everything is built with")
set(ISTHMUS_SYCL_ROOTS "${sycl_roots}" CACHE STRING "Folders with include/sycl and lib/libsycl.so.N: more SYCL runtimes that libisthmus_ggml.so gets an engine for")
set(ISTHMUS_SANITIZE "" CACHE STRING "address,undefined or thread: instrument everything that is built")
# CUDA's compiler: the machine's, or the one of PyPI's packages (scripts/setup cuda).
file(GLOB cuda_wheels ${ISTHMUS_VENV}/lib/python3*/site-packages/nvidia/cu13/bin)
if(SKBUILD)  # the pinned one, if it is there: what a wheel holds does not depend on the machine
  find_program(ISTHMUS_NVCC nvcc PATHS ${cuda_wheels} NO_DEFAULT_PATH)
endif()
find_program(ISTHMUS_NVCC nvcc PATHS ${cuda_wheels} /usr/local/cuda/bin)
set(p2p_default OFF)
if(ISTHMUS_NVCC AND NOT ISTHMUS_SANITIZE)
  set(p2p_default ON)
endif()
option(ISTHMUS_P2P "Build the peer-memory kernels for CUDA devices (needs nvcc: a minute on two cores)" ${p2p_default})
# Generating fmt's code in every file takes more time than all the rest. Without the library (a machine that
# scripts/setup cannot reach) the headers do; a wheel takes the library along (auditwheel).
find_library(ISTHMUS_FMT_LIBRARY fmt)
set(link_fmt_default OFF)
if(ISTHMUS_FMT_LIBRARY AND NOT ISTHMUS_DEPS_DIR)
  set(link_fmt_default ON)
endif()
option(ISTHMUS_LINK_FMT "Link the system's fmt instead of compiling it in" ${link_fmt_default})
set(ISTHMUS_UNITY 6 CACHE STRING "How many source files the compiler gets at a time; 1 while working on a few files")
option(ISTHMUS_CONFORMANCE_FULL "Every world of the conformance suite runs the full product (an hour)" OFF)

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)
if(ISTHMUS_SANITIZE)
  # C callers may store any int in an enumeration of the C ABI, and validation has to look at it.
  # Two more builds: with -Og, CPU seconds for half of src/core fall from 35 (-O1) to 19 under address and
  # undefined and from 11 to 9 under thread. -g1 still gives file and line.
  add_compile_options(-fsanitize=${ISTHMUS_SANITIZE} -fno-sanitize=enum -fno-omit-frame-pointer -Og -g1)
  add_link_options(-fsanitize=${ISTHMUS_SANITIZE})
endif()
