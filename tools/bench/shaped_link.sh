#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a network namespace of its own, whose loopback interface passes at most MBIT
# megabits per second. Needs no root where unprivileged namespaces are allowed; needs tc (Debian:
# iproute2) and the kernel's tbf.
#
#   tools/bench/shaped_link.sh 1600 mpirun --mca btl tcp,self --mca btl_tcp_if_include lo \
#     --oversubscribe --bind-to none -n 2 build/release/bin/ahead_bench
set -euo pipefail
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: $0 MBIT COMMAND...; nothing was run" >&2
  exit 2
fi
if [ "${HEADRACE_SHAPED_LINK:-}" != inside ]; then
  HEADRACE_SHAPED_LINK=inside exec unshare --map-root-user --net "$0" "$@"
fi
ip link set lo up
tc qdisc add dev lo root tbf rate "${1}mbit" burst 256k latency 200ms
shift
unset HEADRACE_SHAPED_LINK
exec "$@"
