# SPDX-License-Identifier: Apache-2.0
# Run by CTest: PROGRAM has to print the same on one rank, and rank 0 of 2 and of 3. In FOLDER the
# two ranks have swap files. With MPIRUN, that starts the ranks; else variables do.
file(MAKE_DIRECTORY ${FOLDER})
foreach(world IN ITEMS 1 2 3)
  set(words)
  if(world EQUAL 2)
    set(words ${FOLDER})
  endif()
  set(commands)
  if(world EQUAL 1)
    list(APPEND commands COMMAND ${PROGRAM})
  elseif(MPIRUN)
    list(APPEND commands COMMAND ${CMAKE_COMMAND} -E env OMPI_ALLOW_RUN_AS_ROOT=1
      OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
      OMPI_MCA_rmaps_base_oversubscribe=1 ${MPIRUN} -n ${world} ${PROGRAM} ${words})
  else()
    string(RANDOM LENGTH 4 ALPHABET 123456789 port)
    math(EXPR port "20000 + ${port}")
    math(EXPR last "${world} - 1")
    foreach(rank RANGE ${last} 0 -1)  # rank 0 last: this command's output is the last one's
      list(APPEND commands COMMAND ${CMAKE_COMMAND} -E env RANK=${rank} WORLD_SIZE=${world}
        MASTER_ADDR=127.0.0.1 MASTER_PORT=${port} GLOO_SOCKET_IFNAME=lo ${PROGRAM} ${words})
    endforeach()
  endif()
  execute_process(${commands} RESULTS_VARIABLE ends OUTPUT_VARIABLE printed ERROR_VARIABLE errors)
  if(NOT ends MATCHES "^0(;0)*$")
    message(FATAL_ERROR "${world} ranks ended with ${ends}: ${errors}")
  endif()
  if(world EQUAL 1)
    set(expected "${printed}")
  elseif(NOT printed STREQUAL expected OR NOT printed MATCHES "^parameters [0-9a-f]+\n$")
    message(FATAL_ERROR "one rank prints\n${expected}\nand ${world} ranks\n${printed}")
  endif()
endforeach()
file(GLOB left ${FOLDER}/headrace-*/*)
if(left)
  message(FATAL_ERROR "left behind: ${left}")
endif()
