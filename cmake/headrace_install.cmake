# SPDX-License-Identifier: Apache-2.0
# cmake --install: the library, its public headers and the package that find_package(headrace)
# reads.
# The component `headrace` is all of it; a project that takes Headrace in may install just that.
include(CMakePackageConfigHelpers)

set(headrace_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
set(headrace_targets headrace headrace_torch headrace_mpi)
if(HEADRACE_SHARED)
  list(APPEND headrace_targets headrace_shared)
endif()
install(TARGETS ${headrace_targets} EXPORT headraceTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headrace
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headrace NAMELINK_COMPONENT headrace)
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/include/headrace
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT headrace
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT headraceTargets NAMESPACE headrace::
  DESTINATION ${headrace_package_folder} COMPONENT headrace)

configure_package_config_file(cmake/headraceConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/headraceConfig.cmake
  INSTALL_DESTINATION ${headrace_package_folder})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/headraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/headraceConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/headraceConfigVersion.cmake
  DESTINATION ${headrace_package_folder} COMPONENT headrace)

# headrace.pc finds its folders from its own, so that the prefix may be moved; absolute ones stay.
set(headrace_pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(headrace_pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(headrace_pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
  set(headrace_pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH headrace_pc_up /${headrace_pc_folder} /)
  string(REGEX REPLACE "/$" "" headrace_pc_up "${headrace_pc_up}")
  set(headrace_pc_prefix "\${pcfiledir}/${headrace_pc_up}")
  set(headrace_pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(headrace_pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
# What the archive needs is private where the linker finds the shared library first. liburing and
# libaio are named as libraries: pkg-config would ask a user of the shared one for a package too,
# and libaio has none.
set(headrace_pc_private "-pthread -lstdc++ -lm")
foreach(library IN LISTS headrace_link_libraries)
  string(APPEND headrace_pc_private " -l${library}")
endforeach()
set(headrace_pc_libraries)
if(NOT HEADRACE_SHARED)
  set(headrace_pc_libraries " ${headrace_pc_private}")
endif()
configure_file(cmake/headrace.pc.in headrace.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/headrace.pc
  DESTINATION ${headrace_pc_folder} COMPONENT headrace)
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT headrace)
