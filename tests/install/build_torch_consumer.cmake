# SPDX-License-Identifier: Apache-2.0
# Run by CTest: installs, and builds and runs a LibTorch project that knows nothing but the
# installed folder and a torch. In Debug: torch's headers take half the time, and no public header
# may depend on NDEBUG.
include(${CMAKE_CURRENT_LIST_DIR}/must.cmake)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/drive)
must(${CMAKE_COMMAND} --install ${HEADRACE_BUILD} --prefix ${WORK}/prefix --component headrace)
must(${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Debug
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${WORK}/prefix
  -D WANTED_VERSION=${VERSION} -D TORCH_ROOT=${TORCH_ROOT})
must(${CMAKE_COMMAND} --build ${WORK}/build)
set(programs consumer_torch)
if(SHARED)
  list(APPEND programs consumer_torch_shared)
endif()
foreach(program IN LISTS programs)
  must(${WORK}/build/${program} ${WORK}/drive)
  if(NOT must_output MATCHES "headrace ${VERSION}: the loss went .* the same bits on NVMe")
    message(FATAL_ERROR "${program} printed something else: ${must_output}")
  endif()
endforeach()
