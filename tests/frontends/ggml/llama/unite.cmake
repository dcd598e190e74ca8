# llama.cpp compiles its families of models 16 files at a time, and its core file by file. The test compiles the core
# so, too: 80 CPU seconds for all instead of 103. CMake reads this with the project
# (CMAKE_PROJECT_TOP_LEVEL_INCLUDES) and calls it when the targets are known; no line of the sources changes.
function(unite_llama)
  get_target_property(sources llama SOURCES)
  get_target_property(folder llama SOURCE_DIR)
  list(TRANSFORM sources PREPEND ${folder}/)
  set_property(SOURCE ${sources} TARGET_DIRECTORY llama PROPERTY SKIP_UNITY_BUILD_INCLUSION OFF)
endfunction()
cmake_language(DEFER CALL unite_llama)
