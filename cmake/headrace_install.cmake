# SPDX-License-Identifier: Apache-2.0
# cmake --install: the library, its public headers and the package that find_package(headrace)
# reads.
# The component `headrace` is all of it; a project that takes Headrace in may install just that.
include(CMakePackageConfigHelpers)

set(headrace_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
install(TARGETS headrace headrace_torch EXPORT headraceTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headrace)
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
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT headrace)
