# SPDX-License-Identifier: Apache-2.0
# Run by CTest: NM of LIBRARY lists nothing but Headrace's own names.
execute_process(COMMAND ${NM} ${FLAGS} --defined-only ${LIBRARY}
  RESULT_VARIABLE status OUTPUT_VARIABLE listed)
if(NOT status EQUAL 0 OR NOT listed MATCHES " T headrace_engine_create")
  message(FATAL_ERROR "${NM} ${FLAGS} ${LIBRARY} ended with ${status}:\n${listed}")
endif()
string(REPLACE "\n" ";" lines "${listed}")
foreach(line IN LISTS lines)
  if(line MATCHES "^[0-9a-f]+ . ([^@]+)")
    set(name ${CMAKE_MATCH_1})
    set(own "^(headrace_|HEADRACE_[0-9.]+$|_Z(N|NK|TIN|TSN|TVN)8headrace)")
    if(NOT name MATCHES "${own}")
      message(SEND_ERROR "${LIBRARY} shows ${name}")
    endif()
  endif()
endforeach()
