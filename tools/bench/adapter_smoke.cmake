# SPDX-License-Identifier: Apache-2.0
# Runs adapter_bench on a tiny model: its report and its exit codes.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
set(tiny --layers 2 --hidden 64 --batch 2 --seq 16 --rounds 5 --threads 1)

# run(EXPECTED_CODE words...): sets `output` and `errors`.
macro(run expected)
  execute_process(COMMAND ${PROGRAM} ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT code STREQUAL ${expected})
    message(FATAL_ERROR "${ARGN}: ended with ${code}, not ${expected}\n${output}\n${errors}")
  endif()
endmacro()

run(0 ${tiny} --json ${FOLDER}/report.json)
foreach(words IN ITEMS "sign test" "zero_grad" "discard_gradients" "5 rounds; the bound is a loose"
    "CPU +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+")
  if(NOT output MATCHES "${words}")
    message(FATAL_ERROR "no '${words}' in:\n${output}")
  endif()
endforeach()
file(READ ${FOLDER}/report.json report)
string(JSON version GET "${report}" schema_version)
string(JSON rounds LENGTH "${report}" rounds)
string(JSON gathers GET "${report}" gathers_in_place)
string(JSON parameters GET "${report}" parameters)
string(JSON bound GET "${report}" summary wall upper_bound)
string(JSON ratio GET "${report}" summary cpu ratio)
# 5 rounds of two passes: four groups in forward and in backward.
# (256 + 16) * 64 in "embed", 12 * 64 * 64 + 13 * 64 in a block, 256 * 64 + 2 * 64 in "head".
if(NOT version EQUAL 1 OR NOT rounds EQUAL 5 OR NOT gathers EQUAL 80 OR
    NOT parameters EQUAL 133888 OR bound LESS_EQUAL 0 OR ratio LESS_EQUAL 0)
  message(FATAL_ERROR "version ${version}, ${rounds} rounds, ${gathers} gathers, "
    "${parameters} parameters in:\n${report}")
endif()

run(4 ${tiny} --at-most 0.000001 --json -)
string(JSON met GET "${output}" required met)
if(met)
  message(FATAL_ERROR "nothing is a million times faster than itself:\n${output}")
endif()
run(0 ${tiny} --at-most 1000000)
if(NOT output MATCHES "at most 1000000.0000: met")
  message(FATAL_ERROR "${output}")
endif()
run(0 --help)
run(2 ${tiny} --json ${FOLDER}/nowhere/report.json)
if(NOT output STREQUAL "" OR NOT errors MATCHES "nowhere/report.json")
  message(FATAL_ERROR "${output}\n${errors}")
endif()
run(2 --rounds 4)
run(2 --hidden 100 --json -)
string(JSON code GET "${output}" error code)
if(NOT code STREQUAL "kUsage")
  message(FATAL_ERROR "code ${code} in:\n${output}")
endif()
run(2 --layer 2)
if(NOT errors MATCHES "Did you mean --layers")
  message(FATAL_ERROR "${errors}")
endif()
