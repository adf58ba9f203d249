# SPDX-License-Identifier: Apache-2.0
# must(COMMAND ARGUMENT...): runs it, shows what it prints and leaves that in must_output; ends the
# script where it fails.
function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  message("${out}")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${ARGN}")
  endif()
  set(must_output "${out}" PARENT_SCOPE)
endfunction()
