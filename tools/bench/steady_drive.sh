#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command while the drive under DIR reads and writes at most MBYTES megabytes a second each,
# so that a drive whose own rate swings can be measured on. Needs root, and the block I/O controller
# of control groups (version 1 or 2). The limit holds for this command alone.
#
#   tools/bench/steady_drive.sh 1000 /mnt/nvme tools/bench/durable_bench.py --nvme /mnt/nvme
set -euo pipefail
if [ $# -lt 3 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]] || ! [ -d "$2" ]; then
  echo "usage: $0 MBYTES DIR COMMAND...; nothing was run" >&2
  exit 2
fi
rate=${1}000000
device=$(findmnt --noheadings --output MAJ:MIN --target "$2" | tr -d ' ')
parent=$(readlink -f "/sys/dev/block/$device/..")
if [ -e "/sys/dev/block/$device/partition" ]; then device=$(<"$parent/dev"); fi
shift 2
if [ -d /sys/fs/cgroup/blkio ]; then
  group=/sys/fs/cgroup/blkio/headrace-steady-drive.$$
  mkdir "$group"
  echo "$device $rate" > "$group/blkio.throttle.read_bps_device"
  echo "$device $rate" > "$group/blkio.throttle.write_bps_device"
else
  group=/sys/fs/cgroup/headrace-steady-drive.$$
  mkdir "$group"
  echo "$device rbps=$rate wbps=$rate" > "$group/io.max"
fi
trap 'rmdir "$group"' EXIT
bash -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@"
