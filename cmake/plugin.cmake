# isthmus_plugin(name source...): builds a backend plug-in in the folder that the loader searches, isthmus/ next
# to the core.
include_guard(GLOBAL)
function(isthmus_plugin name)
  add_library(isthmus_${name} MODULE ${ARGN})
  target_link_libraries(isthmus_${name} PRIVATE isthmus_plugin_support)
  isthmus_own_cxx_runtime(isthmus_${name})
  set_target_properties(isthmus_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/isthmus)
  add_dependencies(isthmus isthmus_${name})
  set_property(GLOBAL APPEND PROPERTY ISTHMUS_PLUGINS isthmus_${name})
endfunction()
