#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command that may use at most MIB of memory, with the pages of files that it has in memory:
# the kernel drops those first, and ends the command where that is not enough. Needs root, and the
# memory controller of control groups (version 1 or 2). The limit holds for this command alone.
#
#   tools/bench/memory_cap.sh 1024 python3 tools/bench/capped_model.py train FOLDER --nvme /mnt/nvme
set -euo pipefail
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: $0 MIB COMMAND...; nothing was run" >&2
  exit 2
fi
limit=$(($1 << 20))
shift
if [ -d /sys/fs/cgroup/memory ]; then
  group=/sys/fs/cgroup/memory/headrace-memory-cap.$$
  mkdir "$group"
  echo "$limit" > "$group/memory.limit_in_bytes"
  swap=$group/memory.memsw.limit_in_bytes  # of both together, if the kernel counts it
  if [ -e "$swap" ]; then echo "$limit" > "$swap"; fi
else
  group=/sys/fs/cgroup/headrace-memory-cap.$$
  mkdir "$group"
  echo "$limit" > "$group/memory.max"
  echo 0 > "$group/memory.swap.max"
fi
trap 'rmdir "$group"' EXIT
bash -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@"
