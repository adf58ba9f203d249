# SPDX-License-Identifier: Apache-2.0
# What the Python wheel holds (python/CMakeLists.txt): the library with the C interface alone, and
# the program. They run on any Linux with the glibc that the wheel's name tells.

# libstdc++ is inside, without what nothing calls: some of that asks for a newer glibc. So does a
# static libgcc, which is not inside.
function(headrace_wheel_links target)
  target_link_options(${target} PRIVATE -static-libstdc++ LINKER:--gc-sections)
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${headrace_BINARY_DIR}/wheel
    RUNTIME_OUTPUT_DIRECTORY ${headrace_BINARY_DIR}/wheel)
endfunction()

function(headrace_wheel_library objects archives)
  set(map ${headrace_SOURCE_DIR}/cmake/headrace_wheel.map)
  add_library(headrace_wheel SHARED ${objects})
  headrace_public_library(headrace_wheel)
  headrace_link_archives(headrace_wheel)
  headrace_wheel_links(headrace_wheel)
  target_link_libraries(headrace_wheel PRIVATE ${archives})
  target_link_options(headrace_wheel PRIVATE LINKER:-Bsymbolic LINKER:--no-undefined
    LINKER:--version-script=${map})
  set_target_properties(headrace_wheel PROPERTIES OUTPUT_NAME headrace LINK_DEPENDS ${map})
endfunction()
