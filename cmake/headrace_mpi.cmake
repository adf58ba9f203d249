# SPDX-License-Identifier: Apache-2.0
# headrace::mpi: headers only, compiled by its user against the MPI that the user has. Links
# MPI::MPI_CXX where the user's project has found it (find_package(MPI COMPONENTS CXX)); a project
# that compiles with mpicxx needs no such thing.
add_library(headrace_mpi INTERFACE)
add_library(headrace::mpi ALIAS headrace_mpi)
set_target_properties(headrace_mpi PROPERTIES EXPORT_NAME mpi)
target_link_libraries(headrace_mpi INTERFACE headrace Threads::Threads
  $<$<TARGET_EXISTS:MPI::MPI_CXX>:MPI::MPI_CXX>)

# Kinds of MPI, and what each one's mpirun says of its version.
set(headrace_mpi_kinds openmpi mpich)
set(headrace_mpi_says "Open MPI|OpenRTE|open-mpi" "HYDRA")

# Of the MPIs of this machine, for programs of ours: each is compiled against by itself.
# Sets `found`, headrace_mpicxx and headrace_mpirun: the wrappers of this MPI. `says` matches what
# its mpirun says of its version, where only plain names are there.
function(headrace_find_mpi kind says found)
  foreach(suffix IN ITEMS .${kind} "")
    find_program(HEADRACE_MPICXX_${kind}${suffix} mpicxx${suffix})
    find_program(HEADRACE_MPIRUN_${kind}${suffix} mpirun${suffix})
    mark_as_advanced(HEADRACE_MPICXX_${kind}${suffix} HEADRACE_MPIRUN_${kind}${suffix})
    if(HEADRACE_MPICXX_${kind}${suffix} AND HEADRACE_MPIRUN_${kind}${suffix})
      execute_process(COMMAND ${HEADRACE_MPIRUN_${kind}${suffix}} --version
        OUTPUT_VARIABLE version ERROR_QUIET)
      if(version MATCHES "${says}")
        set(headrace_mpicxx ${HEADRACE_MPICXX_${kind}${suffix}} PARENT_SCOPE)
        set(headrace_mpirun ${HEADRACE_MPIRUN_${kind}${suffix}} PARENT_SCOPE)
        set(${found} TRUE PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  set(${found} FALSE PARENT_SCOPE)
endfunction()

# The wrapper's folders and libraries. find_package(MPI) would find one MPI of several.
# library  has Headrace's part of the transport
function(headrace_link_mpi target library)
  execute_process(COMMAND ${headrace_mpicxx} -show OUTPUT_VARIABLE words
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(words UNIX_COMMAND "${words}")
  list(POP_FRONT words)
  set(folders ${words})
  list(FILTER folders INCLUDE REGEX "^-I")
  list(TRANSFORM folders REPLACE "^-I" "")
  list(FILTER words INCLUDE REGEX "^-(L|l|Wl|pthread)")
  target_include_directories(${target} SYSTEM PRIVATE ${folders})
  target_compile_definitions(${target} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(${target} PRIVATE ${library} Threads::Threads ${words})
endfunction()
