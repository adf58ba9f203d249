# SPDX-License-Identifier: Apache-2.0
# Helpers for the room and test folders. Flags are set per target, never globally, so that a project
# that takes Headrace in by add_subdirectory() keeps its own.

function(headrace_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${headrace_SOURCE_DIR}/include> PRIVATE ${headrace_SOURCE_DIR}/src)
  # -ffp-contract=off: results are defined operation by operation (docs/architecture.md,
  # determinism).
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror=return-type -Werror=switch
    -ffp-contract=off
    # gcc 12 sees overlaps and bounds in std::string that are not there (gcc bugs 105329, 105651).
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(HEADRACE_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${HEADRACE_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${HEADRACE_SANITIZE})
  endif()
endfunction()

# headrace_room(NAME swap SOURCES a.cpp b.cpp USES base async [LIBRARIES uring])
function(headrace_room)
  cmake_parse_arguments(arg "" "NAME" "SOURCES;USES;LIBRARIES" ${ARGN})
  add_library(headrace_${arg_NAME} STATIC ${arg_SOURCES})
  headrace_flags(headrace_${arg_NAME})
  # Else Asio's statics are one per process, whatever the library hides (headrace_library.cmake).
  target_compile_options(headrace_${arg_NAME} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
  foreach(room IN LISTS arg_USES)
    target_link_libraries(headrace_${arg_NAME} PUBLIC headrace_${room})
  endforeach()
  target_link_libraries(headrace_${arg_NAME} PRIVATE ${arg_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY HEADRACE_ROOM_TARGETS headrace_${arg_NAME})
  set_property(GLOBAL APPEND PROPERTY HEADRACE_ROOM_LIBRARIES ${arg_LIBRARIES})
endfunction()

# -luring and -laio find the archives, in a folder that has nothing else and is searched first.
function(headrace_link_archives target)
  set(archives ${headrace_BINARY_DIR}/archives)
  file(MAKE_DIRECTORY ${archives})
  foreach(library IN ITEMS liburing libaio)
    string(TOUPPER HEADRACE_${library}_ARCHIVE archive)
    find_library(${archive} NAMES ${library}.a)
    if(${archive})
      file(CREATE_LINK ${${archive}} ${archives}/${library}.a SYMBOLIC)
    endif()
  endforeach()
  target_link_directories(${target} BEFORE PRIVATE ${archives})
endfunction()

option(HEADRACE_JOINED "Cold sources compile as one, and LibTorch's headers are compiled once" OFF)

# Code that runs once per program: options, reports. In half the time to compile; joined (each
# target's sources compile as one) in a quarter, for who changes none of them.
function(headrace_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(HEADRACE_JOINED)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  endif()
endfunction()

# headrace_headers(NAME SOURCE LIBRARY <HEADER>): precompiled once, for who reuses them from NAME.
function(headrace_headers name source library header)
  if(TARGET ${name})
    return()
  endif()
  set(source ${headrace_BINARY_DIR}/${source})
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  headrace_flags(${name})
  headrace_test_optimization(${name})
  target_link_libraries(${name} PRIVATE ${library})
  target_precompile_headers(${name} PRIVATE ${header})
endfunction()

# LibTorch's headers take half a minute to read. Where HEADRACE_JOINED, that is done once for all
# targets that call this (0.7 GB in the build folder). What they compute is in LibTorch: -O1.
function(headrace_torch_headers target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT HEADRACE_JOINED)
    return()
  endif()
  headrace_headers(headrace_torch_headers torch_headers.cpp headrace_libtorch <torch/torch.h>)
  target_precompile_headers(${target} REUSE_FROM headrace_torch_headers)
endfunction()

# headrace_test_program(NAME swap_tests [USES swap async] [LIBRARIES x] [WITH_TORCH])
# Tests of one folder as one program, whose parts are CTest's tests: see headrace_test(IN). Its
# headers are read once, and where HEADRACE_JOINED its sources compile as one.
# WITH_TORCH: LibTorch's headers are precompiled for it in place of gtest's.
function(headrace_test_program)
  cmake_parse_arguments(arg "WITH_TORCH" "NAME" "USES;LIBRARIES" ${ARGN})
  add_executable(${arg_NAME} ${headrace_SOURCE_DIR}/tests/support/run_part.cpp)
  set_source_files_properties(${headrace_SOURCE_DIR}/tests/support/run_part.cpp
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${arg_NAME} PROPERTIES HEADRACE_PARTS "" UNITY_BUILD ${HEADRACE_JOINED}
    UNITY_BUILD_BATCH_SIZE 0)
  headrace_test_flags(${arg_NAME} USES ${arg_USES} LIBRARIES ${arg_LIBRARIES} GTest::gtest)
  headrace_test_precompiled(${arg_NAME} "${arg_WITH_TORCH}")
  file(GENERATE OUTPUT ${headrace_BINARY_DIR}/tests/bin/${arg_NAME}.parts
    CONTENT "$<JOIN:$<TARGET_PROPERTY:${arg_NAME},HEADRACE_PARTS>,\n>\n")
endfunction()

function(headrace_test_flags target)
  cmake_parse_arguments(arg "" "" "USES;LIBRARIES" ${ARGN})
  headrace_flags(${target})
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${headrace_BINARY_DIR}/tests/bin)
  target_include_directories(${target} PRIVATE ${headrace_SOURCE_DIR}/tests)
  headrace_test_optimization(${target})
  foreach(room IN LISTS arg_USES)
    target_link_libraries(${target} PRIVATE headrace_${room})
  endforeach()
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES})
endfunction()

# What is tested is optimised. The tests themselves compile in two thirds of the time, and where
# addresses are watched in half of it. Where threads are, they compile fast and run for long.
function(headrace_test_optimization target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(HEADRACE_SANITIZE MATCHES "address")
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# gtest's headers take longer to read than most tests to compile.
function(headrace_test_precompiled target with_torch)
  if(with_torch)
    headrace_torch_headers(${target})
  else()
    headrace_headers(headrace_test_headers tests/headers.cpp GTest::gtest_main <gtest/gtest.h>)
    target_precompile_headers(${target} REUSE_FROM headrace_test_headers)
  endif()
endfunction()

# headrace_test(NAME extents_test SOURCES extents_test.cpp IN swap_tests
#               [TIMEOUT s] [LABELS slow])
# headrace_test(NAME extents_test SOURCES extents_test.cpp USES swap [LIBRARIES x]
#               [TIMEOUT s] [LABELS slow] [WITH_TORCH])
# One CTest test: the tests in SOURCES, which become part of the program IN, or a program of their
# own (what replaces the allocator, or another library). A program that exits 77 is listed as
# skipped.
function(headrace_test)
  cmake_parse_arguments(arg "WITH_TORCH" "NAME;TIMEOUT;IN" "SOURCES;USES;LIBRARIES;LABELS" ${ARGN})
  if(arg_IN)
    set(names)
    foreach(source IN LISTS arg_SOURCES)
      get_filename_component(path ${source} ABSOLUTE)
      target_sources(${arg_IN} PRIVATE ${path})
      get_filename_component(name ${source} NAME)
      list(APPEND names ${name})
    endforeach()
    list(JOIN names " " names)
    set_property(TARGET ${arg_IN} APPEND PROPERTY HEADRACE_PARTS "${arg_NAME} ${names}")
    add_test(NAME ${arg_NAME} COMMAND ${arg_IN} --part=${arg_NAME})
  else()
    add_executable(${arg_NAME} ${arg_SOURCES})
    set_target_properties(${arg_NAME} PROPERTIES UNITY_BUILD ${HEADRACE_JOINED}
      UNITY_BUILD_BATCH_SIZE 0)
    headrace_test_flags(${arg_NAME} USES ${arg_USES} LIBRARIES ${arg_LIBRARIES} GTest::gtest_main)
    headrace_test_precompiled(${arg_NAME} "${arg_WITH_TORCH}")
    # An option of GoogleTest's, so that a program that was linked with another main() fails.
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} --gtest_color=auto)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(HEADRACE_SANITIZE)  # what watches costs five to twenty times the work
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()
  set_tests_properties(${arg_NAME} PROPERTIES
    TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${arg_LABELS}")
  # The long ones are started first: none is left over when all else is done.
  if(arg_LABELS MATCHES "long|large")
    set_tests_properties(${arg_NAME} PROPERTIES COST 100)
  endif()
endfunction()

# headrace_test_in_full(NAME x_in_full [OF x_test] COMMAND ... [ENVIRONMENT ...]): a test that runs
# elsewhere with some of its cases, here with all of them. Only ./check --all runs these, and leaves
# out x_test, whose cases are all among them.
function(headrace_test_in_full)
  cmake_parse_arguments(arg "" "NAME;OF" "COMMAND;ENVIRONMENT" ${ARGN})
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND})
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT 1500 SKIP_RETURN_CODE 77 LABELS full COST 100
    ENVIRONMENT "${arg_ENVIRONMENT}")
  if(arg_OF)
    set_property(TEST ${arg_OF} APPEND PROPERTY LABELS reduced)
  endif()
