#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_gpt beside DeepSpeed's ZeRO-3 and plain torch on the same GPT, text, batch and threads.

  tools/bench/against_deepspeed.py --nvme DIR --text FILE [--python FILE] [--size 51|353]
                                   [--rounds N] [--budget BYTES] [--cases WORD,...]
                                   [--trainer FILE] [--build FOLDER] [--json FILE]

Each round runs every case once, one after the other; a ratio is formed within a round. --python is
one that has torch and deepspeed; deepspeed_trainer.py, which it runs, says what those need. They
get glibc's 2 MiB pages, which make them faster. "start" is from exec to the end of the first step,
without the compilation of DeepSpeed's operators, for which one short run of each mode goes ahead.
"peak" is VmHWM: of the whole process for train_gpt, of the steps for the others. Wants an
otherwise idle machine.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from measured import ROOT, median

# Shape, elements of DeepSpeed's tile, measured steps of theirs and ours, and a budget with which
# the process stays under a third of DeepSpeed's peak.
SIZES = {"51": (["--layers", "16", "--hidden", "512", "--heads", "8"], 16_000_000, 8, 13, 415e6),
         "353": (["--layers", "28", "--hidden", "1024", "--heads", "16"], 50_000_000, 4, 7, 1.6e9)}
THEIRS = {"nvme": "zero3-nvme", "pipelined": "zero3-nvme-pipelined", "cpu": "zero3-cpu",
          "torch": "ram"}
OURS = {"budget": "train_gpt, a budget", "nothing": "train_gpt, nothing resident",
        "memory": "train_gpt, in host memory"}
RATIOS = [("budget", "nvme"), ("budget", "pipelined"), ("nothing", "nvme"),
          ("nothing", "pipelined"), ("memory", "cpu"), ("memory", "torch"), ("budget", "torch")]


def timed(words, first, **variables):
    """Output, and seconds until the line that starts with `first`."""
    environment = dict(os.environ, **variables)
    began, at, lines = time.monotonic(), None, []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", env=environment) as child:
        for line in child.stdout:
            if at is None and line.strip().startswith(first):
                at = time.monotonic() - began
            lines.append(line)
    if child.returncode != 0 or at is None:
        sys.exit(f"{' '.join(words)} ended with {child.returncode}:\n{''.join(lines)[-3000:]}")
    return lines, at


