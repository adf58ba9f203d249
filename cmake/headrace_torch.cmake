# SPDX-License-Identifier: Apache-2.0
# LibTorch out of a torch wheel, as the target headrace_libtorch; and the adapter, headrace::torch.
#
# Not find_package(Torch): the wheel is a CUDA build, and its package file stops on a machine
# without a CUDA toolkit (docs/architecture.md, dependencies). Only the CPU half is linked here: two
# libraries, two include folders.

# The adapter is headers only, compiled by its user against the torch that the user has.
add_library(headrace_torch INTERFACE)
add_library(headrace::torch ALIAS headrace_torch)
set_target_properties(headrace_torch PROPERTIES EXPORT_NAME torch)
target_link_libraries(headrace_torch INTERFACE headrace)
# Stands in for Gloo's headers, which a torch wheel lacks; real ones that come earlier serve too.
set(headrace_gloo_declarations
  ${CMAKE_CURRENT_SOURCE_DIR}/include/headrace/torch/gloo_declarations)
target_include_directories(headrace_torch INTERFACE
  $<BUILD_INTERFACE:${headrace_gloo_declarations}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/headrace/torch/gloo_declarations>)

if(HEADRACE_TORCH_ROOT STREQUAL "")
  return()
endif()

set(headrace_torch_folder ${HEADRACE_TORCH_ROOT}/torch)
set(headrace_torch_includes
  ${headrace_torch_folder}/include ${headrace_torch_folder}/include/torch/csrc/api/include)
set(headrace_torch_libraries
  ${headrace_torch_folder}/lib/libtorch_cpu.so ${headrace_torch_folder}/lib/libc10.so)
foreach(path IN LISTS headrace_torch_includes headrace_torch_libraries)
  if(NOT EXISTS ${path})
    message(FATAL_ERROR
      "${path} does not exist, so LibTorch cannot be used. HEADRACE_TORCH_ROOT has to name the "
      "folder that holds torch/ (a site-packages folder), or be empty to build without LibTorch.")
  endif()
endforeach()

add_library(headrace_libtorch INTERFACE IMPORTED GLOBAL)
set_target_properties(headrace_libtorch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${headrace_torch_includes}"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${headrace_torch_includes}"
  INTERFACE_LINK_LIBRARIES "${headrace_torch_libraries}"
  # libtorch_cpu links CUDA libraries that a CPU program never calls into.
  INTERFACE_LINK_OPTIONS
    "LINKER:--allow-shlib-undefined;LINKER:-rpath,${headrace_torch_folder}/lib"
  INTERFACE_COMPILE_FEATURES cxx_std_20)
message(STATUS "LibTorch: ${headrace_torch_folder}")
