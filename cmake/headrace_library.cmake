# SPDX-License-Identifier: Apache-2.0
# The one library that users link: all rooms in one archive.
get_property(headrace_room_targets GLOBAL PROPERTY HEADRACE_ROOM_TARGETS)
get_property(headrace_room_libraries GLOBAL PROPERTY HEADRACE_ROOM_LIBRARIES)
list(REMOVE_DUPLICATES headrace_room_libraries)
set(headrace_objects)
foreach(target IN LISTS headrace_room_targets)
  list(APPEND headrace_objects $<TARGET_OBJECTS:${target}>)
endforeach()

# What a program that links the archive has to link as well. Header-only libraries end in the rooms'
# objects: a user of the installed library does not need them.
set(headrace_link_libraries)
foreach(library IN LISTS headrace_room_libraries)
  if(NOT TARGET ${library})
    list(APPEND headrace_link_libraries ${library})
  endif()
endforeach()

add_library(headrace STATIC ${headrace_objects})
add_library(headrace::headrace ALIAS headrace)
set_target_properties(headrace PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(headrace PUBLIC cxx_std_20)
target_include_directories(headrace PUBLIC
  $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
find_package(Threads REQUIRED)
target_link_libraries(headrace PRIVATE ${headrace_link_libraries} Threads::Threads)
if(HEADRACE_SANITIZE)
  target_link_options(headrace PUBLIC -fsanitize=${HEADRACE_SANITIZE})
endif()
