# llama.cpp uses unity builds of 16 files for its model families, but not for its core. Most of the time goes into
# parsing headers, so the test unites the core as well, and more model families at a time. CMake includes this file
# with the project (CMAKE_PROJECT_TOP_LEVEL_INCLUDES) and calls the function after all targets are defined. The sources
# are not changed.
# unite(group size file...)
function(unite group size)
  set(index 0)
  foreach(file ${ARGN})
    math(EXPR part "${index} / ${size}")
    set_property(SOURCE ${file} TARGET_DIRECTORY llama PROPERTY UNITY_GROUP ${group}_${part})
    math(EXPR index "${index} + 1")
  endforeach()
endfunction()
function(unite_llama)
  get_target_property(models llama SOURCES)
  get_target_property(folder llama SOURCE_DIR)
  set(core ${models})
  list(FILTER models INCLUDE REGEX "models/")
  list(FILTER core EXCLUDE REGEX "models/")
  list(TRANSFORM core PREPEND ${folder}/)
  set_property(SOURCE ${core} TARGET_DIRECTORY llama PROPERTY SKIP_UNITY_BUILD_INCLUSION OFF)
  set_property(TARGET llama PROPERTY UNITY_BUILD_MODE GROUP)
  # The sizes separate files that define the same function.
  unite(core 17 ${core})
  unite(models 40 ${models})
endfunction()
cmake_language(DEFER CALL unite_llama)
