option(ISTHMUS_TESTS "Build the tests" ON)
option(ISTHMUS_APPS "Build the apps, benchmarks and examples" ON)
option(ISTHMUS_PYTHON "Build the Python module" ON)
option(ISTHMUS_SYCL "Build the SYCL programs (needs a SYCL runtime)" ON)
option(ISTHMUS_GPU "Build the tests and benchmarks that run on NVIDIA devices (needs nvcc)" OFF)
# Two minutes of nvcc: by default only where the kernels can run.
find_program(ISTHMUS_NVCC nvcc)
set(p2p_default OFF)
if(ISTHMUS_NVCC AND EXISTS /dev/nvidia0)
  set(p2p_default ON)
endif()
option(ISTHMUS_P2P "Build the peer-memory kernels for CUDA devices (needs nvcc)" ${p2p_default})
# Generating fmt's code in every file takes more time than all the rest; a library that is to be copied to
# another machine should carry it all the same.
option(ISTHMUS_LINK_FMT "Link the system's fmt instead of compiling it in" OFF)
set(ISTHMUS_UNITY 6 CACHE STRING "How many source files the compiler gets at a time; 1 while working on a few files")
option(ISTHMUS_CONFORMANCE_FULL "Every world of the conformance suite runs the full product (an hour)" OFF)
set(ISTHMUS_SANITIZE "" CACHE STRING "address,undefined or thread: instrument everything that is built")
set(ISTHMUS_VENV "${CMAKE_SOURCE_DIR}/.venv" CACHE PATH "Virtual environment that scripts/setup made")
set(ISTHMUS_DEPS_DIR "" CACHE PATH "Folder whose include/ holds toml++, spdlog, fmt, nlohmann and gtest where the system lacks them")

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)
if(ISTHMUS_SANITIZE)
  # C callers may store any int in an enumeration of the C ABI, and validation has to look at it.
  # Two more builds: with -Og, CPU seconds for half of src/runtime fall from 35 (-O1) to 19 under address and
  # undefined and from 11 to 9 under thread. -g1 still gives file and line.
  add_compile_options(-fsanitize=${ISTHMUS_SANITIZE} -fno-sanitize=enum -fno-omit-frame-pointer -Og -g1)
  add_link_options(-fsanitize=${ISTHMUS_SANITIZE})
endif()
