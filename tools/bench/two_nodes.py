#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_gpt in two network namespaces, which stand for two nodes of some ranks.

  tools/bench/two_nodes.py --text FILE [--node-ranks N] [--steps N] [--rate MBIT] [--build FOLDER]
      [--json FILE]

Trains with stage 2, with stage 3, there with zero_hpz_partition_size, and with that and
hierarchical_reduce_ranks. For each, prints the bytes per step and parameter that crossed the link
between the nodes, of all ranks and with all headers, beside what the ranks counted; and the hashes,
which are the same but with the last, whose sums have another order. --rate limits the link.
Needs no root where unprivileged namespaces are allowed; needs ip, and tc for --rate (Debian:
iproute2). Exit codes: 0 done, 1 a run failed or hashes differ, 2 refused before anything started.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from against_ranks import SHAPE, WARM_UP, free_port
from measured import ROOT, options_of

INSIDE = "HEADRACE_TWO_NODES"
SUMS = "stage 3, nodes that sum"


def cases(node_ranks):
    nodes = ["zero_optimization.stage=3",
             f"zero_optimization.zero_hpz_partition_size={node_ranks}"]
    return {"stage 2": ["zero_optimization.stage=2"],
            "stage 3": ["zero_optimization.stage=3"],
            "stage 3, nodes": nodes,
            SUMS: [*nodes, f"headrace.hierarchical_reduce_ranks={node_ranks}"]}


def run(*words):
    subprocess.run(words, check=True)


class Nodes:
    """Two namespaces with a link: this process's, and that of a process that sleeps."""

    def __init__(self, rate):
        self.other = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        here, there = os.readlink("/proc/self/ns/net"), f"/proc/{self.other.pid}/ns/net"
        while os.readlink(there) == here:
            time.sleep(0.01)
        enter = self.words(1)
        run("ip", "link", "add", "node0", "type", "veth", "peer", "name", "node1", "netns",
            str(self.other.pid))
        for number, words in enumerate(([], enter)):
            run(*words, "ip", "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"node{number}")
            run(*words, "ip", "link", "set", "lo", "up")
            run(*words, "ip", "link", "set", f"node{number}", "up")
            if rate:
                run(*words, "tc", "qdisc", "add", "dev", f"node{number}", "root", "tbf", "rate",
                    f"{rate}mbit", "burst", "256k", "latency", "200ms")

    def words(self, node):
        return ["nsenter", "--target", str(self.other.pid), "--net"] if node == 1 else []

    @staticmethod
    def crossed():
        """Bytes, in both directions."""
        with open("/proc/net/dev", encoding="utf-8") as file:
            for line in file:
                name, _, counters = line.partition(":")
                if name.strip() == "node0":
                    return int(counters.split()[0]) + int(counters.split()[8])
        sys.exit("/proc/net/dev has no node0; nothing was measured")


def train(nodes, settings, asked, folder):
    port, report = free_port(), folder + "/report.json"
    common = ["gradient_clipping=1.0", "zero_optimization.offload_param.device=cpu",
              "zero_optimization.offload_optimizer.device=cpu", *settings]
    words = [str(pathlib.Path(asked.build) / "bin/train_gpt"), *SHAPE, "--batch", "1", "--text",
             str(asked.text), "--ranks", "torch", "--threads", "1", "--eval-batches", "0",
             "--steps", str(WARM_UP + asked.steps), "--json", report,
             *(word for setting in common for word in ("--set", setting))]
    ranks, at, lines = [], [], []
    for rank in range(2 * asked.node_ranks):
        node, place = divmod(rank, asked.node_ranks)
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(place),
                           WORLD_SIZE=str(2 * asked.node_ranks), MASTER_ADDR="10.77.0.1",
                           MASTER_PORT=port, GLOO_SOCKET_IFNAME=f"node{node}")
        ranks.append(subprocess.Popen(nodes.words(node) + words, env=environment, text=True,
                                      stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                      stderr=subprocess.STDOUT, errors="replace"))
    for line in ranks[0].stdout:
        lines.append(line)
        if re.match(r" *step \d", line):
            at.append(nodes.crossed())
    codes = [rank.wait() for rank in ranks]
    if any(codes) or len(at) != WARM_UP + asked.steps:
        sys.exit(f"{' '.join(words)} ended with {codes}:\n{''.join(lines)[-3000:]}")
    with open(report, encoding="utf-8") as file:
        found = json.load(file)
    os.remove(report)
    text = "".join(lines)
    return {"crossed": (at[-1] - at[WARM_UP - 1]) / asked.steps, "report": found,
            "parameters": int(re.search(r"^parameters +(\d+)", text, re.M).group(1)),
            "hashes": re.findall(r"\b[0-9a-f]{32}\b", text)[-2:]}


def read_options():
    options = options_of(__doc__)
    options.add_argument("--text", required=True, type=pathlib.Path)
    options.add_argument("--node-ranks", type=int, default=2, metavar="N",
                         help="ranks of a node [2]")
    options.add_argument("--steps", type=int, default=4, metavar="N", help="measured steps [4]")
    options.add_argument("--rate", type=int, metavar="MBIT", help="of the link, each way")
    options.add_argument("--build", default=str(ROOT / "build/release"), metavar="FOLDER")
    options.add_argument("--json", type=pathlib.Path, metavar="FILE")
    asked = options.parse_args()
    if asked.node_ranks < 2:
        options.error(f"--node-ranks {asked.node_ranks}: one rank sums nothing; give 2 or more; "
                      "nothing was started")
    if not asked.text.is_file():
        options.error(f"--text {asked.text} is no file; nothing was started")
    return asked


def main():
    asked = read_options()
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--map-root-user", "--net", sys.executable, *sys.argv])
    nodes = Nodes(asked.rate)
    rows = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, settings in cases(asked.node_ranks).items():
                row = rows[name] = train(nodes, settings, asked, folder)
                counted = sum(row["report"]["ranks"]["sent_to_other_nodes_bytes"]["by_rank"])
                said = f" ({counted / (WARM_UP + asked.steps) / row['parameters']:.3f} counted)"
                print(f"{name:23} {row['crossed'] / row['parameters']:.3f} bytes per parameter and "
                      f"step crossed the link{said if counted else ''}; hashes "
                      f"{' '.join(row['hashes'])}", flush=True)
    finally:
        nodes.other.kill()
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=2))
    same = {tuple(row["hashes"]) for name, row in rows.items() if name != SUMS}
    return 0 if len(same) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
