#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   bare_consumers.sh PREFIX [TORCH_ROOT]
#
# Builds and runs every consumer of this folder with a Headrace that was installed to PREFIX, on a
# machine that has none of what Headrace itself is built with: g++, cmake, ninja, pkg-config,
# liburing-dev and libaio-dev are all it needs. C99 and C++, Debug and Release, archive and shared
# library, by pkg-config and by CMake; with TORCH_ROOT (the folder that holds torch/) the LibTorch
# one too.
#
# Refuses to count where a header of Boost, nlohmann-json, fmt or CLI11 can be reached.
# Exit codes: 0 all of it ran; 1 something did not; 2 usage; 3 this machine has too much, or too
# little.
set -euo pipefail

stop() { printf 'bare_consumers.sh: %s\n' "$2" >&2; exit "$1"; }
case $# in 1 | 2) ;; *) stop 2 "usage: bare_consumers.sh PREFIX [TORCH_ROOT]" ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$(cd "$1" && pwd) || stop 2 "no folder $1"
torch_root=${2:+$(cd "$2" && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for tool in g++ gcc cmake ninja pkg-config nm; do
  command -v "$tool" >/dev/null || stop 3 "$tool is absent"
done
for header in boost/version.hpp boost/asio.hpp nlohmann/json.hpp fmt/core.h CLI/CLI.hpp; do
  if echo "#include <$header>" | g++ -E -x c++ - >/dev/null 2>&1; then
    stop 3 "<$header> can be reached here, so nothing is shown by a consumer that builds. Run this \
where Boost, nlohmann-json, fmt and CLI11 are not installed."
  fi
done
package=$(find "$prefix" -name headrace.pc -print -quit)
[ -n "$package" ] || stop 2 "$prefix has no headrace.pc: install Headrace there first"
export PKG_CONFIG_PATH=${package%/*}
version=$(pkg-config --modversion headrace)
shared=$(find "$prefix" -name 'libheadrace.so' -print -quit)

count=0
# runs TEXT COMMAND...: the command succeeds and prints the text.
runs() {
  local text=$1 output
  shift
  output=$("$@" 2>&1) || { printf '%s\n' "$output"; stop 1 "failed: $*"; }
  grep -qF -- "$text" <<<"$output" ||
    { printf '%s\n' "$output"; stop 1 "no '$text' from: $*"; }
}
quietly() {
  "$@" >"$work/log" 2>&1 || { cat "$work/log"; stop 1 "failed: $*"; }
}
done_with() {
  count=$((count + 1))
  printf 'ok %2d  %s\n' "$count" "$1"
}

# by_pkg_config LIBRARY COMPILER FLAGS SOURCE
by_pkg_config() {
  local flags
  if [ "$1" = archive ]; then
    flags=$(pkg-config --cflags headrace; pkg-config --variable=archive headrace)
  else
    flags="$(pkg-config --cflags --libs headrace) -Wl,-rpath,${shared%/*}"
  fi
  # shellcheck disable=SC2086  # flags are words
  quietly "$2" $3 "$here/$4" $flags -o "$work/program"
  runs "headrace $version: 4 parameters planned" "$work/program"
  done_with "pkg-config, $1: $4 $3"
}

# by_cmake FOLDER TYPE TEXT PROGRAM... [-D...]: CMake's arguments are those with a dash.
by_cmake() {
  local folder=$1 type=$2 text=$3 build programs=() given=() program
  shift 3
  for program; do
    case $program in -*) given+=("$program") ;; *) programs+=("$program") ;; esac
  done
  build=$(mktemp -d -p "$work")
  quietly cmake -G Ninja -S "$here/$folder" -B "$build" -D CMAKE_BUILD_TYPE="$type" \
    -D CMAKE_PREFIX_PATH="$prefix" -D WANTED_VERSION="$version" "${given[@]}"
  quietly cmake --build "$build"
  mkdir -p "$work/drive"
  for program in "${programs[@]}"; do
    runs "$text" "$build/$program" "$work/drive"
    done_with "CMake, $type: $folder/$program"
  done
}

libraries=(archive)
shared_program() { [ -z "$shared" ] || printf '%s' "$1"; }
if [ -n "$shared" ]; then libraries+=(shared); fi
for library in "${libraries[@]}"; do
  by_pkg_config "$library" gcc -std=c99 few_lines.c
  by_pkg_config "$library" g++ "-std=c++20 -O2 -DNDEBUG" few_lines.cpp
  by_pkg_config "$library" g++ "-std=c++20 -O0 -g" few_lines.cpp
  by_cmake consumer_c Release "headrace $version: 4 parameters planned" consumer_c \
    "-DWANTED=$library"
done
for type in Release Debug; do
  # shellcheck disable=SC2046  # nothing where there is no shared library
  by_cmake consumer "$type" "headrace $version: the weight went from 1 to 0.9" \
    consumer $(shared_program consumer_shared)
  if [ -n "$torch_root" ]; then
    # shellcheck disable=SC2046
    by_cmake consumer_torch "$type" "the same bits on NVMe" -DTORCH_ROOT="$torch_root" \
      consumer_torch $(shared_program consumer_torch_shared)
  fi
done
if [ -n "$shared" ]; then
  quietly cmake -D NM=nm -D FLAGS=-D -D LIBRARY="$shared" -P "$here/symbols.cmake"
  done_with "nm -D shows Headrace's own symbols only"
fi
printf '%d consumers of headrace %s ran\n' "$count" "$version"