endfunction()

# headrace_gpu_test(NAME x_test SOURCES ... USES ...): on a GPU; skipped, with the reason, where
# there is none or this build has no part for it. Sources see tests/device/cuda_under_test.hpp.
function(headrace_gpu_test)
  cmake_parse_arguments(arg "" "NAME" "SOURCES;USES" ${ARGN})
  set(sources $<TARGET_OBJECTS:headrace_cuda_on_gpu>)
  if(headrace_cuda)
    list(APPEND sources ${arg_SOURCES})
  endif()
  headrace_test(NAME ${arg_NAME} SOURCES ${sources} USES ${arg_USES} LABELS gpu)
  headrace_uses_cuda(${arg_NAME})
endfunction()

# headrace_cuda_tests(NAME device_cuda SOURCES ... USES ... [SIMULATED more.cpp]): the same tests
# twice, compiled once: NAME_test on a GPU, and NAME_simulated_test on a simulated one
# (tests/device/simulated_cuda.hpp), which has those of SIMULATED as well.
function(headrace_cuda_tests)
  cmake_parse_arguments(arg "" "NAME" "SOURCES;USES;SIMULATED" ${ARGN})
  set(simulated $<TARGET_OBJECTS:headrace_cuda_on_gpu>)  # says that there is none
  if(headrace_cuda)
    headrace_test_objects(NAME ${arg_NAME}_tests SOURCES ${arg_SOURCES} USES ${arg_USES})
    set(arg_SOURCES $<TARGET_OBJECTS:${arg_NAME}_tests>)
    set(simulated ${arg_SOURCES} ${arg_SIMULATED} $<TARGET_OBJECTS:headrace_simulated_cuda>)
  endif()
  headrace_gpu_test(NAME ${arg_NAME}_test SOURCES ${arg_SOURCES} USES ${arg_USES})
  headrace_test(NAME ${arg_NAME}_simulated_test SOURCES ${simulated} USES ${arg_USES} TIMEOUT 900
    LABELS long)
  headrace_uses_cuda(${arg_NAME}_simulated_test)
endfunction()

# headrace_test_objects(NAME x SOURCES ... USES ... [LIBRARIES ...] [WITH_TORCH]): compiled once for
# several test programs, which take $<TARGET_OBJECTS:x>.
function(headrace_test_objects)
  cmake_parse_arguments(arg "WITH_TORCH" "NAME" "SOURCES;USES;LIBRARIES" ${ARGN})
  add_library(${arg_NAME} OBJECT ${arg_SOURCES})
  headrace_test_flags(${arg_NAME} USES ${arg_USES} LIBRARIES ${arg_LIBRARIES} GTest::gtest)
  # As a program's, or headers that were precompiled for programs do not serve.
  set_target_properties(${arg_NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${arg_NAME} PRIVATE -fPIE)
  headrace_test_precompiled(${arg_NAME} "${arg_WITH_TORCH}")
  headrace_uses_cuda(${arg_NAME})
endfunction()

function(headrace_uses_cuda target)
  if(headrace_cuda)
    target_compile_definitions(${target} PRIVATE HEADRACE_CUDA)
    target_include_directories(${target} SYSTEM PRIVATE ${headrace_cuda_includes})
  endif()
endfunction()
