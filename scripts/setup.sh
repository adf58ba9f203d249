# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by quickstart and check after steps.sh: what Headrace is built with, and how it gets here.
#
#   plan_setup                  finds out what is missing; ends with exit 3 where it cannot be
# installed
#   describe_setup              says what will be installed and fetched, before anything is
#   run_setup                   does so; sets torch_root, and cuda_root with_cuda=toolkit
#
# Before plan_setup:
#   setup_for=tools    only what the program `headrace` is built with, no LibTorch
#   with_cuda=toolkit  a CUDA toolkit too, which compiles kernels and needs no GPU
#   with_cuda=gpu      that, and LibTorch with the packages that its GPU part needs
#   with_plots=1       what scripts/report draws pages with, which its test needs
#   with_python=1      numpy and what makes the Python wheel; sets python_path to their folder
#   with_mpi=1         Open MPI and MPICH, where this system has them: their tests are skipped else
#   llvm_tools="clang-format clang-tidy"   these, in the versions of cmake/*_wheels.txt
#
# What is there is decided by looking at the tools and headers themselves, so that any system will
# do; only what is missing is asked of apt, and whether this system is served is decided by the
# versions that apt has.

# need | oldest version | Debian packages, the first that is new enough is taken
needs='
g++             12    g++
cmake           3.25  cmake
ninja           1.10  ninja-build
pkg-config      0.29  pkgconf pkg-config
boost           1.81  libboost-dev libboost1.81-dev
liburing        2.3   liburing-dev
libaio          0.3.107 libaio-dev
nlohmann-json   3.11  nlohmann-json3-dev
CLI11           2.1   libcli11-dev
fmt             9.0   libfmt-dev
xxhash          0.8   libxxhash-dev
googletest      1.12  libgtest-dev
google-benchmark 1.6  libbenchmark-dev
python3         3.9   python3
pip             21    python3-pip
matplotlib      3.6   python3-matplotlib
openmpi         4.0   libopenmpi-dev
mpich           4.0   libmpich-dev
'
spared=" openmpi mpich "  # where they cannot be installed, ./check skips their tests
setup_for=${setup_for:-all}
tools_needs=" g++ cmake ninja boost liburing libaio nlohmann-json CLI11 fmt xxhash "
torch_wheels=cmake/torch_wheels.txt
torch_python=3.11  # the wheels' tag; C++ needs no matching interpreter
torch_fetch_mb=545 torch_disk_mb=1250
with_cuda=${with_cuda:-} with_gpu=${with_gpu:-} with_plots=${with_plots:-} with_mpi=${with_mpi:-}
with_python=${with_python:-} python_path=""
python_wheels=cmake/python_wheels.txt python_fetch_mb=22 python_disk_mb=105
cuda_wheels=cmake/cuda_wheels.txt
cuda_oldest=12.8  # the first with code for compute capability 12.0
cuda_fetch_mb=102 cuda_disk_mb=270
torch_gpu_fetch_mb=2720 torch_gpu_disk_mb=4800

declare -A found=()    # need -> version that is there
missing=()             # "need oldest found packages..."
packages=()            # to install
torch_root="" torch_from=""
cuda_root="" cuda_from=""
llvm_tools=${llvm_tools:-}
declare -A llvm_tool=()  # name -> program
declare -A llvm_fetch_mb=([clang-format]=2 [clang-tidy]=38)
declare -A llvm_disk_mb=([clang-format]=3 [clang-tidy]=120)

compiler() { printf '%s' "${CXX:-g++}"; }
first_version() { grep -oE '[0-9]+(\.[0-9]+)+|[0-9]+' | head -n 1; }

