# SPDX-License-Identifier: Apache-2.0
# Objects compiled for AVX may define one strong function each and nothing weak: a weak one (an
# inline function or a template) could be the copy that the linker keeps for the whole program,
# which must run on CPUs without AVX.
set(seen 0)
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "_avx[0-9]+\\.cpp")
    continue()
  endif()
  math(EXPR seen "${seen} + 1")
  execute_process(COMMAND ${NM} --defined-only --extern-only ${object}
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" symbols "${text}")
  # DW.ref.__gxx_personality_v0 is a pointer, the same in every object.
  list(FILTER symbols EXCLUDE REGEX "DW\\.ref\\.__gxx_personality_v0$")
  list(LENGTH symbols count)
  if(NOT count EQUAL 1 OR NOT symbols MATCHES " T ")
    message(FATAL_ERROR "${object} should define one function only, but defines: ${symbols}")
  endif()
endforeach()
if(CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$" AND NOT seen EQUAL 2)
  message(FATAL_ERROR "expected 2 objects compiled for AVX, found ${seen}: ${OBJECTS}")
endif()
