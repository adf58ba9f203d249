# SPDX-License-Identifier: Apache-2.0
# The library that users link, of all rooms: an archive (headrace::headrace), and with
# HEADRACE_SHARED also a shared library (headrace::shared). Both show public_symbols.txt and nothing
# else, so that a program may hold another Asio or JSON library of its own.
get_property(headrace_room_targets GLOBAL PROPERTY HEADRACE_ROOM_TARGETS)
get_property(headrace_room_libraries GLOBAL PROPERTY HEADRACE_ROOM_LIBRARIES)
list(REMOVE_DUPLICATES headrace_room_libraries)
set(headrace_objects)
foreach(target IN LISTS headrace_room_targets)
  list(APPEND headrace_objects $<TARGET_OBJECTS:${target}>)
endforeach()
# Objects that no target compiles, and archives whose members become part of the library: CUDA's
# runtime, so that who links the library needs no toolkit.
get_property(headrace_joined_objects GLOBAL PROPERTY HEADRACE_JOINED_OBJECTS)
get_property(headrace_joined_archives GLOBAL PROPERTY HEADRACE_JOINED_ARCHIVES)
set_source_files_properties(${headrace_joined_objects} PROPERTIES
  EXTERNAL_OBJECT ON GENERATED ON)
list(APPEND headrace_objects ${headrace_joined_objects})

# What a program that links the archive has to link as well. Header-only libraries end in the rooms'
# objects: a user of the installed library does not need them.
set(headrace_link_libraries)
foreach(library IN LISTS headrace_room_libraries)
  if(NOT TARGET ${library})
    list(APPEND headrace_link_libraries ${library})
  endif()
endforeach()
find_package(Threads REQUIRED)

function(headrace_public_library target)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${headrace_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PRIVATE ${headrace_link_libraries} Threads::Threads)
  if(HEADRACE_SANITIZE)
    target_link_options(${target} PUBLIC -fsanitize=${HEADRACE_SANITIZE})
  endif()
endfunction()

# One object of all, in which only the public symbols are global. Groups are dissolved first: a
# linker would drop one whose symbols were made local. GNU ld knows how; another linker, or a
# sanitizer build, gets the objects as they are.
set(headrace_symbols ${CMAKE_CURRENT_SOURCE_DIR}/cmake/public_symbols.txt)
execute_process(COMMAND ${CMAKE_LINKER} --help OUTPUT_VARIABLE headrace_linker_help ERROR_QUIET)
if(HEADRACE_SANITIZE OR NOT CMAKE_OBJCOPY OR
    NOT headrace_linker_help MATCHES "force-group-allocation")
  message(STATUS "headrace: the archive shows its internal symbols too")
  add_library(headrace STATIC ${headrace_objects})
  target_link_libraries(headrace PRIVATE ${headrace_joined_archives})
else()
  set(headrace_joined ${CMAKE_CURRENT_BINARY_DIR}/headrace.o)
  add_custom_command(OUTPUT ${headrace_joined}
    COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o ${headrace_joined} ${headrace_objects}
      ${headrace_joined_archives}
    COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbols=${headrace_symbols} ${headrace_joined}
    DEPENDS ${headrace_room_targets} ${headrace_objects} ${headrace_symbols}
    COMMAND_EXPAND_LISTS VERBATIM COMMENT "Joining the rooms")
  set_source_files_properties(${headrace_joined} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(headrace STATIC ${headrace_joined})
endif()
add_library(headrace::headrace ALIAS headrace)
headrace_public_library(headrace)

if(HEADRACE_SHARED)
  file(STRINGS ${headrace_symbols} headrace_patterns)
  list(JOIN headrace_patterns ";\n    " headrace_patterns)
  # While the major version is 0 each minor one is a new interface.
  set(headrace_interface ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set(headrace_map ${CMAKE_CURRENT_BINARY_DIR}/headrace.map)
  file(CONFIGURE OUTPUT ${headrace_map} @ONLY CONTENT
    "HEADRACE_@headrace_interface@ {\n  global:\n    @headrace_patterns@;\n  local:\n    *;\n};\n")
  add_library(headrace_shared SHARED ${headrace_objects})
  add_library(headrace::shared ALIAS headrace_shared)
  headrace_public_library(headrace_shared)
  set_target_properties(headrace_shared PROPERTIES OUTPUT_NAME headrace EXPORT_NAME shared
    VERSION ${PROJECT_VERSION} SOVERSION ${headrace_interface} LINK_DEPENDS ${headrace_map})
  target_link_libraries(headrace_shared PRIVATE ${headrace_joined_archives})
  target_link_options(headrace_shared PRIVATE
    LINKER:--version-script=${headrace_map} LINKER:-Bsymbolic LINKER:--no-undefined)
endif()