# One run of the preprocessor tells every header's version.
probe_headers() {
  "$(compiler)" -x c++ -std=c++20 -E -P - 2>/dev/null <<'CODE' | tr -d '" ' | tr _ . |
#if __has_include(<boost/asio/awaitable.hpp>)
#include <boost/version.hpp>
probe|boost|BOOST_LIB_VERSION
#endif
#if __has_include(<liburing/io_uring_version.h>)
#include <liburing/io_uring_version.h>
probe|liburing|IO_URING_VERSION_MAJOR.IO_URING_VERSION_MINOR
#elif __has_include(<liburing.h>)
#include <liburing.h>
#endif
#if __has_include(<libaio.h>)
#include <libaio.h>
#endif
#if __has_include(<nlohmann/detail/abi_macros.hpp>)
#include <nlohmann/detail/abi_macros.hpp>
probe|nlohmann-json|NLOHMANN_JSON_VERSION_MAJOR.NLOHMANN_JSON_VERSION_MINOR
#endif
#if __has_include(<CLI/Version.hpp>)
#include <CLI/Version.hpp>
probe|CLI11|CLI11_VERSION_MAJOR.CLI11_VERSION_MINOR
#endif
#if __has_include(<fmt/format.h>)
#include <fmt/core.h>
probe|fmt|FMT_VERSION
#endif
#if __has_include(<xxhash.h>)
#include <xxhash.h>
probe|xxhash|XXH_VERSION_MAJOR.XXH_VERSION_MINOR
#endif
#if __has_include(<gtest/gtest-assertion-result.h>)
probe|googletest|1.12
#endif
#if __has_include(<benchmark/benchmark.h>)
probe|google-benchmark|1.6
#endif
CODE
    awk -F'|' '/^probe\|fmt/ { print "fmt " int($3 / 10000) "." int($3 / 100) % 100; next }
               /^probe/ { print $2, $3 }
               /io\.uring\.prep\.send\.zc\(/ && !uring++ { print "liburing 2.3" }
               # libaio.h names no version: this came with 0.3.107.
               /io\.set\.eventfd\(/ && !aio++ { print "libaio 0.3.107" }'
}

probe_tools() {
  local name version python
  if command -v "$(compiler)" >/dev/null; then
    found[g++]=$("$(compiler)" -dumpfullversion 2>/dev/null || "$(compiler)" -dumpversion)
    while read -r name version; do found[$name]=$version; done < <(probe_headers)
  fi
  for name in cmake ninja pkg-config python3; do
    if command -v "$name" >/dev/null; then
      version=$("$name" --version 2>/dev/null | first_version || true)
      if [ -n "$version" ]; then found[$name]=$version; fi
    fi
  done
  for name in openmpi mpich; do
    if [ -n "$with_mpi" ] && command -v "mpicxx.$name" >/dev/null; then
      found[$name]=$("mpirun.$name" --version 2>/dev/null | first_version || true)
    fi
  done
  local pip_version='import importlib.metadata as m; print(m.version("pip"))'
  local plots_version='import matplotlib; print(matplotlib.__version__)'
  for python in python3 /usr/bin/python3; do
    if [ -n "$with_plots" ] && [ -z "${found[matplotlib]:-}" ] && command -v "$python" >/dev/null
    then
      found[matplotlib]=$("$python" -c "$plots_version" 2>/dev/null || true)
    fi
    if [ -z "${found[pip]:-}" ] && command -v "$python" >/dev/null; then
      pip_python=$python
      found[pip]=$("$python" -c "$pip_version" 2>/dev/null || true)
    fi
  done
}

is_needed() {
  if [ "$setup_for" = tools ]; then
    case "$tools_needs${with_python:+python3 pip }" in *" $1 "*) ;; *) return 1 ;; esac
  fi
  case $1 in
    matplotlib) [ -n "$with_plots" ]; return ;;
    openmpi | mpich) [ -n "$with_mpi" ]; return ;;
  esac
  [ "$1" != pip ] || [ -z "$torch_root" ] || [ -n "$with_python" ] ||
    { [ -n "$with_cuda" ] && [ -z "$cuda_root" ]; } ||
    [ -n "$(missing_llvm_tools)" ]
}

newest_is() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$1" ]; }  # $1 >= $2

find_missing() {
  local need oldest names
  missing=()
  found=()
  probe_tools
  while read -r need oldest names; do
    if [ -z "$need" ] || ! is_needed "$need"; then continue; fi
    if [ -z "${found[$need]:-}" ] || ! newest_is "${found[$need]}" "$oldest"; then
      missing+=("$need $oldest ${found[$need]:--} $names")
    fi
  done <<<"$needs"
}

# ---- LibTorch: a torch of the Python in use, else the one in the cache, else the wheels ----

cache_folder() {
  printf '%s/headrace' "${HEADRACE_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:?}/.cache}}"
}
torch_version() { sed -n 's/^torch==//p' "$torch_wheels"; }

torch_folder() { printf 'torch-%s%s' "$(torch_version)" "${with_gpu:+-gpu}"; }

