# Headers, and template code that each file instantiates again (JSON, formatting), dominate compile time.
# Several files of a target are therefore compiled as one (unity builds of CMake), which halves the time
# for the core.
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

# isthmus_unite(target file...): groups the files of one folder into as few units as possible, with at most
# ISTHMUS_UNITY files each. For targets with many folders and UNITY_BUILD_MODE GROUP: a new file does not change
# the units of other folders.
function(isthmus_unite target)
  list(LENGTH ARGN files)
  math(EXPR parts "(${files} + ${ISTHMUS_UNITY} - 1) / ${ISTHMUS_UNITY}")
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(MAKE_C_IDENTIFIER ${folder} folder)
  set(index 0)
  foreach(file ${ARGN})
    math(EXPR part "${index} * ${parts} / ${files}")
    set_source_files_properties(${file} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${folder}_${part})
    math(EXPR index "${index} + 1")
  endforeach()
endfunction()
