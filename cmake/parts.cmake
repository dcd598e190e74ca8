# Optional parts of the build. Each is ON, OFF or AUTO. With AUTO, the default, a part that lacks something is left out,
# and the summary at the end of the configuration gives the reason. With ON, anything missing is an error.

# isthmus_part(option description): declares the option of a part.
macro(isthmus_part option description)
  set(${option} AUTO CACHE STRING "${description}: ON, OFF or AUTO")
  set_property(CACHE ${option} PROPERTY STRINGS AUTO ON OFF)
endmacro()

# isthmus_require(package...): something without which the build fails. dependencies.cmake reports all of it at once.
function(isthmus_require)
  set_property(GLOBAL APPEND PROPERTY ISTHMUS_MISSING ${ARGN})
endfunction()

# isthmus_decide(option part reason [package...]): sets `option` to ON or OFF. AUTO is ON if `reason` is empty and no
# `package` is listed, which are those that are missing.
function(isthmus_decide option part reason)
  set(missing ${ARGN})
  list(JOIN missing ", " text)
  if(${option} STREQUAL "AUTO")
    if(NOT reason AND missing)
      set(reason "missing: ${text}")
    endif()
    set(value ON)
    if(reason)
      set(value OFF)
    endif()
  elseif(${option})
    set(value ON)
    isthmus_require(${missing})
  else()
    set(value OFF)
    set(reason "${option}=OFF")
  endif()
  if(value)
    isthmus_describe_part("${part}" on "")
  else()
    isthmus_describe_part("${part}" off "${reason}")
  endif()
  set(${option} ${value} PARENT_SCOPE)
endfunction()

# isthmus_describe_part(part state reason): adds a line to the summary.
function(isthmus_describe_part part state reason)
  string(LENGTH "${part}" length)
  math(EXPR width "36 - ${length}")
  string(REPEAT " " ${width} spaces)
  if(reason)
    set(reason "   ${reason}")
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY ISTHMUS_PARTS "\n--   ${part}${spaces}${state}${reason}")
endfunction()

function(isthmus_print_parts)
  get_property(parts GLOBAL PROPERTY ISTHMUS_PARTS)
  message(STATUS "Isthmus ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE} build:${parts}")
endfunction()
