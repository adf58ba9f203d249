# SPDX-License-Identifier: Apache-2.0
# headrace::mpi: headers only, compiled by its user against the MPI that the user has. Links
# MPI::MPI_CXX where the user's project has found it (find_package(MPI COMPONENTS CXX)); a project
# that compiles with mpicxx needs no such thing.
add_library(headrace_mpi INTERFACE)
add_library(headrace::mpi ALIAS headrace_mpi)
set_target_properties(headrace_mpi PROPERTIES EXPORT_NAME mpi)
target_link_libraries(headrace_mpi INTERFACE headrace Threads::Threads
  $<$<TARGET_EXISTS:MPI::MPI_CXX>:MPI::MPI_CXX>)
