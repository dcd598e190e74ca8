# Third-party pieces as targets, so that no other file knows where they are installed.

# Header-only C++ libraries from Debian packages (or ISTHMUS_DEPS_DIR): toml++, spdlog, fmt, nlohmann json.
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
  get_filename_component(mpi_dir ${ISTHMUS_MPI_LIBRARY} DIRECTORY)
  target_link_options(isthmus_mpi INTERFACE -Wl,-rpath,${mpi_dir})
endif()

# The SYCL runtime of the virtual environment (PyPI's dpcpp-cpp-rt): host code with plain g++.
if(ISTHMUS_SYCL)
  find_library(ISTHMUS_SYCL_LIBRARY NAMES sycl libsycl.so.9 HINTS ${ISTHMUS_VENV}/lib NO_DEFAULT_PATH)
endif()
if(ISTHMUS_SYCL_LIBRARY)
  add_library(isthmus_sycl_runtime INTERFACE)
  target_include_directories(isthmus_sycl_runtime SYSTEM INTERFACE ${ISTHMUS_VENV}/include ${ISTHMUS_VENV}/include/sycl)
  target_compile_definitions(isthmus_sycl_runtime INTERFACE SYCL_DISABLE_FSYCL_SYCLHPP_WARNING)
  target_link_libraries(isthmus_sycl_runtime INTERFACE ${ISTHMUS_SYCL_LIBRARY})
  target_link_options(isthmus_sycl_runtime INTERFACE -Wl,-rpath,${ISTHMUS_VENV}/lib)
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