find_torch() {
  local cached
  cached=$(cache_folder)/$(torch_folder)
  if torch_root=$(python3 scripts/find_torch.py ${with_gpu:+--gpu} 2>/dev/null); then
    torch_from="the Python in use"
  elif [ -d "$cached/torch" ]; then
    torch_root=$cached torch_from="the cache"
  else
    torch_root="" torch_from=""
  fi
}

# fetch_wheels NAME WHEELS PROBE...: into the cache folder NAME, once PROBE, given the folder, says
# that it is whole.
fetch_wheels() {
  local target part wheels=$2 wheel_deps=${wheel_deps---no-deps}
  target=$(cache_folder)/$1
  shift 2
  mkdir -p "$(cache_folder)" && exec 9>"$(cache_folder)/fetch.lock" || return
  flock 9 || return # a second clone waits here, and then finds what the first one fetched
  if [ ! -d "$target" ]; then
    rm -rf "$(cache_folder)"/*.part
    part=$target.part
    mkdir -p "$part/tmp" || return
    # pip unpacks in TMPDIR first: /tmp may be memory.
    TMPDIR=$part/tmp PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_DISABLE_PIP_VERSION_CHECK=1 \
      "${pip_python:-python3}" -m pip install --no-cache-dir --progress-bar off $wheel_deps \
      --no-compile --only-binary=:all: --implementation cp --python-version "$torch_python" \
      --target "$part" -r "$wheels" || return
    rm -rf "$part/tmp"
    "$@" "$part" && mv -T "$part" "$target" || return
  fi
  exec 9>&-
}
fetch_torch() {
  if [ -n "$with_gpu" ]; then
    wheel_deps="" fetch_wheels "$(torch_folder)" "$torch_wheels" python3 scripts/find_torch.py --gpu
  else
    fetch_wheels "$(torch_folder)" "$torch_wheels" python3 scripts/find_torch.py
  fi
}

# ---- packages for python3, of its version ----

python_version() {
  python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}
python_folder() {
  printf 'python-%s-%s' "$(python_version)" "$(cksum <$python_wheels | cut -d' ' -f1)"
}
find_python() {
  local cached
  cached=$(cache_folder)/$(python_folder)
  if [ -d "$cached" ]; then python_path=$cached; fi
}
python_is_whole() { PYTHONPATH=$1 python3 -c 'import numpy, scikit_build_core, auditwheel'; }
fetch_python() {
  torch_python=$(python_version) fetch_wheels "$(python_folder)" "$python_wheels" python_is_whole
}

# ---- a CUDA toolkit: this machine's if it is new enough, else the cache's, else the wheels ----

cuda_version() { sed -n 's/^nvidia-cuda-nvcc==//p' "$cuda_wheels"; }
nvcc_version() { "$1" --version 2>/dev/null | sed -nE 's/.*release ([0-9.]+).*/\1/p'; }

find_cuda() {
  local nvcc version cached
  for nvcc in ${CUDA_HOME:+"$CUDA_HOME/bin/nvcc"} "$(command -v nvcc || true)" \
    /usr/local/cuda/bin/nvcc; do
    if [ ! -x "$nvcc" ]; then continue; fi
    version=$(nvcc_version "$nvcc")
    if [ -n "$version" ] && newest_is "$version" "$cuda_oldest"; then
      cuda_root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
      cuda_from="this machine, CUDA $version"
      return
    fi
  done
  cached=$(cache_folder)/cuda-$(cuda_version)/nvidia/cu13
  if [ -x "$cached/bin/nvcc" ]; then cuda_root=$cached cuda_from="the cache"; fi
}

toolkit_is_whole() { [ -n "$(nvcc_version "$1/nvidia/cu13/bin/nvcc")" ]; }
fetch_cuda() { fetch_wheels "cuda-$(cuda_version)" "$cuda_wheels" toolkit_is_whole; }

# ---- clang-format, clang-tidy: this machine's if its major version is ours, else the wheel's ----

llvm_wheels() { printf 'cmake/%s_wheels.txt' "${1//-/_}"; }
llvm_version() { sed -n "s/^$1==//p" "$(llvm_wheels "$1")"; }
llvm_major() { "$1" --version 2>/dev/null | first_version | cut -d. -f1; }

find_llvm_tools() {
  local name version program
  for name in $llvm_tools; do
    version=$(llvm_version "$name")
    for program in "$name" "$name-${version%%.*}" \
      "$(cache_folder)/$name-$version/${name/-/_}/data/bin/$name"; do
      if [ "$(llvm_major "$program" || true)" = "${version%%.*}" ]; then
        llvm_tool[$name]=$program
        break
      fi
    done
  done
}

missing_llvm_tools() {
  local name
  for name in $llvm_tools; do if [ -z "${llvm_tool[$name]:-}" ]; then printf '%s ' "$name"; fi; done
}

llvm_tool_is_whole() { [ -n "$(llvm_major "$2/${1/-/_}/data/bin/$1")" ]; }
fetch_llvm_tool() {
  fetch_wheels "$1-$(llvm_version "$1")" "$(llvm_wheels "$1")" llvm_tool_is_whole "$1"
}

# ---- apt ----

have_root() {
  if [ "$(id -u)" -eq 0 ]; then return 0; fi
  command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }
}
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }
apt() {
  as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

# The version that apt would install, without epoch and Debian revision; empty: none.
candidate() {
  LC_ALL=C apt-cache policy "$1" 2>/dev/null |
    sed -nE 's/^ *Candidate: *(\(none\))?([0-9]+:)?([^-+~]*).*$/\3/p' | head -n 1
}

# Fills `packages`, and `unserved` with what apt has not, or not new enough.
choose_packages() {
  local entry need oldest have names name version best
  packages=()
  unserved=()
  for entry in "${missing[@]}"; do
    read -r need oldest have names <<<"$entry"
    best=""
    for name in $names; do
      version=$(candidate "$name")
      if [ -n "$version" ] && newest_is "$version" "$oldest"; then
        packages+=("$name")
        best=$name
        break
      fi
    done
    if [ -z "$best" ]; then unserved+=("$need"); fi
  done
}

# Leaves out what is missing, cannot be installed, and is not needed to build.
spare_unserved() {
  local entry kept=()
  for entry in "${missing[@]}"; do
    case "$spared" in
      *" ${entry%% *} "*)
        if ! have_root || [ -z "$(candidate "${entry##* }")" ]; then continue; fi ;;
    esac
    kept+=("$entry")
  done
  missing=("${kept[@]}")
  if [ ${#missing[@]} -gt 0 ]; then choose_packages; else packages=() unserved=(); fi
}

list_missing() {
  local entry need oldest have names
  printf '  %-18s %-8s %-10s %s\n' needed at-least here "Debian package" >&2
  for entry in "${missing[@]}"; do
    read -r need oldest have names <<<"$entry"
    printf '  %-18s %-8s %-10s %s\n' "$need" "$oldest" "$have" "${names// / or }" >&2
  done
}

install_line() {
  printf 'apt-get update && apt-get install -y --no-install-recommends %s' "${packages[*]}"
}

stop_with_list() {
  say "$1" ""
  list_missing
  say "" "$2"
  exit 3
}

plan_packages() {
  find_missing
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if ! command -v apt-get >/dev/null; then
    spare_unserved
    if [ ${#missing[@]} -eq 0 ]; then return; fi
    stop_with_list "This system lacks packages that Headrace needs, and it has no apt:" \
      "Install them with this system's package manager, then run ${0##*/} again."
  fi
  choose_packages
  if [ ${#unserved[@]} -gt 0 ] && have_root; then
    step "update the package lists" apt update
    choose_packages
  fi
  spare_unserved
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ ${#unserved[@]} -gt 0 ] && [ -z "$(candidate g++)" ]; then
    stop_with_list "apt's package lists are empty, so what this system has is unknown:" \
      "Run as root:  apt-get update     and then ${0##*/} again."
  fi
  if [ ${#unserved[@]} -gt 0 ]; then
    stop_with_list "This system has no package, or none new enough, for: ${unserved[*]}. Missing:" \
      "Debian 12, Ubuntu 24.04 and newer have all of them; install them by hand here."
  fi
  if ! have_root; then
    stop_with_list "Packages are missing, and this is neither root nor a user with sudo:" \
      "Run as root:  $(install_line)"$'\n'"and then ${0##*/} again, as this user."
  fi
}

# "DOWNLOAD_MB DISK_MB COUNT" of what apt would fetch.
apt_sizes() {
  local uris names
  uris=$(LC_ALL=C apt-get install -qq --no-install-recommends --print-uris "${packages[@]}" \
    2>/dev/null || true)
  names=$(awk '{ sub(/_.*/, "", $2); print $2 }' <<<"$uris")
  # shellcheck disable=SC2086
  LC_ALL=C apt-cache show --no-all-versions $names 2>/dev/null |
    awk -v mb="$(awk '{ n += $3 } END { print int(n / 1e6) + 1 }' <<<"$uris")" \
      -v count="$(grep -c . <<<"$uris")" \
      '/^Installed-Size:/ { kb += $2 } END { print mb, int(kb / 1000) + 1, count }'
}

plan_setup() {
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    refuse 3 "Headrace is built for Linux on x86-64; this is $(uname -sm)."
  fi
  if [ "$with_cuda" = gpu ]; then with_gpu=1; fi
  if [ "$setup_for" = all ]; then find_torch; fi
  if [ -n "$with_cuda" ]; then find_cuda; fi
  if [ -n "$with_python" ]; then find_python; fi
  find_llvm_tools
  plan_packages
}

describe_setup() {
  local mb disk count fetch name
  if [ ${#packages[@]} -gt 0 ]; then
    read -r mb disk count < <(apt_sizes)
    say "  install  ${packages[*]}" \
      "           by apt: $count packages in all, $mb MB to fetch, $disk MB on disk"
  else
    say "  install  nothing, all packages are here"
  fi
  if [ "$setup_for" = tools ]; then
    :
  elif [ -n "$torch_root" ]; then
    say "  LibTorch from $torch_from: $torch_root"
  else
    fetch=$torch_fetch_mb disk=$torch_disk_mb
    if [ -n "$with_gpu" ]; then fetch=$torch_gpu_fetch_mb disk=$torch_gpu_disk_mb; fi
    say "  fetch    LibTorch $(torch_version) as wheels, $fetch MB, by pip" \
      "  write    $(cache_folder)/$(torch_folder): $disk MB, for every clone"
  fi
  for name in $(missing_llvm_tools); do
    say "  fetch    $name $(llvm_version "$name") as a wheel, ${llvm_fetch_mb[$name]} MB, by pip" \
      "  write    $(cache_folder)/$name-$(llvm_version "$name"): ${llvm_disk_mb[$name]} MB"
  done
  if [ -n "$with_python" ] && [ -z "$python_path" ]; then
    say "  fetch    numpy and what makes the Python wheel, $python_fetch_mb MB, by pip" \
      "  write    $(cache_folder)/python-VERSION: $python_disk_mb MB, for every clone"
  fi
  if [ -z "$with_cuda" ]; then return; fi
  if [ -n "$cuda_root" ]; then
    say "  toolkit  of CUDA from $cuda_from: $cuda_root"
  else
    say "  fetch    a CUDA toolkit $(cuda_version) as wheels, $cuda_fetch_mb MB, by pip" \
      "  write    $(cache_folder)/cuda-$(cuda_version): $cuda_disk_mb MB, for every clone"
  fi
}

run_setup() {
  export CXX
  CXX=$(compiler)
  if [ ${#packages[@]} -gt 0 ]; then
    step "update the package lists" apt update
    # --no-remove: another package that is in the way is named, never taken away.
    step "install packages" apt install -y --no-install-recommends --no-remove "${packages[@]}"
    find_missing
    if [ ${#missing[@]} -gt 0 ]; then
      stop_with_list "The packages are installed, and yet these are not found by $CXX and PATH:" \
        "Another compiler or Python may come first in PATH or CXX."
    fi
  fi
  if [ "$setup_for" = all ] && [ -z "$torch_root" ]; then
    step "fetch LibTorch" fetch_torch
    find_torch
  fi
  if [ -n "$with_cuda" ] && [ -z "$cuda_root" ]; then
    step "fetch a CUDA toolkit" fetch_cuda
    find_cuda
  fi
  if [ -n "$with_python" ]; then
    find_python  # python3 may have come just now
    # Without them, the tests that need them are skipped.
    if [ -z "$python_path" ]; then try "fetch Python packages" fetch_python || true; fi
    find_python
  fi
  local name
  for name in $(missing_llvm_tools); do
    # Nothing is built with these: without them, ./check skips what they check.
    try "fetch $name" fetch_llvm_tool "$name" || true
  done
  find_llvm_tools
}