class Cases:
    def __init__(self, asked, work):
        self.asked, self.work = asked, work
        self.shape, self.tile, self.their_steps, self.our_steps, budget = SIZES[asked.size]
        self.budget = asked.budget or int(budget)

    def theirs(self, mode, steps):
        words = [self.asked.python, str(self.asked.trainer), "--mode", mode, *self.shape,
                 "--nvme", str(self.asked.nvme), "--text", str(self.asked.text),
                 "--steps", str(steps), "--sub-group", str(self.tile)]
        folder = str(pathlib.Path(self.asked.python).absolute().parent)
        lines, start = timed(words, "step 0", PYTHONUNBUFFERED="1",
                             GLIBC_TUNABLES="glibc.malloc.hugetlb=1", DS_ACCELERATOR="cpu",
                             PATH=folder + ":" + os.environ["PATH"])  # it calls ninja
        run = json.loads(lines[-1])
        middle = run["median"]
        return {"start": start, "step": middle["total_s"], "forward": middle["forward_s"],
                "backward": middle["backward_s"], "update": middle["step_s"],
                "peak_mib": run["hwm_steps_mib"], "read": run["read_bytes_per_param_step"],
                "written": run["write_bytes_per_param_step"]}

    def ours(self, case):
        settings = ["gradient_clipping=1.0", "zero_optimization.stage=3"]
        for section in ("offload_param", "offload_optimizer"):
            device = "cpu" if case == "memory" else "nvme"
            settings.append(f"zero_optimization.{section}.device={device}")
            if device == "nvme":
                settings.append(f"zero_optimization.{section}.nvme_path={self.asked.nvme}")
        if case == "budget":
            settings.append(f"headrace.host_budget_bytes={self.budget}")
        report = self.work / "run.json"
        words = [str(pathlib.Path(self.asked.build) / "bin/train_gpt"), *self.shape, "--seq", "128",
                 "--batch", "1", "--steps", str(self.our_steps), "--text", str(self.asked.text),
                 "--eval-batches", "0", "--json", str(report)]
        for setting in settings:
            words += ["--set", setting]
        _, start = timed(words, "step 1/")
        run = json.loads(report.read_text())
        report.unlink()
        count, planned = run["parameters"], run["plan_totals"]
        of = {key: median(run, key) for key in run["steps"][0] if key != "skipped"}
        return {"start": start, "step": of["seconds"], "forward": of["forward_s"],
                "backward": of["backward_s"], "update": of["update_s"],
                "peak_mib": run["memory"]["peak_rss_bytes"] / 2**20,
                "engine_mib": run["memory"]["engine_bytes"] / 2**20,
                "read": of["kernel_read_bytes"] / count,
                "written": of["kernel_written_bytes"] / count,
                "planned_moved": (planned["nvme_read_bytes_per_step"] +
                                  planned["nvme_written_bytes_per_step"]) / count,
                "resident": [planned["resident_share_of_parameters"],
                             planned["resident_share_of_state"]], "lanes": run["lanes"]}

    def run(self, case):
        return self.ours(case) if case in OURS else self.theirs(THEIRS[case], self.their_steps)

    def name(self, case):
        return OURS.get(case) or THEIRS[case]


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def print_report(cases, rows, rounds):
    print(f"\n{'case':28} {'step s':>20} {'forward':>8} {'backward':>8} {'update':>7} "
          f"{'start s':>8} {'peak MiB':>8} {'read B':>7} {'written':>7}")
    for case, runs in rows.items():
        of = lambda key: statistics.median(run[key] for run in runs)
        print(f"{cases.name(case):28} {spread([run['step'] for run in runs]):>20} "
              f"{of('forward'):8.3f} {of('backward'):8.3f} {of('update'):7.3f} {of('start'):8.1f} "
              f"{of('peak_mib'):8.0f} {of('read'):7.2f} {of('written'):7.2f}")
    print(f"\nratios within a round, median [least, most] of {rounds}")
    for ours, theirs in RATIOS:
        if ours not in rows or theirs not in rows:
            continue
        pairs = list(zip(rows[ours], rows[theirs]))
        for what, key in (("step", "step"), ("start", "start"), ("peak", "peak_mib")):
            ratios = [b[key] / a[key] for a, b in pairs]
            print(f"{cases.name(theirs)} / {cases.name(ours)}, {what}: {spread(ratios)}")
    for case in ("budget", "nothing"):
        if case in rows:
            run = rows[case][-1]
            print(f"{cases.name(case)}: moved / planned bytes "
                  f"{(run['read'] + run['written']) / run['planned_moved']:.4f}, in host memory "
                  f"{100 * run['resident'][0]:.0f} % of the parameters and "
                  f"{100 * run['resident'][1]:.0f} % of the state")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--nvme", required=True, type=pathlib.Path)
    options.add_argument("--text", required=True, type=pathlib.Path)
    options.add_argument("--python", default=sys.executable)
    options.add_argument("--size", choices=SIZES, default="51", help="million parameters")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--budget", type=int, help="of train_gpt's engine, bytes")
    options.add_argument("--cases", default=",".join([*THEIRS, *OURS]))
    options.add_argument("--trainer", type=pathlib.Path,
                         default=pathlib.Path(__file__).with_name("deepspeed_trainer.py"))
    options.add_argument("--build", default=str(ROOT / "build/release"))
    options.add_argument("--json", type=pathlib.Path)
    asked = options.parse_args()
    names = asked.cases.split(",")
    if unknown := set(names) - THEIRS.keys() - OURS.keys():
        options.error(f"no such case: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as work:
        cases = Cases(asked, pathlib.Path(work))
        for case in names:
            if case in THEIRS and case != "torch":
                cases.theirs(THEIRS[case], 1)
        rows = {case: [] for case in names}
        for number in range(asked.rounds):
            for case in names:
                run = cases.run(case)
                rows[case].append(run)
                print(f"round {number + 1}  {cases.name(case):28} {run['step']:.3f} s a step, "
                      f"{run['start']:.1f} s to the first, {run['peak_mib']:.0f} MiB",
                      file=sys.stderr, flush=True)
    print_report(cases, rows, asked.rounds)
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
