#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a network namespace of its own, whose loopback interface passes at most MBIT
# megabits per second. Needs no root where unprivileged namespaces are allowed; needs tc (Debian:
# iproute2) and the kernel's tbf. In the namespace every user is root, so Open MPI wants to be told:
#
#   tools/bench/shaped_link.sh 1600 mpirun --allow-run-as-root --mca btl tcp,self \
#     --mca btl_tcp_if_include lo --oversubscribe --bind-to none -n 2 build/release/bin/ahead_bench
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin  # of ordinary users, Debian's lacks these
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: $0 MBIT COMMAND...; nothing was run" >&2
  exit 2
fi
if ! command -v tc >/dev/null; then
  echo "$0: the command tc is missing; nothing was run. Install iproute2." >&2
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
