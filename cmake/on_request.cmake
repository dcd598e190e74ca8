# isthmus_on_request(target): for a target that `make test` does not run. Only builds that name the target compile it. A
# test checks its syntax, which takes a quarter of the time.
function(isthmus_on_request target)
  set_property(TARGET ${target} PROPERTY EXCLUDE_FROM_ALL ON)
  get_target_property(sources ${target} SOURCES)
  list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set(includes $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
  set(definitions $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
  add_test(NAME syntax.${target}
           COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -Wall -Wextra "-I$<JOIN:${includes},;-I>"
                   "$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},;-D>>" ${sources}
           COMMAND_EXPAND_LISTS)
  set_tests_properties(syntax.${target} PROPERTIES TIMEOUT 240)
endfunction()
