#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_gpt on several ranks beside FSDP2 and DeepSpeed's ZeRO, over the same loopback link.

  tools/bench/shaped_link.sh 3200 tools/bench/against_ranks.py --text FILE --python FILE
                                  [--ranks N] [--rounds N] [--steps N] [--batch N] [--threads N]
                                  [--cases WORD,...] [--build FOLDER] [--json FILE]

Each round runs every case once, one after the other; a ratio is formed within a round. The cases
are ours, each (nothing ahead), fsdp2, zero3 and offload (headrace.offload(), for which --python
needs the package headrace); and with parameters that stay joined from forward to backward: ours2
(stage 2), fsdp2-grad-op (SHARD_GRAD_OP) and zero2, compared with each other.
All train the same GPT of 51 million parameters over Gloo, with everything in host memory, bf16 on
the wire and f32 masters. "wire" is what the loopback interface carried per step and parameter, of
all ranks, with all headers, so nothing else should use that interface: shaped_link.sh gives the
whole script an interface of its own, and limits its rate. --python is one that has torch and
deepspeed (docs/tools.md says how to make one). Wants an otherwise idle machine. Exit codes: 0
done, 1 a case failed, 2 refused before anything started.
"""
import argparse
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import time

from against_deepspeed import end, spread
from measured import ROOT, options_of

SHAPE = ["--layers", "16", "--hidden", "512", "--heads", "8", "--seq", "128"]
CASES = {"ours": "train_gpt", "each": "train_gpt, nothing ahead", "fsdp2": "FSDP2",
         "zero3": "DeepSpeed ZeRO-3", "offload": "headrace.offload()",
         "ours2": "train_gpt, stage 2",
         "fsdp2-grad-op": "FSDP2, SHARD_GRAD_OP", "zero2": "DeepSpeed ZeRO-2"}
STAGE_3 = ("ours", "each", "fsdp2", "zero3")
STAGE_2 = ("ours2", "fsdp2-grad-op", "zero2")
OURS = ("ours", "each", "ours2")
MODES = {"offload": "model-memory"}  # of deepspeed_trainer.py; others: the case's own word
WARM_UP = 3  # steps


def carried():
    """Bytes that the loopback interface has sent."""
    for line in open("/proc/net/dev", encoding="utf-8"):
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    sys.exit("/proc/net/dev has no loopback interface; nothing was measured")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def words_of(case, asked):
    common = [*SHAPE, "--batch", str(asked.batch), "--text", str(asked.text)]
    steps = WARM_UP + asked.steps
    if case not in OURS:
        trainer = pathlib.Path(__file__).with_name("deepspeed_trainer.py")
        return [asked.python, str(trainer), "--mode", MODES.get(case, case), *common,
                "--steps", str(steps - 2)]  # it has two steps of warm-up of its own
    agreement = "each" if case == "each" else "trace"
    settings = ["gradient_clipping=1.0",
                f"zero_optimization.stage={2 if case in STAGE_2 else 3}",
                f"headrace.rank_agreement={agreement}",
                "zero_optimization.offload_param.device=cpu",
                "zero_optimization.offload_optimizer.device=cpu"]
    return [str(pathlib.Path(asked.build) / "bin/train_gpt"), *common, "--ranks", "torch",
            "--threads", str(asked.threads), "--steps", str(steps), "--eval-batches", "0",
            *(word for setting in settings for word in ("--set", setting))]


def start(words, rank, port, asked, output):
    folder = str(pathlib.Path(asked.python).absolute().parent)
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=port,
                       WORLD_SIZE=str(asked.ranks), MASTER_ADDR="127.0.0.1", PYTHONUNBUFFERED="1",
                       OMP_NUM_THREADS=str(asked.threads), DS_ACCELERATOR="cpu",
                       GLIBC_TUNABLES="glibc.malloc.hugetlb=1", GLOO_SOCKET_IFNAME="lo",
                       PATH=folder + ":" + os.environ["PATH"])
    return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, text=True,
                            errors="replace", env=environment, start_new_session=True)


def run(case, asked):
    """Seconds of a step, and bytes on the wire per step, of what follows the warm-up."""
    words, port, at, lines = words_of(case, asked), free_port(), [], []
    ranks = [start(words, 0, port, asked, subprocess.PIPE)]
    try:
        ranks += [start(words, r, port, asked, subprocess.DEVNULL) for r in range(1, asked.ranks)]
        for line in ranks[0].stdout:
            lines.append(line)
            if re.match(r" *step \d", line):
                at.append((time.monotonic(), carried()))
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                end(rank)
    if any(codes) or len(at) != WARM_UP + asked.steps:
        sys.exit(f"{' '.join(words)} ended with {codes}:\n{''.join(lines)[-3000:]}")
    # "parameters      50766848", or of a JSON object.
    parameters = int(re.search(r'^parameters +(\d+)|"parameters": (\d+)', "".join(lines),
                               re.M).expand(r"\1\2"))
    at = at[WARM_UP - 1:]
    return {"step": statistics.median(b[0] - a[0] for a, b in zip(at, at[1:])),
            "wire": (at[-1][1] - at[0][1]) / asked.steps / parameters}


def read_options():
    options = options_of(__doc__)
    options.add_argument("--text", required=True, type=pathlib.Path)
    options.add_argument("--python", default=sys.executable, help="has torch and deepspeed [this]")
    for name, value, about in (("ranks", 2, "processes"), ("steps", 6, "measured steps of a run"),
                               ("rounds", 5, "times that each case runs"),
                               ("batch", 4, "sequences per rank"),
                               ("threads", 1, "of torch, per rank")):
        options.add_argument(f"--{name}", type=int, default=value, metavar="N",
                             help=f"{about} [{value}]")
    options.add_argument("--cases", default=",".join(STAGE_3), metavar="WORD,...",
                         help=f"of {', '.join(CASES)} [{','.join(STAGE_3)}]")
    options.add_argument("--build", default=str(ROOT / "build/release"), metavar="FOLDER")
    options.add_argument("--json", type=pathlib.Path, metavar="FILE")
    asked = options.parse_args()
    asked.cases = asked.cases.split(",")
    unknown = [case for case in asked.cases if case not in CASES]
    if unknown:
        options.error(f"no such case: {', '.join(unknown)}; nothing was started")
    if not asked.text.is_file():
        options.error(f"--text {asked.text} is no file; nothing was started")
    return asked


def main():
    asked = read_options()
    rows = {case: [] for case in asked.cases}
    for case in {"zero2", "zero3"} & set(rows):
        run(case, argparse.Namespace(**{**vars(asked), "steps": 1}))  # compiles its operators
    for number in range(asked.rounds):
        for case in asked.cases:
            rows[case].append(run(case, asked))
            print(f"round {number + 1}  {CASES[case]:26} {rows[case][-1]['step']:.3f} s a step",
                  file=sys.stderr, flush=True)
    for case, runs in rows.items():
        print(f"{CASES[case]:26} {spread([one['step'] for one in runs], 3)} s, wire "
              f"{spread([one['wire'] for one in runs])} bytes per parameter")
    for mine in ("ours", "offload", "ours2"):
        for case in asked.cases if mine in rows else ():
            if case == mine or (case in STAGE_2) != (mine in STAGE_2):
                continue
            ratios = [ours["step"] / theirs["step"]
                      for ours, theirs in zip(rows[mine], rows[case])]
            print(f"{CASES[mine]} / {CASES[case]}, step: {spread(ratios, 3)}")
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
