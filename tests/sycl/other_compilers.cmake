# The suite under other SYCL implementations: built and run if their compiler is in PATH, otherwise skipped with
# the reason. AdaptiveCpp is not packaged for Debian or PyPI, so CI machines have neither.
if(NOT GTest_FOUND OR NOT TARGET isthmus_mpi)
  return()
endif()
file(GLOB_RECURSE front_end CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/*.hpp)
# Link MPI's headers only: their folder also contains DPC++'s headers, which this compiler must not use.
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/mpi)
file(GLOB mpi_files ${ISTHMUS_MPI_INCLUDE}/mpi*.h)
foreach(header ${mpi_files})
  get_filename_component(file ${header} NAME)
  file(CREATE_LINK ${header} ${CMAKE_CURRENT_BINARY_DIR}/mpi/${file} SYMBOLIC)
endforeach()

# other_sycl_program(name sources... LINK libraries...): builds one program with ${compiler} and sets its
# path in ${name}_by_other.
function(other_sycl_program name)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" "LINK")
  set(program ${PROJECT_BINARY_DIR}/bin/${implementation}/${name})
  set(sources ${given_UNPARSED_ARGUMENTS})
  list(FILTER sources EXCLUDE REGEX "^-")  # the others are options
  set(runtime $<TARGET_FILE_DIR:isthmus>)
  add_custom_command(
    OUTPUT ${program}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/bin/${implementation}
    COMMAND
      ${compiler} ${options} -std=c++20 -O1 -Wall -Wextra -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/tests
      -isystem ${CMAKE_CURRENT_BINARY_DIR}/mpi ${given_UNPARSED_ARGUMENTS} -o ${program} ${given_LINK}
      $<TARGET_FILE:isthmus> ${ISTHMUS_MPI_LIBRARY} -Wl,-rpath,${runtime} -Wl,-rpath,${ISTHMUS_VENV}/lib -lpthread
    DEPENDS isthmus oracle ${sources} ${front_end}
    COMMENT "${implementation}: ${name}"
    COMMAND_EXPAND_LISTS VERBATIM)
  set(${name}_by_other ${program} PARENT_SCOPE)
  set_property(DIRECTORY APPEND PROPERTY programs_of_${implementation} ${program})
endfunction()

# other_sycl_test(name command...)
function(other_sycl_test name)
  add_test(NAME sycl_${implementation}_${name} COMMAND ${ARGN})
  set_tests_properties(sycl_${implementation}_${name} PROPERTIES TIMEOUT 400 PROCESSORS 2 LABELS sycl)
endfunction()

# other_sycl(implementation options...): the suite with the compiler of that name.
function(other_sycl implementation)
  find_program(ISTHMUS_${implementation} ${implementation})
  if(NOT ISTHMUS_${implementation})
    # CTest prints no output of skipped tests, so the test name has the reason.
    set(name sycl_${implementation}_is_not_in_path)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: no ${implementation} in PATH")
    set_tests_properties(${name} PROPERTIES LABELS sycl SKIP_REGULAR_EXPRESSION "skipped: ")
    return()
  endif()
  set(compiler ${ISTHMUS_${implementation}})
  set(options ${ARGN})
  set(gtest LINK $<TARGET_FILE:GTest::gtest_main> $<TARGET_FILE:GTest::gtest>)
  set(here ${CMAKE_CURRENT_SOURCE_DIR})
  set(leaks ${PROJECT_SOURCE_DIR}/tests/leaks/leak_check.cpp)
  set(mpiexec ${ISTHMUS_TEST_MPIEXEC} -n)

  other_sycl_program(sycl_test ${here}/errors_test.cpp ${here}/fused_test.cpp ${here}/operations_test.cpp
                     ${here}/ordering_test.cpp ${leaks} ${gtest})
  other_sycl_test(test ${sycl_test_by_other})
  other_sycl_program(memory_test ${here}/memory_test.cpp ${leaks} ${gtest})
  other_sycl_test(memory ${memory_test_by_other})
  other_sycl_test(memory_only ${memory_test_by_other})
  set_tests_properties(
    sycl_${implementation}_memory sycl_${implementation}_memory_only PROPERTIES ENVIRONMENT ISTHMUS_CONFIG=none)
  set_property(TEST sycl_${implementation}_memory_only APPEND PROPERTY ENVIRONMENT ISTHMUS_MEMORY_PROVIDER=sycl)
  other_sycl_program(tensor_parallel ${PROJECT_SOURCE_DIR}/tests/operators/tensor_parallel/sycl_test.cpp ${leaks} ${gtest}
                     $<TARGET_FILE:oracle> -lfmt)
  other_sycl_test(tensor_parallel ${tensor_parallel_by_other})
  # This compiler compiles the kernels itself: one source for host and device.
  other_sycl_program(
    sycl_device_test ${device_sources} ${PROJECT_SOURCE_DIR}/apps/sycl_collectives/shape.cpp
    ${PROJECT_SOURCE_DIR}/src/operators/fused/device/blaslt.cpp
    ${PROJECT_SOURCE_DIR}/tests/operators/allreduce_rmsnorm/norm_case.cpp ${PROJECT_SOURCE_DIR}/src/base/dynamic_library.cpp
    ${PROJECT_SOURCE_DIR}/src/base/error.cpp ${PROJECT_SOURCE_DIR}/src/base/text.cpp ${PROJECT_SOURCE_DIR}/src/base/trust.cpp -I${PROJECT_SOURCE_DIR}
    -I${PROJECT_SOURCE_DIR}/apps -I${PROJECT_SOURCE_DIR}/apps/common/single_source -I${PROJECT_SOURCE_DIR}/src
    -I${CMAKE_CURRENT_BINARY_DIR}/device LINK $<TARGET_FILE:GTest::gtest> $<TARGET_FILE:oracle> -lfmt -ldl)
  other_sycl_test(device_threads ${sycl_device_test_by_other})
  other_sycl_test(device_processes ${PROJECT_SOURCE_DIR}/scripts/each_rank 2 ${sycl_device_test_by_other})
  other_sycl_program(listing3 ${here}/listing3.cpp)
  foreach(ranks 1 2 4)
    other_sycl_test(listing3_${ranks} ${mpiexec} ${ranks} ${listing3_by_other})
  endforeach()
  foreach(example 01_allreduce_usm 02_buffers_and_dependencies 03_devices_of_one_process)
    other_sycl_program(${example} ${PROJECT_SOURCE_DIR}/examples/${example}.cpp)
  endforeach()
  other_sycl_test(01_allreduce_usm ${mpiexec} 4 ${01_allreduce_usm_by_other})
  other_sycl_test(02_buffers_and_dependencies ${mpiexec} 3 ${02_buffers_and_dependencies_by_other})
  other_sycl_test(03_devices_of_one_process ${03_devices_of_one_process_by_other})
  get_property(programs DIRECTORY PROPERTY programs_of_${implementation})
  add_custom_target(sycl_by_${implementation} ALL DEPENDS ${programs})
endfunction()

# Every AdaptiveCpp has OpenMP without a compiler plug-in. Use "generic" for GPUs.
set(ISTHMUS_ACPP_TARGETS omp.library-only CACHE STRING "Targets for which AdaptiveCpp compiles the tests")
other_sycl(acpp --acpp-targets=${ISTHMUS_ACPP_TARGETS})
other_sycl(icpx -fsycl)
