# SPDX-License-Identifier: Apache-2.0
# Run by CTest: PROGRAM [WORDS] [FOLDER] has to print EXPECTED, end with 0, and leave FOLDER empty
# of runs.
set(words ${WORDS})
if(FOLDER)
  file(MAKE_DIRECTORY ${FOLDER})
  list(APPEND words ${FOLDER})
endif()
execute_process(COMMAND ${PROGRAM} ${words}
  RESULT_VARIABLE status OUTPUT_VARIABLE printed ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "ended with ${status}: ${errors}")
endif()
file(READ ${EXPECTED} expected)
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "${EXPECTED} says\n${expected}\nand this was printed:\n${printed}")
endif()
if(FOLDER)
  file(GLOB left ${FOLDER}/headrace-*/*)
  if(left)
    message(FATAL_ERROR "left behind: ${left}")
  endif()
endif()
