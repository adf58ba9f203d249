# SPDX-License-Identifier: Apache-2.0
# Runs update_bench on a tiny model: its report, its exit codes, and that it leaves nothing behind.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/drive)
set(tiny --parameters 300000 --tile 65536 --rounds 3 --nvme ${FOLDER}/drive)

# run(EXPECTED_CODE words...): sets `output` and `errors`.
macro(run expected)
  execute_process(COMMAND ${PROGRAM} ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT code STREQUAL ${expected})
    message(FATAL_ERROR "${ARGN}: ended with ${code}, not ${expected}\n${output}\n${errors}")
  endif()
  file(GLOB_RECURSE left ${FOLDER}/drive/*.swap)
  if(left)
    message(FATAL_ERROR "${ARGN}: left ${left}")
  endif()
endmacro()

run(0 ${tiny} --json ${FOLDER}/report.json)
if(NOT output MATCHES "update / additive bound: [0-9.]+")
  message(FATAL_ERROR "no result in:\n${output}")
endif()
file(READ ${FOLDER}/report.json report)
string(JSON version GET "${report}" schema_version)
string(JSON rounds LENGTH "${report}" rounds)
string(JSON read GET "${report}" bytes read)
string(JSON ratio GET "${report}" summary update_to_bound median)
# Five tiles of 10 bytes an element, in whole pages, and a header each.
math(EXPR least "300000 * 10")
math(EXPR most "5 * (65536 * 10 + 4096)")
if(NOT version EQUAL 1 OR NOT rounds EQUAL 3 OR read LESS least OR read GREATER most)
  message(FATAL_ERROR "version ${version}, ${rounds} rounds, ${read} bytes read in:\n${report}")
endif()

run(0 ${tiny} --parameters-nvme --no-memory --queue threads --checksums off --json -)
string(JSON queue GET "${output}" drive queue)
if(NOT queue STREQUAL "threads")
  message(FATAL_ERROR "queue ${queue} in:\n${output}")
endif()

run(4 ${tiny} --no-memory --require-ratio 0.000001)
run(2 ${tiny} --nvme ${FOLDER}/nowhere --json -)
string(JSON code GET "${output}" error code)
if(NOT code STREQUAL "kNotFound")
  message(FATAL_ERROR "code ${code} in:\n${output}")
endif()
run(2 --tile 1000 --nvme ${FOLDER}/drive)
run(2 --no-such-option)
