# isthmus_plugin(name source...): a plug-in where the loader looks, the folder isthmus/ beside the core.
include_guard(GLOBAL)
function(isthmus_plugin name)
  add_library(isthmus_${name} MODULE ${ARGN})
  target_link_libraries(isthmus_${name} PRIVATE isthmus_xccl)
  isthmus_own_cxx_runtime(isthmus_${name})
  set_target_properties(isthmus_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/isthmus)
  add_dependencies(isthmus isthmus_${name})
endfunction()
