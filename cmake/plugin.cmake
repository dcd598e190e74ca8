# isthmus_plugin(name source...): builds a backend plug-in in the folder that the loader searches, isthmus/ next
# to the core. SHARED_CXX_RUNTIME before the sources: the plug-in exchanges C++ objects with another library.
include_guard(GLOBAL)
function(isthmus_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 plugin SHARED_CXX_RUNTIME "" "")
  add_library(isthmus_${name} MODULE ${plugin_UNPARSED_ARGUMENTS})
  target_link_libraries(isthmus_${name} PRIVATE isthmus_plugin_support)
  if(NOT plugin_SHARED_CXX_RUNTIME)
    isthmus_own_cxx_runtime(isthmus_${name})
  endif()
  set_target_properties(isthmus_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/isthmus)
  add_dependencies(isthmus isthmus_${name})
  set_property(GLOBAL APPEND PROPERTY ISTHMUS_PLUGINS isthmus_${name})
endfunction()
