# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by quickstart and check: says what happens, one line per step, and names the step that
# failed.
#
#   log_folder=build/logs
#   step "configure release" cmake --preset release
#
# A step's output goes to its own log; where the step fails, the end of that log is shown. Where no
# terminal shows which step runs, a line every minute does, with what Ninja has built so far.

log_folder=${log_folder:-build/logs}
current_step=""

say() { printf '%s\n' "$@" >&2; }  # one line per argument

# refuse CODE LINE...: ends the program before anything was started.
refuse() {
  local code=$1
  shift
  printf '%s\n' "$@" >&2
  exit "$code"
}

log_of() { printf '%s/%s.log' "$log_folder" "$(tr -cs 'a-z0-9\n' '-' <<<"${1,,}")"; }

# Its input is open until the step, or this program, has ended.
tell_progress() {
  local name=$1 log=$2 started=$SECONDS status=0 built
  while true; do
    read -r -t 60 || status=$?
    if [ "$status" -le 128 ]; then return 0; fi  # not the time, but the end
    built=$(grep -oE '^\[[0-9]+/[0-9]+\]' "$log" | tail -n 1 || true)
    printf '%5d s  ... %s%s\n' $((SECONDS - started)) "$name" "${built:+ $built}" >&2
  done
}

# try NAME COMMAND...: runs one step and returns its exit status. `set -e` does not hold inside: a
# function that is a step says `|| return` itself.
try() {
  local name=$1 log progress started=$SECONDS status=0
  shift
  mkdir -p "$log_folder"
  log=$(log_of "$name")
  current_step=$name
  if [ -t 2 ]; then
    printf '       ... %s\r' "$name" >&2
    exec {progress}>/dev/null
  else
    exec {progress}> >(tell_progress "$name" "$log")
  fi
  "$@" >"$log" 2>&1 </dev/null {progress}>&- || status=$?
  exec {progress}>&-
  if [ -t 2 ]; then printf '\033[K' >&2; fi
  if [ "$status" -eq 0 ]; then
    printf '%5d s  %s\n' $((SECONDS - started)) "$name" >&2
  else
    printf '%5d s  %s: FAILED (exit %d)\n' $((SECONDS - started)) "$name" "$status" >&2
  fi
  current_step=""
  return "$status"
}

show_failure() {
  local name=$1 log
  log=$(log_of "$name")
  say "" "The step '$name' failed. The end of $log:"
  tail -n "${2:-25}" "$log" | sed 's/^/  | /' >&2
}

# step NAME COMMAND...: as try, but a failure ends the program.
step() {
  local status=0
  try "$@" || status=$?
  if [ "$status" -ne 0 ]; then
    show_failure "$1"
    exit "$status"
  fi
}

# For what no step covers: names the line, so that no failure is silent.
on_error() {
  local status=$? line=$1 command=$2
  say "${0##*/}: line $line failed (exit $status): $command"
  exit "$status"
}
trap 'on_error $LINENO "$BASH_COMMAND"' ERR
on_signal() {
  trap - "$1"
  if [ -n "$current_step" ]; then say "" "${0##*/}: ended by SIG$1 during '$current_step'"; fi
  exit "$2"
}
trap 'on_signal INT 130' INT
trap 'on_signal TERM 143' TERM
