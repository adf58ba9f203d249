# SPDX-License-Identifier: Apache-2.0
# CUDA: finds a toolkit, and compiles kernels with it. Sets
#   headrace_cuda                TRUE: the GPU's part is built
#   headrace_cuda_includes       the toolkit's headers
#   headrace_cuda_runtime        its static runtime, which looks for the driver when it is called
# Not enable_language(CUDA): nvcc out of a Python wheel has another layout than CMake looks for, and
# two commands are all that is asked of it.
set(HEADRACE_CUDA AUTO CACHE STRING
  "The GPU's part: ON (stops without a toolkit), OFF, or AUTO (on where one is found and works)")
set_property(CACHE HEADRACE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(HEADRACE_CUDA_ROOT "" CACHE PATH "Folder that holds bin/nvcc; empty: looked for")
set(HEADRACE_CUDA_ARCHITECTURES "80 86 89 90 100 120" CACHE STRING
  "Compute capabilities to compile kernels for, without the dot; or native: those of this machine")
set(headrace_cuda FALSE)
# No contraction, no flushing, correctly rounded division and roots: the bits are the CPU's.
set(headrace_nvcc_flags -std=c++20 -O3 -expt-relaxed-constexpr -fmad=false -ftz=false
  -prec-div=true -prec-sqrt=true
  -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler=-fPIC,-Wall,-Wextra)

# Why there is none, into `out`; empty where all is found.
function(headrace_find_cuda out)
  set(${out} "" PARENT_SCOPE)
  find_program(HEADRACE_NVCC nvcc
    HINTS ${HEADRACE_CUDA_ROOT}/bin ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda/bin ${HEADRACE_TORCH_ROOT}/nvidia/cu13/bin PATH_SUFFIXES bin)
  if(NOT HEADRACE_NVCC)
    set(${out} "no nvcc in HEADRACE_CUDA_ROOT, CUDA_HOME, PATH or /usr/local/cuda" PARENT_SCOPE)
    return()
  endif()
  file(REAL_PATH ${HEADRACE_NVCC} nvcc)
  cmake_path(GET nvcc PARENT_PATH bin)
  cmake_path(GET bin PARENT_PATH root)
  find_path(HEADRACE_CUDA_INCLUDES cuda_runtime_api.h NO_DEFAULT_PATH
    PATHS ${root}/include ${root}/targets/x86_64-linux/include
      ${HEADRACE_TORCH_ROOT}/nvidia/cu13/include)
  find_file(HEADRACE_CUDA_RUNTIME libcudart_static.a NO_DEFAULT_PATH
    PATHS ${root}/lib64 ${root}/lib ${root}/targets/x86_64-linux/lib
      ${HEADRACE_TORCH_ROOT}/nvidia/cu13/lib)
  if(NOT HEADRACE_CUDA_INCLUDES OR NOT HEADRACE_CUDA_RUNTIME)
    set(${out} "${nvcc} is here, but not cuda_runtime_api.h and libcudart_static.a beside it"
      PARENT_SCOPE)
    return()
  endif()
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/cuda_probe.cu)
  file(CONFIGURE OUTPUT ${probe} CONTENT "#include <concepts>\n__global__ void probe() {}\n")
  execute_process(COMMAND ${HEADRACE_NVCC} ${headrace_nvcc_flags} -I${HEADRACE_CUDA_INCLUDES}
    -c ${probe} -o ${probe}.o RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT status EQUAL 0)
    string(STRIP "${said}" said)
    set(${out} "${nvcc} does not compile C++20 with ${CMAKE_CXX_COMPILER}: ${said}" PARENT_SCOPE)
  endif()
endfunction()

# The architectures that this nvcc knows, into `out`; of this machine's GPUs for native.
function(headrace_cuda_architectures out)
  cmake_path(GET HEADRACE_NVCC PARENT_PATH bin)
  execute_process(COMMAND ${HEADRACE_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
  string(REPLACE " " ";" wanted "${HEADRACE_CUDA_ARCHITECTURES}")
  if(wanted STREQUAL "native")
    execute_process(COMMAND ${bin}/__nvcc_device_query OUTPUT_VARIABLE wanted ERROR_QUIET
      RESULT_VARIABLE status)
    string(REGEX MATCHALL "[0-9]+" wanted "${wanted}")
    if(NOT status EQUAL 0 OR NOT wanted)
      message(FATAL_ERROR "HEADRACE_CUDA_ARCHITECTURES is native, and this machine shows no GPU. "
        "Name compute capabilities instead, e.g. 90, or leave it unset.")
    endif()
    list(REMOVE_DUPLICATES wanted)
    list(SORT wanted COMPARE NATURAL)
  endif()
  set(served)
  foreach(architecture IN LISTS wanted)
    if(known MATCHES "sm_${architecture}\n")
      list(APPEND served ${architecture})
    else()
      message(WARNING "nvcc does not know compute capability ${architecture}: no kernels for it")
    endif()
  endforeach()
  if(NOT served)
    message(FATAL_ERROR "nvcc knows none of the compute capabilities ${wanted}. "
      "Set HEADRACE_CUDA_ARCHITECTURES to some that nvcc --list-gpu-code names.")
  endif()
  set(${out} ${served} PARENT_SCOPE)
endfunction()

# headrace_cuda_object(kernels.cu OUT object): machine code for each architecture, PTX of the last.
function(headrace_cuda_object source out)
  headrace_cuda_architectures(architectures)
  list(JOIN architectures " " text)
  set(codes)
  foreach(architecture IN LISTS architectures)
    list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET architectures -1 newest)
  list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
  cmake_path(GET source STEM name)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${HEADRACE_NVCC} ${headrace_nvcc_flags} ${codes} --threads 2
      -I${headrace_SOURCE_DIR}/include -I${headrace_SOURCE_DIR}/src -I${HEADRACE_CUDA_INCLUDES}
      "-DHEADRACE_CUDA_ARCHITECTURES=\"${text}\"" -MD -MF ${object}.d
      -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} DEPFILE ${object}.d
    VERBATIM COMMENT "Compiling ${source} for ${text}")
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${out} ${object} PARENT_SCOPE)
endfunction()

if(HEADRACE_CUDA)
  headrace_find_cuda(headrace_cuda_missing)
  if(headrace_cuda_missing STREQUAL "")
    set(headrace_cuda TRUE)
    set(headrace_cuda_includes ${HEADRACE_CUDA_INCLUDES})
    set(headrace_cuda_runtime ${HEADRACE_CUDA_RUNTIME})
    message(STATUS "CUDA: ${HEADRACE_NVCC}, kernels for ${HEADRACE_CUDA_ARCHITECTURES}")
  elseif(NOT HEADRACE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "HEADRACE_CUDA is ${HEADRACE_CUDA}, and there is no toolkit to build it "
      "with: ${headrace_cuda_missing}. Install one, name its folder in HEADRACE_CUDA_ROOT, or set "
      "HEADRACE_CUDA=OFF to build for the CPU alone.")
  else()
    message(STATUS "CUDA: none, the device is the CPU (${headrace_cuda_missing})")
  endif()
endif()
