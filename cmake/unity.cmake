# Headers, and template code that each file instantiates again, dominate compile time. Several files of a target are
# therefore compiled as one (unity builds of CMake), which takes less than half of the time for the core.
# Files that share a translation unit also share their unnamed namespaces. If two files rightly use the same
# name for different things, isthmus_alone separates one of them. Files with their own compile options are
# always compiled alone, and so is every build for NVIDIA devices, because its programs have not been tried
# in unity builds.
if(ISTHMUS_UNITY GREATER 1 AND NOT ISTHMUS_GPU)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE ${ISTHMUS_UNITY})
  set(CMAKE_UNITY_BUILD_RELOCATABLE ON)  # lets all checkouts share a compiler cache
  # clang-tidy flags an #include of a .cpp file as suspicious.
  set(CMAKE_UNITY_BUILD_CODE_BEFORE_INCLUDE "// NOLINTNEXTLINE(bugprone-suspicious-include)")
endif()

# isthmus_alone(target file...): compiles these files separately.
function(isthmus_alone target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# isthmus_unite(target file...): compiles the files of one component (a folder of src, backends or operators, with its
# subfolders) together, at most ISTHMUS_UNITY at a time. For targets with UNITY_BUILD_MODE GROUP: a new file does not
# change the units of other components. A folder can set ISTHMUS_COMPONENT to join another component.
function(isthmus_unite target)
  set(component ${ISTHMUS_COMPONENT})
  if(NOT component)
    file(RELATIVE_PATH component ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
    string(REGEX REPLACE "^((backends/|operators/)?[^/]+).*" "\\1" component ${component})
  endif()
  string(MAKE_C_IDENTIFIER ${target}_${component} component)
  get_property(index GLOBAL PROPERTY ISTHMUS_FILES_${component})
  if(NOT index)
    set(index 0)
  endif()
  foreach(file ${ARGN})
    math(EXPR part "${index} / ${ISTHMUS_UNITY}")
    set_source_files_properties(${file} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${component}_${part})
    math(EXPR index "${index} + 1")
  endforeach()
  set_property(GLOBAL PROPERTY ISTHMUS_FILES_${component} ${index})
endfunction()
