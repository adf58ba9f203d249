# SPDX-License-Identifier: Apache-2.0
# Runs ahead_bench on a tiny model with two ranks, where an MPI is found, and with one, which it
# refuses.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})

execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE code OUTPUT_VARIABLE output
  ERROR_VARIABLE errors)
if(NOT code EQUAL 2 OR NOT errors MATCHES "one rank has nobody to meet")
  message(FATAL_ERROR "one rank: ended with ${code}\n${output}\n${errors}")
endif()

if(NOT MPIRUN)
  message(STATUS "Two ranks are not tried: Open MPI is absent")
  return()
endif()
set(ENV{OMPI_ALLOW_RUN_AS_ROOT} 1)
set(ENV{OMPI_ALLOW_RUN_AS_ROOT_CONFIRM} 1)
execute_process(COMMAND ${MPIRUN} --oversubscribe --bind-to none -n 2 ${PROGRAM} --groups 3
    --elements 131072 --rounds 2 --steps 2 --nvme ${FOLDER} --json ${FOLDER}/report.json
  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "two ranks: ended with ${code}\n${output}\n${errors}")
endif()
file(READ ${FOLDER}/report.json report)
string(JSON rows LENGTH "${report}" rows)
string(JSON bytes_of_each GET "${report}" rows 1 sent_bytes)
string(JSON bytes_ahead GET "${report}" rows 3 sent_bytes)
string(JSON meetings GET "${report}" rows 3 meetings)
if(NOT rows EQUAL 5 OR bytes_of_each LESS 262144 OR bytes_ahead GREATER bytes_of_each
   OR NOT meetings EQUAL 1)
  message(FATAL_ERROR "ranks ahead: ${rows} rows, ${bytes_of_each} and ${bytes_ahead} bytes, "
    "${meetings} meetings in:\n${report}")
endif()
file(GLOB_RECURSE left ${FOLDER}/*.swap)
if(left)
  message(FATAL_ERROR "left ${left}")
endif()
