# Most of what a source file costs the compiler are headers, and code of templates that each file makes anew (JSON,
# formatting). So several files of a target are compiled as one (CMake's unity builds): half the time for the core.
# Files that share a translation unit share their unnamed namespaces, too; where two of them have the same name for
# different things, and the names are right, isthmus_alone keeps one of them apart. Files with compile options of
# their own are always compiled alone, and so is all of a build for NVIDIA devices: nobody has tried its programs.
if(ISTHMUS_UNITY GREATER 1 AND NOT ISTHMUS_GPU)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE ${ISTHMUS_UNITY})
  set(CMAKE_UNITY_BUILD_RELOCATABLE ON)  # a compiler cache then serves every checkout
  # clang-tidy finds an #include of a .cpp suspicious.
  set(CMAKE_UNITY_BUILD_CODE_BEFORE_INCLUDE "// NOLINTNEXTLINE(bugprone-suspicious-include)")
endif()

# isthmus_alone(target file...)
function(isthmus_alone target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# isthmus_unite(target file...): files of one folder, in as few parts as hold at most ISTHMUS_UNITY files each. For a
# target with many folders, whose UNITY_BUILD_MODE is GROUP: a new file moves nothing in the other folders.
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
