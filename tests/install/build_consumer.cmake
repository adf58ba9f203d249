# SPDX-License-Identifier: Apache-2.0
# Run by CTest: install, configure, build, run; each has to succeed.
include(${CMAKE_CURRENT_LIST_DIR}/must.cmake)

file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
must(${CMAKE_COMMAND} --install ${HEADRACE_BUILD} --prefix ${prefix} --component headrace)

# No path of the build or source tree may be left in what is installed.
file(GLOB_RECURSE packages ${prefix}/*.cmake)
foreach(package IN LISTS packages)
  file(READ ${package} text)
  string(FIND "${text}" "${HEADRACE_BUILD}" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "${package} names the build folder ${HEADRACE_BUILD}")
  endif()
endforeach()

# A Debug program on a Release library too: no public header may depend on NDEBUG.
foreach(type IN ITEMS Release Debug)
  set(build ${WORK}/build-${type})
  must(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} -G ${GENERATOR} -D CMAKE_BUILD_TYPE=${type}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${prefix} -D WANTED_VERSION=${VERSION})
  must(${CMAKE_COMMAND} --build ${build})
  file(GLOB programs ${build}/consumer ${build}/consumer_shared)
  foreach(program IN LISTS programs)
    must(${program})
    if(NOT must_output MATCHES "headrace ${VERSION}: the weight went from 1 to 0\\.9")
      message(FATAL_ERROR "the consumer printed something else: ${must_output}")
    endif()
  endforeach()
endforeach()

# A project of C alone; and one that wants the shared library where the archive's needs are absent.
function(build_in_c wanted without)
  set(build ${WORK}/build-c-${wanted}-${without})
  must(${CMAKE_COMMAND} -S ${CONSUMER}_c -B ${build} -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_PREFIX_PATH=${prefix} -D WANTED_VERSION=${VERSION}
    -D WANTED=${wanted} -D WITHOUT_LIBRARIES=${without})
  must(${CMAKE_COMMAND} --build ${build})
  must(${build}/consumer_c)
  if(NOT must_output MATCHES "headrace ${VERSION}: 4 parameters planned")
    message(FATAL_ERROR "the consumer in C printed something else: ${must_output}")
  endif()
endfunction()
build_in_c(archive OFF)
if(SHARED)
  build_in_c(shared ON)
endif()

# Where the archive's libraries are absent, find_package names all of them.
file(GLOB_RECURSE package ${prefix}/*/headrace.pc)
file(STRINGS ${package} wanted REGEX "^Libs.private:")
string(REGEX MATCHALL "-l(uring|aio)" wanted "${wanted}")
if(wanted)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER}_c -B ${WORK}/build-absent -G ${GENERATOR}
    -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_PREFIX_PATH=${prefix} -D WANTED_VERSION=${VERSION}
    -D WANTED=archive -D WITHOUT_LIBRARIES=ON
    RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(status EQUAL 0)
    message(FATAL_ERROR "the archive was found without ${wanted}: ${out}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " out "${out}")  # CMake breaks its lines
  list(TRANSFORM wanted REPLACE "^-l(.+)" "lib\\1-dev" OUTPUT_VARIABLE packages)
  foreach(word IN LISTS wanted packages)
    string(FIND "${out}" "${word}" position)
    if(position EQUAL -1)
      message(FATAL_ERROR "find_package did not name ${word}: ${out}")
    endif()
  endforeach()
endif()
